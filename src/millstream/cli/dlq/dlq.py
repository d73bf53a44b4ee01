"""`millstream dlq`: list, show, stats. `replay` and `purge` are in `dlq_replay.py`."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Annotated, Any

import typer

from millstream.cli.dlq import letter_option
from millstream.cli.dlq.dlq_replay import purge, replay
from millstream.cli.dlq.letter_follow import follow_letters
from millstream.cli.dlq.letter_option import (
    ErrorOption,
    GroupOption,
    KeyOption,
    OriginOption,
    SinceOption,
    TopicArgument,
    UntilOption,
    client_failures,
    dead_letters_of,
    key_text,
    letter_row,
)
from millstream.cli.support.connection import PropertiesOption, ServersOption
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.message import put_bytes
from millstream.cli.support.option import FollowOption
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    format_duration,
    format_time,
    note,
    print_json,
    print_table,
)
from millstream.model.bootstrap import SERVERS_DEFAULT

app = typer.Typer(no_args_is_help=True, help="List, show, replay and delete dead letters.")


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_letters(
    topic: TopicArgument,
    error: ErrorOption = None,
    key: KeyOption = None,
    original_topic: OriginOption = None,
    group: GroupOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")
    ] = 100,
    follow: FollowOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """List dead letters: what failed, where it came from and why.

    With --follow it then prints new letters as they arrive, one per line, until Ctrl-C.
    """
    selection = letter_option.selection(error, key, original_topic, group, since, until, None)
    with client_failures(servers):
        dead_letters = dead_letters_of(topic, servers, properties)
        if follow:
            follow_letters(dead_letters, selection, as_json=as_json)
            return
        with progress("letters read") as shown:
            already = dead_letters.replayed()
            letters = shown.each(dead_letters.letters())
            chosen = (letter for letter in letters if selection.has(letter))
            found = list(itertools.islice(chosen, limit + 1))
    rows = [letter_row(letter, letter.id in already) for letter in found[:limit]]
    if as_json:
        print_json(rows)
        return
    _print_letters(rows)
    if len(found) > limit:
        note(
            f"There are more than {limit}: raise --limit, or narrow with --error, --key or --since."
        )


def _print_letters(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["LETTER", "DIED", "KEY", "FROM", "GROUP", "TRIES", "ERROR", "REPLAYED"],
        [
            (
                row["letter"],
                format_time(row["timestamp"]),
                key_text(row),
                f"{row['topic']}-{row['partition']}@{row['offset']}",
                row["group"] or "",
                row["attempts"],
                f"{row['error_type']}: {row['error_message']}",
                "yes" if row["replayed"] else "",
            )
            for row in rows
        ],
        right=("TRIES",),
    )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def show(
    topic: TopicArgument,
    letter: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET")],
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Show one letter with its value, headers and stack trace."""
    letter_id = letter_option.letter_id(letter)
    with client_failures(servers):
        dead_letters = dead_letters_of(topic, servers, properties)
        with progress(f"reading letter {letter}"):
            found = dead_letters.letter(letter_id)
            already = dead_letters.replayed()
    if found is None:
        raise CommandError(ExitCode.NOT_FOUND, f"{dead_letters.topic} has no letter {letter}.")
    row = letter_row(found, letter_id in already)
    row["error_stack"] = found.error_stack
    row["headers"] = [put_bytes({"key": name}, "value", value) for name, value in found.headers]
    put_bytes(row, "value", found.value)
    if as_json:
        print_json(row)
        return
    row["timestamp"] = format_time(row["timestamp"])
    stack = row.pop("error_stack")
    for name, value in row.items():
        typer.echo(f"{name:16} {value}")
    if stack:
        typer.echo(f"\n{stack}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def stats(
    topic: TopicArgument,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Count letters that were not replayed, by error, topic and group, and show their age."""
    names = ("error", "topic", "group")
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    depth, replayed, oldest_ms = 0, 0, None
    with client_failures(servers), progress("letters read") as shown:
        dead_letters = dead_letters_of(topic, servers, properties)
        already = dead_letters.replayed()
        for letter in shown.each(dead_letters.letters()):
            if letter.id in already:
                replayed += 1
                continue
            depth += 1
            oldest_ms = min(letter.timestamp, oldest_ms or letter.timestamp)
            values = (letter.error_type, letter.origin.topic, letter.origin.group or "")
            for name, value in zip(names, values, strict=True):
                counts[name][value] += 1
    age_s = None if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    if as_json:
        by = {f"by_{name}": dict(counts[name].most_common()) for name in names}
        report = {"depth": depth, "replayed": replayed, "oldest_age_seconds": age_s}
        print_json({"topic": dead_letters.topic} | report | by)
        return
    age = "" if age_s is None else f", the oldest {format_duration(age_s)} ago"
    typer.echo(f"{dead_letters.topic}  {counted(depth, 'letter')}{age}; {replayed:,} replayed\n")
    for name in names if depth else ():
        print_table([name.upper(), "LETTERS"], counts[name].most_common(), right=("LETTERS",))


app.command(epilog=EXIT_CODES_HELP)(replay)
app.command(epilog=EXIT_CODES_HELP)(purge)

"""`millstream dlq`: list, show, stats, replay, purge."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    client_properties,
)
from millstream.cli.support.failure import (
    EXIT_CODES_HELP,
    CommandError,
    ExitCode,
    failing_with,
    guarded,
)
from millstream.cli.support.message import put_bytes
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    format_duration,
    format_time,
    note,
    print_json,
    print_table,
)
from millstream.env.termination import on_termination
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.dead_letter import DeadLetter, DeadLetterTopic, Selection
    from millstream.client.dead_letter.letter import LetterId

app = typer.Typer(no_args_is_help=True, help="List, show, replay and delete dead letters.")

_Topic: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic, or its dead-letter topic (TOPIC.dlq).")
]
_Error: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--error", help="Only errors whose type or message contains this text, in any case."
    ),
]
_Key: TypeAlias = Annotated[str | None, typer.Option("--key", help="Only letters with this key.")]
_Origin: TypeAlias = Annotated[
    str | None, typer.Option("--original-topic", help="Only messages that came from this topic.")
]
_Group: TypeAlias = Annotated[
    str | None, typer.Option("--group", help="Only messages that this group consumed.")
]
_Since: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only letters since then: 10m, 2h, a date."),
]
_Until: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only letters before then.")
]
_Letters: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--letter", "-l", metavar="PARTITION:OFFSET", help="Only this letter. Repeatable."
    ),
]


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_letters(
    topic: _Topic,
    error: _Error = None,
    key: _Key = None,
    original_topic: _Origin = None,
    group: _Group = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")
    ] = 100,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """List dead letters: what failed, where it came from and why."""
    selection = _selection(error, key, original_topic, group, since, until, None)
    with _client_failures(servers):
        dead_letters = _dead_letters(topic, servers, properties)
        already = dead_letters.replayed()
        chosen = (letter for letter in dead_letters.letters() if selection.has(letter))
        found = list(itertools.islice(chosen, limit + 1))
    rows = [_row(letter, letter.id in already) for letter in found[:limit]]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["LETTER", "DIED", "KEY", "FROM", "GROUP", "TRIES", "ERROR", "REPLAYED"],
        [
            (
                row["letter"],
                format_time(row["timestamp"]),
                _key_text(row),
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
    if len(found) > limit:
        note(
            f"There are more than {limit}: raise --limit, or narrow with --error, --key or --since."
        )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def show(
    topic: _Topic,
    letter: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET")],
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Show one letter with its value, headers and stack trace."""
    letter_id = _letter_id(letter)
    with _client_failures(servers):
        dead_letters = _dead_letters(topic, servers, properties)
        found = dead_letters.letter(letter_id)
        already = dead_letters.replayed()
    if found is None:
        raise CommandError(ExitCode.NOT_FOUND, f"{dead_letters.topic} has no letter {letter}.")
    row = _row(found, letter_id in already)
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
    topic: _Topic,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Count letters that were not replayed, by error, topic and group, and show their age."""
    names = ("error", "topic", "group")
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    depth, replayed, oldest_ms = 0, 0, None
    with _client_failures(servers):
        dead_letters = _dead_letters(topic, servers, properties)
        already = dead_letters.replayed()
        for letter in dead_letters.letters():
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


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def replay(
    topic: _Topic,
    error: _Error = None,
    key: _Key = None,
    original_topic: _Origin = None,
    group: _Group = None,
    since: _Since = None,
    until: _Until = None,
    letters: _Letters = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Send to this topic, not to the original one."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.1, help="Send at most this many letters per second."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were replayed before.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show how many letters would be sent to which topic."),
    ] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Send letters to the topics they came from, or to another topic.

    Each letter is replayed once. After an interruption, run the command again to continue.
    """
    from millstream.client.dead_letter import Replay

    selection = _selection(error, key, original_topic, group, since, until, letters)
    with _client_failures(servers):
        dead_letters = _dead_letters(topic, servers, properties)
        run = Replay(dead_letters, selection, to=to, rate=rate, again=again)
        if dry_run:
            targets = Counter(target for _, target in run.plan())
            for target, count in targets.most_common():
                typer.echo(f"{target}: {counted(count, 'letter')}")
            note("Nothing was sent.")
        else:
            with on_termination(run.stop):
                run.run()
            typer.echo(f"{counted(run.outcome.replayed, 'letter')} replayed")
    if run.outcome.already:
        note(f"{counted(run.outcome.already, 'letter')} were replayed before: see --again.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def purge(
    topic: _Topic,
    everything: Annotated[bool, typer.Option("--all", help="Delete all letters.")] = False,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Delete letters from before then."),
    ] = None,
    replayed: Annotated[
        bool,
        typer.Option("--replayed", help="Delete replayed letters, up to the first that was not."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Delete letters, from the oldest on, up to the first that is not selected."""
    if [everything, before is not None, replayed].count(True) != 1:
        raise CommandError(
            ExitCode.USAGE, "choose what to delete: --all, --before TIME or --replayed."
        )
    until_ms = None if before is None else parse_moment_option(before, "--before")
    with _client_failures(servers):
        dead_letters = _dead_letters(topic, servers, properties)
        already = dead_letters.replayed()
        ends: dict[int, int] = {}
        kept: set[int] = set()
        count = 0
        for letter in dead_letters.letters():
            is_older = until_ms is not None and letter.timestamp < until_ms
            is_selected = everything or is_older or (replayed and letter.id in already)
            if not is_selected:
                kept.add(letter.id.partition)
            elif letter.id.partition not in kept:
                ends[letter.id.partition] = letter.id.offset + 1
                count += 1
        if count and not yes:
            typer.confirm(f"Delete {counted(count, 'letter')} of {dead_letters.topic}?", abort=True)
        dead_letters.delete_before(ends)
    typer.echo(f"{counted(count, 'letter')} deleted")


def _row(letter: DeadLetter, is_replayed: bool) -> dict[str, Any]:
    origin = letter.origin
    row: dict[str, Any] = {"letter": str(letter.id), "timestamp": letter.timestamp}
    put_bytes(row, "key", letter.key)
    return row | {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "original_timestamp": origin.timestamp,
        "group": origin.group,
        "attempts": origin.attempts,
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "replayed": is_replayed,
    }


def _key_text(row: dict[str, Any]) -> str:
    return str(row.get("key") or "") if "key" in row else f"base64:{row['key_base64']}"


def _selection(
    error: str | None,
    key: str | None,
    topic: str | None,
    group: str | None,
    since: str | None,
    until: str | None,
    letters: list[str] | None,
) -> Selection:
    from millstream.client.dead_letter import Selection

    return Selection(
        error=error,
        key=None if key is None else key.encode(),
        topic=topic,
        group_id=group,
        since_ms=None if since is None else parse_moment_option(since, "--since"),
        until_ms=None if until is None else parse_moment_option(until, "--until"),
        ids=frozenset(map(_letter_id, letters)) if letters else None,
    )


def _letter_id(text: str) -> LetterId:
    from millstream.client.dead_letter.letter import LetterId

    try:
        return LetterId.parse(text)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{error}.") from None


def _dead_letters(topic: str, servers: str, properties: list[str] | None) -> DeadLetterTopic:
    """Return the dead-letter topic of `topic`. Raises CommandError if it does not exist."""
    from millstream.client.dead_letter import DeadLetterTopic

    dead_letters = DeadLetterTopic(
        topic, config=client_properties(servers, properties, "millstream-cli")
    )
    connection = Connection(servers, properties, TIMEOUT_S_DEFAULT)
    admin = connection.admin()
    if dead_letters.topic not in connection.metadata(admin).topics:
        raise CommandError(
            ExitCode.NOT_FOUND,
            f"topic {dead_letters.topic!r} does not exist: there are no dead letters.",
        )
    return dead_letters


@contextmanager
def _client_failures(servers: str) -> Iterator[None]:
    """Turn the client's exceptions into the command's failure."""
    from millstream.client.error import MillstreamError, ProducerFenced, TimedOut

    with (
        failing_with({MillstreamError: ExitCode.FAILED}),
        failing_with({TimedOut: ExitCode.NO_CONNECTION}, f"{servers}: "),
    ):
        try:
            yield
        except ProducerFenced:
            raise CommandError(
                ExitCode.FAILED, "another replay of this topic was started and continues instead."
            ) from None

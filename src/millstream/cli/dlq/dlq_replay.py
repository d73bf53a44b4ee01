"""`millstream dlq replay` and `purge`: send dead letters back, or delete them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.dlq import letter_option
from millstream.cli.dlq.letter_option import (
    ErrorOption,
    GroupOption,
    KeyOption,
    LettersOption,
    OriginOption,
    SinceOption,
    TopicArgument,
    UntilOption,
    client_failures,
    dead_letters_of,
)
from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import PropertiesOption, ServersOption
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.option import DryRunOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Rate, rate_option
from millstream.cli.support.terminal import JsonOption, counted, note, print_json
from millstream.env.termination import on_termination
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.dead_letter import DeadLetterTopic, Replay


@guarded
def replay(
    topic: TopicArgument,
    error: ErrorOption = None,
    key: KeyOption = None,
    original_topic: OriginOption = None,
    group: GroupOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    letters: LettersOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Send to this topic, not to the original one.",
            autocompletion=complete_topics,
        ),
    ] = None,
    rate: Annotated[
        Rate | None,
        rate_option("--rate", minimum="0.1/s", help="Send at most this many letters: 1000/s."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were replayed before.")
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Send letters to the topics they came from, or to another topic.

    Each letter is replayed once. After an interruption, run the command again to continue.
    """
    from millstream.client.dead_letter import Replay

    selection = letter_option.selection(error, key, original_topic, group, since, until, letters)
    with client_failures(servers):
        dead_letters = dead_letters_of(topic, servers, properties)
        run = Replay(dead_letters, selection, to=to, rate=rate, again=again)
        targets = _replay(run, dry_run)
    if as_json:
        print_json(
            {
                "topic": dead_letters.topic,
                "dry_run": dry_run,
                "replayed": sum(targets.values()) if dry_run else run.outcome.replayed,
                "already_replayed": run.outcome.already,
                "targets": dict(targets.most_common()),
            }
        )
        return
    if dry_run:
        for target, count in targets.most_common():
            typer.echo(f"{target}: {counted(count, 'letter')}")
        note("Nothing was sent.")
    else:
        typer.echo(f"{counted(run.outcome.replayed, 'letter')} replayed")
    if run.outcome.already:
        note(f"{counted(run.outcome.already, 'letter')} were replayed before: see --again.")


def _replay(run: Replay, dry_run: bool) -> Counter[str]:
    """Send the letters, or only count them. Return the number of letters by target topic."""
    if dry_run:
        with progress("letters selected") as shown:
            return Counter(target for _, target in shown.each(run.plan()))
    with (
        on_termination(run.stop),
        progress("letters replayed", count=lambda: run.outcome.replayed),
    ):
        run.run()
    return run.outcome.targets


@guarded
def purge(
    topic: TopicArgument,
    everything: Annotated[bool, typer.Option("--all", help="Delete all letters.")] = False,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Delete letters from before then."),
    ] = None,
    replayed: Annotated[
        bool,
        typer.Option("--replayed", help="Delete replayed letters, up to the first that was not."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Delete letters, from the oldest on, up to the first that is not selected."""
    if [everything, before is not None, replayed].count(True) != 1:
        raise CommandError(
            ExitCode.USAGE, "choose what to delete: --all, --before TIME or --replayed."
        )
    until_ms = None if before is None else parse_moment_option(before, "--before")
    with client_failures(servers):
        dead_letters = dead_letters_of(topic, servers, properties)
        ends, count = _ends(dead_letters, everything, until_ms, replayed)
        if count and not yes:
            question = f"Delete {counted(count, 'letter')} of {dead_letters.topic}?"
            confirm(question, "deleting", "nothing was deleted.")
        with progress(f"deleting {counted(count, 'letter')}"):
            dead_letters.delete_before(ends)
    if as_json:
        print_json({"topic": dead_letters.topic, "deleted": count})
    else:
        typer.echo(f"{counted(count, 'letter')} deleted")


def _ends(
    dead_letters: DeadLetterTopic, everything: bool, until_ms: int | None, replayed: bool
) -> tuple[dict[int, int], int]:
    """Return the offset up to which each partition is deleted, and the number of letters."""
    ends: dict[int, int] = {}
    kept: set[int] = set()
    count = 0
    with progress("letters read") as shown:
        already: Any = dead_letters.replayed() if replayed else ()
        for letter in shown.each(dead_letters.letters()):
            is_older = until_ms is not None and letter.timestamp < until_ms
            if not (everything or is_older or letter.id in already):
                kept.add(letter.id.partition)
            elif letter.id.partition not in kept:
                ends[letter.id.partition] = letter.id.offset + 1
                count += 1
    return ends, count

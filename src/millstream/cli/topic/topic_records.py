"""`millstream topic delete-records`: delete the oldest records of a topic's partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.option import DryRunOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.record import Partition


class _Cut(NamedTuple):
    """The new start of one partition."""

    partition: int
    start: int
    end: int
    new_start: int


@guarded
def delete_records(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    before_offset: Annotated[
        int | None,
        typer.Option("--before-offset", min=0, metavar="OFFSET", help="Records before an offset."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME",
            help="Records before the first one since a time: 7d (ago), 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    all_records: Annotated[bool, typer.Option("--all", help="All records.")] = False,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete the oldest records of a topic, up to an offset, a time or the end.

    Offsets of the remaining records stay. Groups that lag behind continue at the first of them.
    """
    if (before_offset is not None) + (before is not None) + all_records != 1:
        raise CommandError(ExitCode.USAGE, "give one of --before-offset, --before and --all.")
    moment = None if before is None else parse_moment_option(before, "--before")
    connection = Connection(servers, properties, timeout)
    with connection.failing(topic=topic):
        admin = connection.open_admin()
        cuts = _plan(admin, topic, partitions, before_offset, moment)
        count = sum(each.new_start - each.start for each in cuts)
        if dry_run or not count:
            _report(topic, cuts, {}, "would be deleted", as_json)
            return
        if not yes:
            _report(topic, cuts, {}, "would be deleted", as_json=False)
            question = f"Delete up to {counted(count, 'record')} of {topic}?"
            confirm(question, "deleting records", "nothing was deleted.")
        with progress("deleting records"):
            failures = _delete(connection, admin, topic, cuts)
    _report(topic, cuts, failures, "deleted", as_json)


def _plan(
    admin: Admin,
    topic: str,
    numbers: Sequence[int] | None,
    before_offset: int | None,
    moment: int | None,
) -> list[_Cut]:
    starts = admin.list_topic_offsets(topic, "earliest")
    ends = admin.list_topic_offsets(topic, "latest")
    by_time = {} if moment is None else admin.list_topic_offsets(topic, moment)
    cuts = []
    for each in _chosen(topic, starts, numbers):
        wanted = ends[each] if before_offset is None else before_offset
        if by_time.get(each, -1) >= 0:
            wanted = by_time[each]
        new_start = min(max(wanted, starts[each]), ends[each])
        cuts.append(_Cut(each.partition, starts[each], ends[each], new_start))
    return cuts


def _chosen(
    topic: str, existing: Mapping[Partition, int], numbers: Sequence[int] | None
) -> list[Partition]:
    by_number = {each.partition: each for each in sorted(existing)}
    for number in numbers or ():
        if number not in by_number:
            count = counted(len(by_number), "partition")
            raise CommandError(ExitCode.NOT_FOUND, f"topic {topic!r} has {count}, numbered from 0.")
    return [by_number[number] for number in sorted(set(numbers or by_number))]


def _delete(
    connection: Connection, admin: Admin, topic: str, cuts: Sequence[_Cut]
) -> dict[int, CommandError]:
    """Delete the records. Return the failures by partition."""
    from millstream.client.record import Partition

    offsets = {
        Partition(topic, each.partition): each.new_start
        for each in cuts
        if each.new_start > each.start
    }
    return {
        each.partition: connection.failure(outcome, topic=topic)
        for each, outcome in admin.delete_records(offsets).items()
        if isinstance(outcome, Exception)
    }


def _report(
    topic: str,
    cuts: Sequence[_Cut],
    failures: Mapping[int, CommandError],
    done: str,
    as_json: bool,
) -> None:
    rows = [_row(each, failures, done) for each in cuts]
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        headings = ["PARTITION", "START", "END", "NEW START", "OFFSETS", "RESULT"]
        print_table(headings, [list(row.values())[:6] for row in rows], right=headings[:-1])
        if not any(each.new_start > each.start for each in cuts):
            note("Nothing to delete.")
    for failure in failures.values():
        say_error(str(failure))
    if failures:
        raise typer.Exit(next(iter(failures.values())).code)


def _row(each: _Cut, failures: Mapping[int, CommandError], done: str) -> dict[str, Any]:
    failure = failures.get(each.partition)
    count = each.new_start - each.start
    row: dict[str, Any] = {
        "partition": each.partition,
        "start_offset": each.start,
        "end_offset": each.end,
        "new_start_offset": each.new_start,
        "offsets": count,
        "result": "failed" if failure is not None else done if count else "stays",
    }
    return row if failure is None else row | {"error": str(failure)}

"""`millstream consume`: print a topic's messages on standard output.

It reads partitions directly, or with --group as a group member that commits printed messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from millstream.cli.group.group_reading import GroupReading
from millstream.cli.support.completion import complete_groups, complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.message import (
    PRINTABLE,
    Formatter,
    InputError,
    TextMessage,
    column_formatter,
    json_formatter,
    template_formatter,
    unescape,
)
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.reading import Reading, Start
from millstream.cli.support.terminal import counted, note
from millstream.model.bootstrap import SERVERS_DEFAULT


@guarded
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-B", help="Start at the first message.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            "-o",
            help="Start at this offset; -N for the last N messages of each partition.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--timestamp",
            metavar="TIME",
            help="Start at a time: 10m (ago), 2026-01-31T12:00:00Z, or ms since the epoch.",
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            autocompletion=complete_groups,
            help="Join this group: share the topic with its members, start at the committed"
            " offsets, commit printed messages.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow",
            " /-e",
            help="Keep following new messages; or stop once everything is read, from the beginning"
            " by default.",
        ),
    ] = True,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON objects that `produce --json` reads."),
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="%k key, %v value, %h headers, %t topic, %p partition, %o offset,"
            " %T timestamp in ms, %D timestamp as a date, %% percent.",
        ),
    ] = None,
    printed: Annotated[
        str | None,
        typer.Option(
            "--print", metavar="COLUMNS", help=f"Columns before the value: {','.join(PRINTABLE)}."
        ),
    ] = None,
    null: Annotated[
        str, typer.Option("--null", metavar="TEXT", help="Text printed for null.")
    ] = "null",
    delimiter: Annotated[
        str, typer.Option("--delimiter", help="Text after each message; \\0 is a zero byte.")
    ] = "\\n",
    read_uncommitted: Annotated[
        bool, typer.Option("--read-uncommitted", help="Also print records of open transactions.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes.")] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Print a topic's messages, by default new ones, until Ctrl-C."""
    start = _start(from_beginning, offset, since, follow)
    formatter = _formatter(as_json, template, printed, null, unescape(delimiter).encode())
    if group is not None:
        _check_group(group, partitions, start)
    connection = Connection(servers, properties, timeout)
    reading = _reading(connection, topic, group, read_committed=not read_uncommitted)
    try:
        if isinstance(reading, GroupReading):
            reading.subscribe(from_beginning=start.from_beginning, watch_ends=not follow)
        else:
            reading.assign(partitions, start)
        if not quiet:
            for remark in reading.remarks:
                note(remark)
        try:
            _write(reading.messages(max_messages, follow), formatter)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of following a topic. With --no-follow, messages are missing.
            if not follow:
                raise
        if not quiet and sys.stderr.isatty():
            note(f"{counted(reading.count, 'message')}.")
    finally:
        reading.close()


def _reading(
    connection: Connection, topic: str, group: str | None, *, read_committed: bool
) -> Reading:
    if group is None:
        return Reading(connection, topic, read_committed=read_committed)
    return GroupReading(connection, topic, group, read_committed=read_committed)


def _check_group(group: str, partitions: list[int] | None, start: Start) -> None:
    if not group:
        raise CommandError(ExitCode.USAGE, "--group: a group's name cannot be empty.")
    if partitions:
        raise CommandError(
            ExitCode.USAGE,
            "give --partition or --group, not both: a group assigns partitions itself.",
        )
    if start.offset is not None or start.since_ms is not None:
        raise CommandError(
            ExitCode.USAGE,
            "a group starts at its committed offsets: change them first with"
            f" `millstream group reset-offsets {group}`.",
        )


def _start(from_beginning: bool, offset: int | None, since: str | None, follow: bool) -> Start:
    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise CommandError(
            ExitCode.USAGE,
            "give only one of --from-beginning, --offset and --since.",
        )
    since_ms = None
    if since is not None:
        since_ms = parse_moment_option(since, "--since")
    elif offset is None and not follow:
        from_beginning = True
    return Start(from_beginning, offset, since_ms)


def _formatter(
    as_json: bool, template: str | None, printed: str | None, null: str, delimiter: bytes
) -> Formatter:
    if as_json + (template is not None) + (printed is not None) > 1:
        raise CommandError(ExitCode.USAGE, "choose one of --json, --format and --print.")
    if as_json:
        return json_formatter()
    if template is not None:
        try:
            return template_formatter(template, null.encode(), delimiter)
        except InputError as error:
            raise CommandError(ExitCode.USAGE, f"--format: {error}.") from None
    columns = [name.strip() for name in (printed or "").split(",") if name.strip()]
    for name in columns:
        if name not in (*PRINTABLE, "value"):
            raise CommandError(
                ExitCode.USAGE, f"--print has no column {name!r}: use {', '.join(PRINTABLE)}."
            )
    return column_formatter(columns, null.encode(), delimiter)


def _write(batches: Iterator[list[TextMessage]], formatter: Formatter) -> None:
    """Write each batch at once: a user sees it immediately, and a pipe gets few writes."""
    out = sys.stdout.buffer
    for batch in batches:
        out.write(b"".join(map(formatter, batch)))
        out.flush()

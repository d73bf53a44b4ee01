"""`millstream consume`: a topic's messages to standard output.

Reads partitions directly, or with --group as a member of a group that commits what it printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from millstream.cli.group.group_reading import GroupReading
from millstream.cli.support.connection import (
    SERVERS_DEFAULT,
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
    Message,
    column_formatter,
    json_formatter,
    template_formatter,
    unescape,
)
from millstream.cli.support.position import parse_moment
from millstream.cli.support.reading import Reading, Start
from millstream.cli.support.terminal import counted, note

_COMMIT_INTERVAL_MS: Final = 1000


@guarded
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-B", help="From the first message there is.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            "-o",
            help="From this offset; -N for the last N messages of each partition.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--timestamp",
            metavar="TIME",
            help="From a time: 10m (ago), 2026-01-31T12:00:00Z, or milliseconds since the epoch.",
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this one. Repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Join this group: share the topic with its members, go on from what it has"
            " committed, commit what was printed.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")
    ] = None,
    no_follow: Annotated[
        bool,
        typer.Option(
            "--no-follow",
            "-e",
            help="Stop at what was the end at the start. Reads from the beginning unless told.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a message, which `produce --json` reads."),
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
            "--print", metavar="COLUMNS", help=f"Before the value, of: {','.join(PRINTABLE)}."
        ),
    ] = None,
    null: Annotated[
        str, typer.Option("--null", metavar="TEXT", help="What stands for null.")
    ] = "null",
    delimiter: Annotated[
        str, typer.Option("--delimiter", help="What ends a message; \\0 is a zero byte.")
    ] = "\\n",
    read_uncommitted: Annotated[
        bool, typer.Option("--read-uncommitted", help="Also records of open transactions.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Print a topic's messages, new ones unless told where to start; Ctrl-C ends it."""
    start = _start(from_beginning, offset, since, no_follow)
    formatter = _formatter(as_json, template, printed, null, unescape(delimiter).encode())
    if group is not None:
        _check_group(group, partitions, start)
    connection = Connection(servers, properties, timeout)
    consumer = connection.consumer(_consumer_config(group, start, read_uncommitted))
    kind = Reading if group is None else GroupReading
    reading = kind(connection, consumer, topic)
    try:
        if isinstance(reading, GroupReading):
            reading.subscribe(watch_ends=no_follow)
        else:
            reading.assign(partitions, start)
        if not quiet:
            for remark in reading.remarks:
                note(remark)
        try:
            _write(reading.messages(max_messages, no_follow), formatter)
        except KeyboardInterrupt:
            # The ordinary end of following a topic; without following, something is missing.
            if no_follow:
                raise
        if not quiet and sys.stderr.isatty():
            note(f"{counted(reading.count, 'message')}.")
    finally:
        reading.close()


def _check_group(group: str, partitions: list[int] | None, start: Start) -> None:
    if not group:
        raise CommandError(ExitCode.USAGE, "--group: a group's name cannot be empty.")
    if partitions:
        raise CommandError(
            ExitCode.USAGE, "--partition and --group exclude each other: the group assigns."
        )
    if start.offset is not None or start.since_ms is not None:
        raise CommandError(
            ExitCode.USAGE,
            "a group goes on from what it has committed: move that first, with"
            f" `millstream group reset-offsets {group}`.",
        )


def _start(from_beginning: bool, offset: int | None, since: str | None, no_follow: bool) -> Start:
    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise CommandError(
            ExitCode.USAGE,
            "start at one place: --from-beginning, --offset or --since, not several.",
        )
    since_ms = None
    if since is not None:
        try:
            since_ms = parse_moment(since, int(time.time() * 1000))
        except ValueError as error:
            raise CommandError(ExitCode.USAGE, f"--since {error}.") from None
    elif offset is None and no_follow:
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
                ExitCode.USAGE, f"--print does not know {name!r}; it has {', '.join(PRINTABLE)}."
            )
    return column_formatter(columns, null.encode(), delimiter)


def _consumer_config(group: str | None, start: Start, read_uncommitted: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        # librdkafka wants a group's name even where no group is joined.
        "group.id": "millstream-cli" if group is None else group,
        "enable.auto.commit": group is not None,
        # Commits take what `GroupReading` stores: what was printed.
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted" if read_uncommitted else "read_committed",
    }
    if group is not None:
        config["auto.offset.reset"] = "earliest" if start.from_beginning else "latest"
        config["auto.commit.interval.ms"] = _COMMIT_INTERVAL_MS
    return config


def _write(batches: Iterator[list[Message]], formatter: Formatter) -> None:
    """Each batch in one write: a person sees it at once, a pipe gets few writes."""
    out = sys.stdout.buffer
    for batch in batches:
        out.write(b"".join(map(formatter, batch)))
        out.flush()

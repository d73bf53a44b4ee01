"""`millstream consume`: a topic's messages to standard output.

Reads partitions directly; joins no group and commits nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from millstream.cli.connection import (
    SERVERS_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.failure import CommandError, ExitCode, from_kafka_error, guarded
from millstream.cli.message import (
    PRINTABLE,
    Formatter,
    InputError,
    Message,
    column_formatter,
    json_formatter,
    template_formatter,
    unescape,
)
from millstream.cli.position import Range, parse_moment, start_at
from millstream.cli.terminal import counted, note

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import Message as Received

_POLL_S: Final = 0.2
_BATCH_MESSAGES: Final = 500
_REMARKS_MAX: Final = 3


class Start(NamedTuple):
    """Where to start: exactly one of these, or none for the end."""

    from_beginning: bool
    offset: int | None
    since_ms: int | None


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
    connection = Connection(servers, properties, timeout)
    consumer = connection.consumer(_consumer_config(read_uncommitted))
    try:
        reading = Reading(connection, consumer, topic)
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
        consumer.close()


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


def _consumer_config(read_uncommitted: bool) -> dict[str, Any]:
    return {
        # librdkafka wants a group's name even where no group is joined.
        "group.id": "millstream-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted" if read_uncommitted else "read_committed",
    }


def _write(batches: Iterator[list[Message]], formatter: Formatter) -> None:
    """Each batch in one write: a person sees it at once, a pipe gets few writes."""
    out = sys.stdout.buffer
    for batch in batches:
        out.write(b"".join(map(formatter, batch)))
        out.flush()


class Reading:
    """One run of reading: which partitions, from where, and until where."""

    __slots__ = ("_connection", "_consumer", "_ends", "_starts", "_topic", "count", "remarks")

    def __init__(self, connection: Connection, consumer: Consumer, topic: str) -> None:
        self._connection = connection
        self._consumer = consumer
        self._topic = topic
        self._starts: dict[int, int] = {}
        #: The end of each partition when reading began.
        self._ends: dict[int, int] = {}
        self.count = 0
        #: What a person should know about where reading starts.
        self.remarks: list[str] = []

    def assign(self, partitions: list[int] | None, start: Start) -> None:
        """Find out where each partition starts and ends, and begin there."""
        from confluent_kafka import KafkaException, TopicPartition

        chosen = self._choose(partitions)
        try:
            ranges = {
                partition: Range(
                    *self._consumer.get_watermark_offsets(
                        TopicPartition(self._topic, partition), timeout=self._connection.timeout_s
                    )
                )
                for partition in chosen
            }
            self._starts = self._find_starts(ranges, start)
        except KafkaException as exception:
            what = f"cannot find the offsets of {self._topic!r}"
            raise self._connection.failure(exception, what) from None
        self._ends = {partition: available.end for partition, available in ranges.items()}
        self._consumer.assign(
            [TopicPartition(self._topic, p, offset) for p, offset in self._starts.items()]
        )

    def _choose(self, partitions: list[int] | None) -> list[int]:
        found = self._connection.metadata(self._consumer, self._topic).topics[self._topic]
        if found.error is not None:
            what = f"cannot read topic {self._topic!r}"
            raise from_kafka_error(found.error, what, self._connection.servers, self._topic)
        if not partitions:
            return sorted(found.partitions)
        for partition in partitions:
            if partition not in found.partitions:
                count = counted(len(found.partitions), "partition")
                raise CommandError(
                    ExitCode.NOT_FOUND, f"topic {self._topic!r} has {count}, numbered from 0."
                )
        return sorted(set(partitions))

    def _find_starts(self, ranges: dict[int, Range], start: Start) -> dict[int, int]:
        if start.from_beginning:
            return {partition: available.start for partition, available in ranges.items()}
        if start.since_ms is not None:
            return self._find_by_time(ranges, start.since_ms)
        if start.offset is None:
            return {partition: available.end for partition, available in ranges.items()}
        starts = {p: start_at(start.offset, available) for p, available in ranges.items()}
        self._remark_moved(start.offset, starts, ranges)
        return starts

    def _remark_moved(self, wanted: int, starts: dict[int, int], ranges: dict[int, Range]) -> None:
        moved = [partition for partition, first in starts.items() if 0 <= wanted != first]
        if len(moved) > _REMARKS_MAX:
            self.remarks.append(
                f"{counted(len(moved), 'partition')} of {self._topic} do not have"
                f" offset {wanted}: reading from the nearest."
            )
            return
        for partition in moved:
            start, end = ranges[partition]
            self.remarks.append(
                f"{self._topic}-{partition} has offsets from {start} up to {end}:"
                f" reading from {starts[partition]}."
            )

    def _find_by_time(self, ranges: dict[int, Range], since_ms: int) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._topic, partition, since_ms) for partition in ranges]
        answers = self._consumer.offsets_for_times(asked, timeout=self._connection.timeout_s)
        # A negative offset says that nothing is as late as that.
        return {
            answer.partition: answer.offset if answer.offset >= 0 else ranges[answer.partition].end
            for answer in answers
        }

    def messages(self, max_messages: int | None, no_follow: bool) -> Iterator[list[Message]]:
        """Batches as they come, until a limit is reached."""
        pending = {p for p, first in self._starts.items() if first < self._ends[p]}
        while (max_messages is None or self.count < max_messages) and (pending or not no_follow):
            batch: list[Message] = []
            for received in self._poll():
                message = self._accept(received, pending if no_follow else None)
                if message is not None:
                    batch.append(message)
            if max_messages is not None:
                del batch[max_messages - self.count :]
            self.count += len(batch)
            if batch:
                yield batch

    def _poll(self) -> list[Received]:
        """Wait for one message, then take what else is there: `consume` alone would wait until
        its list is full."""
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return []
        return [first, *self._consumer.consume(_BATCH_MESSAGES, timeout=0)]

    def _accept(self, received: Received, pending: set[int] | None) -> Message | None:
        """The message, unless it is an event, or lies past the end that `pending` waits for."""
        from confluent_kafka import KafkaError

        partition = int(received.partition() or 0)
        error = received.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                if pending is not None:
                    pending.discard(partition)
                return None
            if error.retriable() or error.code() == KafkaError._TRANSPORT:  # noqa: SLF001
                return None
            what = f"reading {self._topic}-{partition}"
            raise from_kafka_error(error, what, self._connection.servers)
        message = _message(received)
        if pending is not None:
            if message.offset >= self._ends[partition] - 1:
                pending.discard(partition)
            if message.offset >= self._ends[partition]:
                return None
        return message


def _message(received: Any) -> Message:
    """Ours of librdkafka's. Untyped: its annotations allow None for all that a message has."""
    kind, timestamp = received.timestamp()
    return Message(
        received.key(),
        received.value(),
        received.headers() or [],
        timestamp if kind else None,
        received.topic(),
        received.partition(),
        received.offset(),
    )

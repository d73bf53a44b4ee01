"""`millstream produce`: send arguments, or lines of standard input, to a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
    parse_pairs,
)
from millstream.cli.support.failure import (
    CommandError,
    ExitCode,
    from_kafka_error,
    guarded,
    say_error,
)
from millstream.cli.support.message import (
    Headers,
    InputError,
    JsonReader,
    LineReader,
    Message,
    unescape,
)
from millstream.cli.support.terminal import counted, error_console, format_bytes, note, print_json
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Report

_MESSAGES_PER_SHOW: Final = 500
#: How long brokers may take to create an unknown topic automatically.
_CREATION_S_MAX: Final = 1.5


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    all = "all"
    one = "1"
    zero = "0"


@guarded
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE", help="Messages; by default the lines of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", help="Text between key and value of a line; \\t is a tab."
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", help="Header of every message. Repeatable."
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option("--null", metavar="TEXT", help="A key or value equal to this text is null."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Lines are JSON objects with key, value, headers, timestamp, as `consume --json`"
            " prints them; the summary is JSON too.",
        ),
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, help="Default: chosen by the murmur2 hash of the key."
        ),
    ] = None,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.none,
    acks: Annotated[
        Acks, typer.Option("--acks", "-a", help="Which replicas must acknowledge.")
    ] = Acks.all,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no summary.")
    ] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Send messages to a topic.

    Exits with 0 only if every message was acknowledged. Arguments and JSON lines are sent as they
    are; a text line is sent without its line end.
    """
    if as_json and (key_separator is not None or null is not None):
        raise CommandError(
            ExitCode.USAGE, "--json lines contain key and null themselves: remove the option."
        )
    if key is not None and key_separator is not None:
        raise CommandError(ExitCode.USAGE, "give --key or --key-separator, not both.")
    fixed: Headers = [
        (name, value.encode()) for name, value in parse_pairs(headers or (), "--header").items()
    ]
    fixed_key = None if key is None else key.encode()
    separator = None if key_separator is None else unescape(key_separator).encode()
    if separator == b"":
        raise CommandError(ExitCode.USAGE, "--key-separator must not be empty.")
    marker = None if null is None else null.encode()
    reader = (
        JsonReader(fixed_key, fixed) if as_json else LineReader(fixed_key, separator, marker, fixed)
    )
    connection = Connection(servers, properties, timeout)
    sending = Sending(
        connection,
        connection.producer(_producer_config(acks, compression, timeout)),
        topic,
        partition,
        is_shown=not quiet and sys.stderr.isatty() and not sys.stdin.isatty(),
    )
    sending.check_topic()
    lines = [value.encode() for value in values] if values else _stdin_lines(quiet)
    failure = sending.run(reader, lines)
    _summarize(sending, as_json, quiet)
    if failure is not None:
        raise failure


def _producer_config(acks: Acks, compression: Compression, timeout: float) -> dict[str, Any]:
    return {
        "acks": acks.value,
        "compression.type": compression.value,
        "enable.idempotence": acks is Acks.all,
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "message.timeout.ms": int(timeout * 1000),
        "topic.metadata.propagation.max.ms": int(timeout * 1000),
    }


def _stdin_lines(quiet: bool) -> Iterator[bytes]:
    if sys.stdin.isatty() and not quiet:
        note("One message per line; Ctrl-D ends.")
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


class Sending:
    """One run: sends messages and counts those read, acknowledged and failed."""

    __slots__ = (
        "_connection",
        "_is_shown",
        "_partition",
        "_producer",
        "_started",
        "_topic",
        "acked",
        "acked_bytes",
        "failed",
        "first_error",
        "offsets",
        "read",
    )

    def __init__(
        self,
        connection: Connection,
        producer: Producer,
        topic: str,
        partition: int | None,
        *,
        is_shown: bool,
    ) -> None:
        self._connection = connection
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._is_shown = is_shown
        self._started = time.monotonic()
        self.read = 0
        self.acked = 0
        self.acked_bytes = 0
        self.failed = 0
        self.first_error: KafkaError | None = None
        #: Last acknowledged offset of each partition.
        self.offsets: dict[int, int] = {}

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def check_topic(self) -> None:
        """Fail before reading input if the broker, topic or partition does not exist."""
        found = self._connection.metadata(self._producer, self._topic).topics[self._topic]
        deadline = time.monotonic() + min(_CREATION_S_MAX, self._connection.timeout_s)
        while found.error is not None and _may_appear(found.error) and time.monotonic() < deadline:
            self._producer.poll(0.1)
            found = self._connection.metadata(self._producer, self._topic).topics[self._topic]
        if found.error is not None:
            raise self._failure(found.error)
        if self._partition is not None and self._partition not in found.partitions:
            count = counted(len(found.partitions), "partition")
            raise CommandError(
                ExitCode.NOT_FOUND, f"topic {self._topic!r} has {count}, numbered from 0."
            )
        self._started = time.monotonic()

    def run(self, reader: LineReader | JsonReader, lines: Iterable[bytes]) -> CommandError | None:
        """Send all lines and wait for acknowledgements. Return the failure, if any."""
        failure: CommandError | None = None
        progress = _Progress(self) if self._is_shown else None
        try:
            for line in lines:
                self.read += 1
                self._send(self._parse(reader, line))
                self._producer.poll(0)
                if progress is not None and self.read % _MESSAGES_PER_SHOW == 0:
                    progress.show()
                if self.first_error is not None:
                    break
        except CommandError as stopped:
            failure = stopped
        except KeyboardInterrupt:
            failure = CommandError(
                ExitCode.INTERRUPTED, "interrupted; messages read before were sent."
            )
        finally:
            unacknowledged = self._producer.flush(self._connection.timeout_s)
            if progress is not None:
                progress.close()
        if self.first_error is not None:
            return self._failure(self.first_error)
        if failure is None and unacknowledged:
            return CommandError(
                ExitCode.NO_CONNECTION,
                f"{counted(unacknowledged, 'message')} not acknowledged in time; see --timeout.",
            )
        return failure

    def _failure(self, error: KafkaError) -> CommandError:
        what = f"cannot produce to {self._topic!r}"
        return from_kafka_error(error, what, self._connection.servers, self._topic)

    def _parse(self, reader: LineReader | JsonReader, line: bytes) -> Message:
        try:
            return reader.read(line)
        except InputError as error:
            raise CommandError(ExitCode.USAGE, f"input line {self.read}: {error}.") from None

    def _send(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        options: dict[str, Any] = {}
        if self._partition is not None:
            options["partition"] = self._partition
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        if message.headers:
            options["headers"] = message.headers
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=message.value,
                    key=message.key,
                    on_delivery=self._on_delivery,
                    **options,
                )
            except BufferError:
                # librdkafka's queue is full: wait for acknowledgements.
                self._producer.poll(0.5)
            except KafkaException as exception:
                raise self._connection.failure(
                    exception, f"cannot send input line {self.read}"
                ) from None
            else:
                return

    def _on_delivery(self, error: KafkaError | None, report: Report) -> None:
        if error is not None:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error
            return
        self.acked += 1
        self.acked_bytes += len(report)
        partition, offset = report.partition(), report.offset()
        if partition is not None and offset is not None and offset >= 0:
            self.offsets[partition] = max(offset, self.offsets.get(partition, -1))


class _Progress:
    """A progress line on standard error."""

    __slots__ = ("_sending", "_status")

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._status = error_console().status("sending")
        self._status.start()

    def show(self) -> None:
        sending = self._sending
        rate = sending.acked / sending.seconds if sending.seconds else 0.0
        self._status.update(
            f"{sending.acked:,} of {sending.read:,} acknowledged,"
            f" {format_bytes(sending.acked_bytes)}, {rate:,.0f}/s"
        )

    def close(self) -> None:
        self._status.stop()


def _may_appear(error: KafkaError) -> bool:
    """Whether the broker may be creating the topic after the metadata request."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)


def _summarize(sending: Sending, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": sending.topic,
                "acknowledged": sending.acked,
                "failed": sending.failed,
                "bytes": sending.acked_bytes,
                "seconds": round(sending.seconds, 6),
                "last_offsets": {str(p): o for p, o in sorted(sending.offsets.items())},
            }
        )
        return
    if quiet:
        return
    where = ", ".join(
        f"{sending.topic}-{p} up to {o}" for p, o in sorted(sending.offsets.items())[:4]
    )
    more = f" and {len(sending.offsets) - 4} more" if len(sending.offsets) > 4 else ""
    note(
        f"{counted(sending.acked, 'message')} acknowledged"
        f" ({format_bytes(sending.acked_bytes)} in {sending.seconds:.2f} s)"
        + (f": {where}{more}" if where else "")
    )
    if sending.failed:
        say_error(f"{counted(sending.failed, 'message')} failed.")

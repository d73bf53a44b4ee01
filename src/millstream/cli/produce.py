"""`millstream produce`: send arguments, or lines of standard input, to a topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
    parse_pairs,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.message import (
    Headers,
    InputError,
    JsonReader,
    LineReader,
    TextMessage,
    unescape,
)
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import counted, format_bytes, note, print_json
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.cli.support.progress import Progress
    from millstream.client.admin import Admin
    from millstream.client.producer.delivery import Delivery
    from millstream.client.producer.producer import Producer

#: Deliveries are counted after this many messages.
_MESSAGES_PER_COUNT: Final = 500
_CREATION_POLL_S: Final = 0.1
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
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE...]", help="Messages; by default the lines of standard input."
        ),
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
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches are compressed.")
    ] = Compression.none,
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
    admin = connection.open_admin()
    sending = Sending(
        connection,
        _producer(connection, acks, compression),
        topic,
        partition,
        is_shown=not quiet and not sys.stdin.isatty(),
    )
    sending.check_topic(admin)
    lines = [value.encode() for value in values] if values else _stdin_lines(quiet)
    failure = sending.run(reader, lines)
    _summarize(sending, as_json, quiet)
    if failure is not None:
        raise failure


def _producer(connection: Connection, acks: Acks, compression: Compression) -> Producer:
    from millstream.client.producer.producer import Producer

    timeout_ms = int(connection.timeout_s * 1000)
    return Producer(
        connection.servers,
        acks=acks.value,
        compression_type=compression.value,
        delivery_timeout=max(connection.timeout_s, 1.0),
        buffer_timeout=connection.timeout_s,
        config={
            "message.timeout.ms": timeout_ms,
            "topic.metadata.propagation.max.ms": timeout_ms,
            **connection.client_config(),
        },
    )


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
        "_pending",
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
        #: The deliveries that are not counted yet, in the order of sending, with their bytes.
        self._pending: deque[tuple[Delivery, int]] = deque()
        self.read = 0
        self.acked = 0
        self.acked_bytes = 0
        self.failed = 0
        self.first_error: Exception | None = None
        #: Last acknowledged offset of each partition.
        self.offsets: dict[int, int] = {}

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def check_topic(self, admin: Admin) -> None:
        """Fail before reading input if the topic or partition does not exist."""
        deadline = time.monotonic() + min(_CREATION_S_MAX, self._connection.timeout_s)
        while True:
            found = admin.describe_topics([self._topic], elr=False)[self._topic]
            if not isinstance(found, Exception):
                break
            if not _may_appear(found) or time.monotonic() > deadline:
                raise self._failure(found)
            # A producer's metadata request lets brokers create the topic, if they are set to.
            with self._connection.failing(topic=self._topic):
                self._producer.refresh(self._topic)
            time.sleep(_CREATION_POLL_S)
        if self._partition is not None and self._partition >= len(found.partitions):
            count = counted(len(found.partitions), "partition")
            raise CommandError(
                ExitCode.NOT_FOUND, f"topic {self._topic!r} has {count}, numbered from 0."
            )
        self._started = time.monotonic()

    def run(self, reader: LineReader | JsonReader, lines: Iterable[bytes]) -> CommandError | None:
        """Send all lines and wait for acknowledgements. Return the failure, if any."""
        with contextlib.ExitStack() as stack:
            shown = stack.enter_context(progress("sending")) if self._is_shown else None
            failure = self._send_all(reader, lines, shown)
            unacknowledged = self._finish()
        if self.first_error is not None:
            return self._failure(self.first_error)
        if failure is None and unacknowledged:
            return CommandError(
                ExitCode.NO_CONNECTION,
                f"{counted(unacknowledged, 'message')} not acknowledged in time; see --timeout.",
            )
        return failure

    def _send_all(
        self, reader: LineReader | JsonReader, lines: Iterable[bytes], shown: Progress | None
    ) -> CommandError | None:
        """Send lines until the first failure, which is returned."""
        try:
            for line in lines:
                self.read += 1
                self._send(self._parse(reader, line))
                if self.read % _MESSAGES_PER_COUNT == 0:
                    self._count()
                    if shown is not None:
                        shown.update(self.acked, what=self._progress())
                if self.first_error is not None:
                    break
        except CommandError as stopped:
            return stopped
        except KeyboardInterrupt:
            return CommandError(
                ExitCode.INTERRUPTED, "interrupted; messages read before were sent."
            )
        return None

    def _progress(self) -> str:
        rate = self.acked / self.seconds if self.seconds else 0.0
        return f"acknowledged, {format_bytes(self.acked_bytes)}, {rate:,.0f}/s"

    def _finish(self) -> int:
        """Wait for acknowledgements. Return the number of messages without one in time."""
        from millstream.client.error import MillstreamError

        try:
            self._producer.flush(self._connection.timeout_s)
        except MillstreamError as error:
            self._count()
            if not self._pending and self.first_error is None:
                self.first_error = error
        self._count()
        return len(self._pending)

    def _count(self) -> None:
        """Count the deliveries that are done. They are done in about the order of sending."""
        while self._pending and self._pending[0][0].done():
            delivery, size = self._pending.popleft()
            error = delivery.exception()
            if error is not None:
                self.failed += 1
                self.first_error = self.first_error or error
                continue
            self.acked += 1
            self.acked_bytes += size
            metadata = delivery.result()
            if metadata.offset >= 0:
                last = self.offsets.get(metadata.partition, -1)
                self.offsets[metadata.partition] = max(metadata.offset, last)

    def _failure(self, error: Exception) -> CommandError:
        return self._connection.failure(error, topic=self._topic)

    def _parse(self, reader: LineReader | JsonReader, line: bytes) -> TextMessage:
        try:
            return reader.read(line)
        except InputError as error:
            raise CommandError(ExitCode.USAGE, f"input line {self.read}: {error}.") from None

    def _send(self, message: TextMessage) -> None:
        from millstream.client.error import MillstreamError

        try:
            delivery = self._producer.send(
                self._topic,
                message.value,
                key=message.key,
                headers=message.headers or None,
                partition=self._partition,
                timestamp=message.timestamp_ms,
            )
        except MillstreamError as error:
            failure = self._failure(error)
            raise CommandError(
                failure.code, f"cannot send input line {self.read}: {failure}"
            ) from None
        self._pending.append((delivery, len(message.value or b"")))


def _may_appear(error: Exception) -> bool:
    """Whether the broker may be creating the topic after the metadata request."""
    return getattr(error, "name", "") in ("LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART")


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

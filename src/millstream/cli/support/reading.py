"""Reads a topic's partitions directly, without a group and without commits.

`cli/group/group_reading.py` reads as a group member.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error
from millstream.cli.support.message import Message
from millstream.cli.support.position import Range, start_at
from millstream.cli.support.terminal import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import Message as Received

_POLL_S: Final = 0.2
_BATCH_MESSAGES: Final = 500
_REMARKS_MAX: Final = 3


class Start(NamedTuple):
    """The start position: exactly one of these, or none for the end."""

    from_beginning: bool
    offset: int | None
    since_ms: int | None


class Reading:
    """One run: the partitions, and the offsets at which reading starts and ends."""

    __slots__ = (
        "_connection",
        "_consumer",
        "_ends",
        "_starts",
        "_topic",
        "count",
        "is_complete",
        "remarks",
    )

    def __init__(self, connection: Connection, consumer: Consumer, topic: str) -> None:
        self._connection = connection
        self._consumer = consumer
        self._topic = topic
        self._starts: dict[int, int] = {}
        #: The end of each partition when reading began.
        self._ends: dict[int, int] = {}
        self.count = 0
        #: Whether `sample` has reached the end offsets.
        self.is_complete = False
        #: Notes for the user about the start positions.
        self.remarks: list[str] = []

    def assign(self, partitions: list[int] | None, start: Start) -> None:
        """Look up the start and end offset of each partition, and start reading."""
        self.locate(partitions, start)
        self.begin(self._starts)

    def locate(self, partitions: list[int] | None, start: Start) -> dict[int, Range]:
        """Return the offsets to read of each partition, from its start to its current end."""
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
            what = f"cannot look up the offsets of {self._topic!r}"
            raise self._connection.failure(exception, what) from None
        self._ends = {partition: available.end for partition, available in ranges.items()}
        return {p: Range(first, self._ends[p]) for p, first in self._starts.items()}

    def begin(self, starts: Mapping[int, int]) -> None:
        """Read these located partitions from these offsets on."""
        from confluent_kafka import TopicPartition

        self._starts = dict(starts)
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
                f" offset {wanted}: reading starts at the nearest."
            )
            return
        for partition in moved:
            start, end = ranges[partition]
            self.remarks.append(
                f"{self._topic}-{partition} has offsets from {start} up to {end}:"
                f" reading starts at {starts[partition]}."
            )

    def _find_by_time(self, ranges: dict[int, Range], since_ms: int) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._topic, partition, since_ms) for partition in ranges]
        rows = self._consumer.offsets_for_times(asked, timeout=self._connection.timeout_s)
        # A negative offset means that no record is at or after that time.
        return {
            row.partition: row.offset if row.offset >= 0 else ranges[row.partition].end
            for row in rows
        }

    def messages(self, max_messages: int | None, no_follow: bool) -> Iterator[list[Message]]:
        """Yield batches as they arrive, until a limit is reached."""
        pending = self._unfinished()
        while (max_messages is None or self.count < max_messages) and (pending or not no_follow):
            if batch := self._next_batch(max_messages, pending if no_follow else None):
                yield batch

    def sample(self, seconds_max: float) -> Iterator[list[Message]]:
        """Yield batches as they arrive, up to the end offsets or for `seconds_max`."""
        deadline = time.monotonic() + seconds_max
        pending = self._unfinished()
        while pending and time.monotonic() < deadline:
            if batch := self._next_batch(None, pending):
                yield batch
        self.is_complete = not pending

    def _unfinished(self) -> set[int]:
        return {p for p, first in self._starts.items() if first < self._ends[p]}

    def _next_batch(self, max_messages: int | None, pending: set[int] | None) -> list[Message]:
        """Return the messages that arrived, up to the limit; empty if none arrived in time."""
        accepted = (self._accept(received, pending) for received in self._poll())
        batch = [message for message in accepted if message is not None]
        if max_messages is not None:
            del batch[max_messages - self.count :]
        self.count += len(batch)
        return batch

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _poll(self) -> list[Received]:
        """Wait for one message, then return it with all buffered ones: `consume` alone would wait
        until its list is full."""
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return []
        return [first, *self._consumer.consume(_BATCH_MESSAGES, timeout=0)]

    def _accept(self, received: Received, pending: set[int] | None) -> Message | None:
        """Return the message, or None for an event or a message past the end offset."""
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
    """Convert librdkafka's message. Untyped: its annotations allow None for each field."""
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

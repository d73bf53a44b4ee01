"""Reads a topic's partitions directly, without a group and without commits.

`cli/group/group_reading.py` reads as a group member.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.message import TextMessage
from millstream.cli.support.position import Range, start_at
from millstream.cli.support.terminal import counted

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.admin.offset_request import OffsetAt
    from millstream.client.consumer.consumer import Consumer
    from millstream.client.record import Partition, Record

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
        "_admin",
        "_connection",
        "_consumer",
        "_ends",
        "_read_committed",
        "_starts",
        "_topic",
        "count",
        "is_complete",
        "remarks",
    )

    def __init__(self, connection: Connection, topic: str, *, read_committed: bool) -> None:
        self._connection = connection
        self._admin: Admin = connection.open_admin()
        self._topic = topic
        self._read_committed = read_committed
        self._consumer: Consumer | None = None
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
        with self._connection.failing(topic=self._topic):
            chosen = self._choose(partitions)
            first = self._offsets(chosen, "earliest")
            last = self._offsets(chosen, "latest")
            ranges = {number: Range(first[number], last[number]) for number in chosen}
            self._starts = self._find_starts(ranges, start)
        self._ends = {partition: available.end for partition, available in ranges.items()}
        return {p: Range(first, self._ends[p]) for p, first in self._starts.items()}

    def begin(self, starts: Mapping[int, int]) -> None:
        """Read these located partitions from these offsets on."""
        from millstream.client.consumer.consumer import Consumer

        self._starts = dict(starts)
        with self._connection.failing(topic=self._topic):
            self._consumer = Consumer(
                self._connection.servers,
                topics=[self._topic],
                # Other partitions of the topic start at their end, and are paused then.
                auto_offset_reset="latest",
                on_assign=self._seek,
                config=self._config() | {"auto.offset.reset": "earliest"},
            )
            for each in self._consumer.assignment:
                if each.partition not in self._starts:
                    self._consumer.pause(*each)

    def _seek(self, consumer: Consumer, partitions: list[Partition]) -> None:
        for each in partitions:
            if each.partition in self._starts:
                consumer.seek(*each, offset=self._starts[each.partition])

    def _config(self) -> dict[str, Any]:
        isolation = "read_committed" if self._read_committed else "read_uncommitted"
        return self._connection.client_config() | {
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }

    def _choose(self, partitions: list[int] | None) -> list[int]:
        found = self._admin.describe_topics([self._topic], elr=False)[self._topic]
        if isinstance(found, Exception):
            raise self._connection.failure(found, topic=self._topic)
        existing = [each.partition for each in found.partitions]
        if not partitions:
            return existing
        for partition in partitions:
            if partition not in existing:
                count = counted(len(existing), "partition")
                raise CommandError(
                    ExitCode.NOT_FOUND, f"topic {self._topic!r} has {count}, numbered from 0."
                )
        return sorted(set(partitions))

    def _offsets(self, numbers: list[int], at: OffsetAt) -> dict[int, int]:
        from millstream.client.record import Partition

        wanted = {Partition(self._topic, number): at for number in numbers}
        found = {}
        for each, offset in self._admin.list_offsets(
            wanted, read_committed=self._read_committed
        ).items():
            if isinstance(offset, Exception):
                raise self._connection.failure(offset, topic=self._topic)
            found[each.partition] = offset
        return found

    def _find_starts(self, ranges: dict[int, Range], start: Start) -> dict[int, int]:
        if start.from_beginning:
            return {partition: available.start for partition, available in ranges.items()}
        if start.since_ms is not None:
            found = self._offsets(list(ranges), start.since_ms)
            # A negative offset means that no record is at or after that time.
            return {p: found[p] if found[p] >= 0 else ranges[p].end for p in ranges}
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

    def messages(self, max_messages: int | None, follow: bool) -> Iterator[list[TextMessage]]:
        """Yield batches as they arrive, until a limit is reached."""
        pending = self._unfinished()
        while (max_messages is None or self.count < max_messages) and (pending or follow):
            if batch := self._next_batch(max_messages, None if follow else pending):
                yield batch

    def sample(self, seconds_max: float) -> Iterator[list[TextMessage]]:
        """Yield batches as they arrive, up to the end offsets or for `seconds_max`."""
        deadline = time.monotonic() + seconds_max
        pending = self._unfinished()
        while pending and time.monotonic() < deadline:
            if batch := self._next_batch(None, pending):
                yield batch
        self.is_complete = not pending

    @property
    def total(self) -> int:
        """The number of offsets from the starts to the ends."""
        return sum(max(self._ends[p] - first, 0) for p, first in self._starts.items())

    def _unfinished(self) -> set[int]:
        return {p for p, first in self._starts.items() if first < self._ends[p]}

    def _next_batch(self, max_messages: int | None, pending: set[int] | None) -> list[TextMessage]:
        """Return the messages that arrived, up to the limit; empty if none arrived in time.

        Partitions that are read to their end leave `pending`."""
        assert self._consumer is not None
        room = _BATCH_MESSAGES if max_messages is None else max_messages - self.count
        with self._connection.failing(topic=self._topic):
            records = self._consumer.poll(min(room, _BATCH_MESSAGES), _POLL_S)
        batch = [_message(record) for record in records]
        if pending is not None:
            batch = [each for each in batch if self._is_before_end(each, pending)]
            pending.difference_update(each.partition for each in self._consumer.ended)
        self.count += len(batch)
        return batch

    def _is_before_end(self, message: TextMessage, pending: set[int]) -> bool:
        end = self._ends[message.partition]
        if message.offset >= end - 1:
            pending.discard(message.partition)
        return message.offset < end

    def close(self) -> None:
        """Close the clients."""
        if self._consumer is not None:
            self._consumer.close()
        self._admin.close()


def _message(record: Record) -> TextMessage:
    return TextMessage(
        record.raw_key,
        record.raw_value,
        list(record.headers),
        record.timestamp,
        record.topic,
        record.partition,
        record.offset,
    )

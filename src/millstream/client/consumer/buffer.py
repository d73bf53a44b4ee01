"""Records between librdkafka and the application. Pure.

    pending   fetched, not handed out
    paused    the same, of paused partitions
    current   the batch that was handed out last

A batch is handed out as a whole, or record by record through an iterator. The records that the
iterator returned are handed out; the rest can be recalled. Both sides use the same list iterator,
whose steps are atomic. So a record is either handed out or recalled, also when a rebalance recalls
on another thread.

Records leave the buffer when they are handed out, or by `drop`, which only `Positions` calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint

from confluent_kafka import Message

from millstream.client.record import Partition, Records


class PolledBatch:
    """A batch that was handed out."""

    __slots__ = ("_end", "_iterator", "_messages", "excluded")

    def __init__(self, messages: list[Message]) -> None:
        #: Never changes: the application's `Records` share this list.
        self._messages = messages
        self._iterator: Iterator[Message] | None = None
        #: The end of the handed-out records, once the rest was recalled.
        self._end: int | None = None
        #: Partitions that were revoked or moved since. Their records no longer count as processed.
        self.excluded: dict[Partition, None] = {}

    def iterate(self, records: Records) -> Iterator[Message]:
        """Hand out the records one by one from now on. Empty if `records` are not this batch."""
        if self._iterator is not None or self._end is not None or not records.is_of(self._messages):
            return iter(())
        self._iterator = iter(self._messages)
        return self._iterator

    def recall(self) -> list[Message]:
        """Return the records that were not handed out, and end the iteration."""
        if self._iterator is None or self._end is not None:
            return []
        rest = list(self._iterator)
        self._end = len(self._messages) - len(rest)
        return rest

    def returned(self) -> list[Message]:
        """Return the records that were handed out."""
        if self._end is not None:
            return self._messages[: self._end]
        if self._iterator is None:
            return self._messages
        return self._messages[: len(self._messages) - length_hint(self._iterator)]

    def rest(self) -> list[Message]:
        """Return the records that an iteration has not reached."""
        if self._iterator is None or self._end is not None:
            return []
        return self._messages[len(self._messages) - length_hint(self._iterator) :]

    def committable(self) -> list[Message]:
        """Return the records that count as processed when the application polls again."""
        returned = self.returned()
        if not self.excluded:
            return returned
        return [each for each in returned if partition_of(each) not in self.excluded]

    def fail(self) -> None:
        """Exclude the last record of an iteration, or the whole batch: the application failed at
        it."""
        returned = self.returned()
        self._end = max(0, len(returned) - 1) if self._iterator is not None else 0


class Buffer:
    """The fetched records of a consumer, and the batch that was handed out last."""

    def __init__(self) -> None:
        self.pending: list[Message] = []
        self.current = PolledBatch([])
        #: Has an entry for every paused partition, also without fetched records.
        self._paused: dict[Partition, list[Message]] = {}

    def add(self, messages: list[Message]) -> None:
        """Add fetched records behind all others of their partitions."""
        if not self._paused:
            self.pending += messages
            return
        for message in messages:
            self._paused.get(partition_of(message), self.pending).append(message)

    def hand_out(self, count_max: int) -> list[Message]:
        """Make the first pending records the current batch, and return them."""
        batch = self.pending[:count_max]
        del self.pending[:count_max]
        self.current = PolledBatch(batch)
        return batch

    def recall(self) -> bool:
        """Make the rest of the current batch pending again. Returns whether there was any.

        None of its partitions is paused: a recall precedes `pause`.
        """
        rest = self.current.recall()
        self.pending[:0] = rest
        return bool(rest)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hold back the records of these partitions."""
        for partition in partitions:
            self._paused.setdefault(partition, [])
        pending, self.pending = self.pending, []
        self.add(pending)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Make the held records of these partitions pending again."""
        self.pending[:0] = [
            message for partition in partitions for message in self._paused.pop(partition, [])
        ]

    def next_offset(self, partition: Partition) -> int | None:
        """Return the offset of the partition's first record that was not handed out."""
        for messages in (self.current.rest(), self._paused.get(partition, ()), self.pending):
            for message in messages:
                if partition_of(message) == partition:
                    return message.offset()
        return None

    def drop(self, partition: Partition) -> None:
        """Drop the fetched records of a partition. A paused partition stays paused."""
        self.pending = [each for each in self.pending if partition_of(each) != partition]
        if partition in self._paused:
            self._paused[partition] = []

    def forget(self, partition: Partition) -> None:
        """Drop the fetched records of a partition, and that it was paused."""
        self.drop(partition)
        self._paused.pop(partition, None)


def partition_of(message: Message) -> Partition:
    """Return the partition of a message."""
    return Partition(message.topic() or "", message.partition() or 0)

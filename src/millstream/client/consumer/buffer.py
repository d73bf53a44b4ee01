"""Records between librdkafka and the application. Pure.

pending     fetched, not handed out
held        the same, of paused partitions
in hand     the last batch that was handed out

A batch is handed out as a whole, or one by one through an iterator. What the iterator has returned
is handed out; the rest can be recalled. Both ends take records from the same list iterator, whose
steps are atomic, so a record is either handed out or recalled, also when a rebalance recalls on
another thread.

Records leave the buffer when they are handed out, or by `drop`, which only `Reading` calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint

from confluent_kafka import Message

from millstream.client.record import Partition, Records


class Hand:
    """A batch that was handed out."""

    __slots__ = ("_end", "_messages", "_walk", "gone")

    def __init__(self, messages: list[Message]) -> None:
        #: Never changes: the application's `Records` have the same list.
        self._messages = messages
        self._walk: Iterator[Message] | None = None
        #: Where the handed out records end, once the rest was recalled.
        self._end: int | None = None
        #: Partitions that were revoked or moved since: their records no longer count as processed.
        self.gone: dict[Partition, None] = {}

    def walk(self, records: Records) -> Iterator[Message]:
        """Hand out the records one by one from now on. Empty if `records` are not this batch."""
        if self._walk is not None or self._end is not None or not records.is_of(self._messages):
            return iter(())
        self._walk = iter(self._messages)
        return self._walk

    def recall(self) -> list[Message]:
        """Take back the records that were not handed out; the walk ends."""
        if self._walk is None or self._end is not None:
            return []
        rest = list(self._walk)
        self._end = len(self._messages) - len(rest)
        return rest

    def given(self) -> list[Message]:
        """The records that were handed out."""
        if self._end is not None:
            return self._messages[: self._end]
        if self._walk is None:
            return self._messages
        return self._messages[: len(self._messages) - length_hint(self._walk)]

    def counted(self) -> list[Message]:
        """Those of `given` that count as processed when the application asks for more."""
        given = self.given()
        if not self.gone:
            return given
        return [each for each in given if partition_of(each) not in self.gone]

    def fail(self) -> None:
        """Do not count what the application failed at: the last record of a walk, or the batch."""
        given = self.given()
        self._end = max(0, len(given) - 1) if self._walk is not None else 0


class Buffer:
    def __init__(self) -> None:
        self.pending: list[Message] = []
        self.hand = Hand([])
        #: Every paused partition has an entry, also while nothing of it was fetched.
        self._held: dict[Partition, list[Message]] = {}

    def add(self, messages: list[Message]) -> None:
        """Add fetched records behind all others of their partitions."""
        if not self._held:
            self.pending += messages
            return
        for message in messages:
            self._held.get(partition_of(message), self.pending).append(message)

    def hand_out(self, count_max: int) -> list[Message]:
        taken = self.pending[:count_max]
        del self.pending[:count_max]
        self.hand = Hand(taken)
        return taken

    def recall(self) -> bool:
        """Make pending again what was not handed out of the batch in hand; whether there was any.

        No partition of it is held: `hold` is preceded by a recall.
        """
        rest = self.hand.recall()
        self.pending[:0] = rest
        return bool(rest)

    def hold(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._held.setdefault(partition, [])
        pending, self.pending = self.pending, []
        self.add(pending)

    def release(self, partitions: Iterable[Partition]) -> None:
        self.pending[:0] = [
            message for partition in partitions for message in self._held.pop(partition, [])
        ]

    def drop(self, partition: Partition) -> None:
        """Forget the fetched records of a partition. A paused partition stays paused."""
        self.pending = [each for each in self.pending if partition_of(each) != partition]
        if partition in self._held:
            self._held[partition] = []

    def forget(self, partition: Partition) -> None:
        """Forget the fetched records of a partition, and that it was paused."""
        self.drop(partition)
        self._held.pop(partition, None)


def partition_of(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)

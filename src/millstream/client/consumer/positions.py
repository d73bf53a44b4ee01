"""Where a consumer is in each of its partitions. Pure, and the one owner of every position.

    committed <= base <= processed <= handed out <= pending <= librdkafka's position

Fetched records of a partition follow each other without a gap: the first pending record is the one
behind the last that was handed out, and librdkafka goes on behind the last pending one. Three calls
drop fetched records, and each says where the partition goes on:

    seek      at the offset that the application chose
    rewind    at the first record that was handed out and not committed
    leave     nowhere: the partition was revoked

`seek` and `rewind` leave a move: librdkafka has to be sent to that offset. Until that has happened
(`moved`), records that still arrive from the old position are dropped. A move that failed is
carried out later; it is never forgotten, so nothing is skipped.

The lock is held while state changes, never while librdkafka is called. So the event loop may ask
for `offsets` at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Message

from millstream.client.consumer.buffer import Buffer, Hand, partition_of
from millstream.client.consumer.progress import Progress
from millstream.client.record import Partition, Records
from millstream.client.setting import DeliveryMode


class Reading:
    """`topic` is the topic of all records, if there is only one."""

    def __init__(self, delivery: DeliveryMode, topic: str | None = None) -> None:
        self._delivery = delivery
        self._lock = threading.Lock()
        self._buffer = Buffer()
        self._progress = Progress(topic)
        #: Where librdkafka has to be sent before it may read on.
        self._moves: dict[Partition, int] = {}
        #: How many pending records were committed before they are handed out.
        self._cleared = 0
        #: Partitions that were revoked while their records were in hand and not committed.
        self._left: dict[Partition, None] = {}

    # Records in and out

    @property
    def has_pending(self) -> bool:
        return bool(self._buffer.pending)

    @property
    def is_in_hand(self) -> bool:
        """Whether the application has records that it may not be done with."""
        return bool(self._buffer.hand.given())

    @property
    def has_cleared(self) -> bool:
        """Whether records may be handed out that had to be committed before."""
        return self._cleared > 0

    def accept(self, messages: list[Message]) -> None:
        """Take in fetched records."""
        with self._lock:
            if self._moves:
                messages = [each for each in messages if partition_of(each) not in self._moves]
            self._buffer.add(messages)

    def peek(self, count_max: int) -> list[Message]:
        """The records that `hand_out` would hand out."""
        return self._buffer.pending[:count_max]

    def clear(self, messages: list[Message]) -> None:
        """These, the first pending records, were committed: they may be handed out."""
        with self._lock:
            self._cleared = len(messages)
            self._progress.hand_out(messages)

    def hand_out(self, count_max: int) -> list[Message]:
        """Hand out pending records; those before count as processed.

        At most once hands out nothing that was not committed before.
        """
        with self._lock:
            self._settle()
            if self._delivery == "at_most_once":
                count_max = min(count_max, self._cleared)
                self._cleared -= count_max
            taken = self._buffer.hand_out(count_max)
            if self._delivery == "exactly_once":
                self._progress.hand_out(taken)
            return taken

    def walk(self, records: Records) -> Iterator[Message]:
        """Hand out the batch in hand one by one: records not reached yet are not handed out."""
        with self._lock:
            return self._buffer.hand.walk(records)

    def recall(self) -> None:
        """Make the records pending that a walk has not reached. The walk ends."""
        with self._lock:
            self._recall()

    def settle(self) -> None:
        """The application is done with what was handed out."""
        with self._lock:
            self._settle()

    def fail(self) -> None:
        """The application failed: the last record, or the last batch, was not processed."""
        with self._lock:
            self._recall()
            self._buffer.hand.fail()

    # Commits

    def offsets(self) -> dict[Partition, int]:
        """The next offsets after what was handed out and is not committed."""
        with self._lock:
            return self._progress.uncommitted(self._buffer.hand.counted())

    def processed(self) -> dict[Partition, int]:
        """The same without the batch in hand."""
        with self._lock:
            return self._progress.uncommitted()

    def handed_out(self) -> dict[Partition, int]:
        """The next offsets after what was handed out, where another offset is committed."""
        with self._lock:
            return self._progress.handed_out(self._buffer.hand.counted())

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        with self._lock:
            self._progress.committed(offsets, self._buffer.hand.counted())

    def take_left(self) -> list[Partition]:
        """Partitions that were revoked with records in hand; each is named once."""
        with self._lock:
            left, self._left = self._left, {}
            return sorted(left)

    # Moves

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on at `offset`. Records in hand are not committed for this partition any more."""
        with self._lock:
            self._recall()
            self._part_with(partition)
            self._buffer.drop(partition)
            self._moves[partition] = offset

    def rewind(self) -> None:
        """Go back to the last commit, in every partition of which something was handed out."""
        with self._lock:
            self._recall()
            self._buffer.hand = Hand([])
            for partition, offset in self._progress.rewind().items():
                self._buffer.drop(partition)
                self._moves[partition] = offset

    def leave(self, partitions: Iterable[Partition]) -> None:
        """The partitions were revoked."""
        with self._lock:
            self._recall()
            in_hand = self._buffer.hand.counted()
            uncommitted = self._progress.uncommitted(in_hand) if in_hand else {}
            for partition in partitions:
                if partition in uncommitted and self._delivery == "at_least_once":
                    self._left[partition] = None
                self._part_with(partition)
                self._buffer.forget(partition)
                self._moves.pop(partition, None)

    def move(self) -> tuple[Partition, int] | None:
        """A move that has to be carried out."""
        with self._lock:
            return next(iter(self._moves.items()), None)

    def moved(self, partition: Partition, offset: int) -> None:
        """librdkafka reads on there, unless the partition has to go elsewhere by now."""
        with self._lock:
            if self._moves.get(partition) == offset:
                del self._moves[partition]

    # Pauses

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing more of these partitions."""
        with self._lock:
            self._recall()
            self._buffer.hold(partitions)

    def release(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            self._recall()
            self._buffer.release(partitions)

    # With the lock held

    def _recall(self) -> None:
        self._cleared = 0
        self._buffer.recall()

    def _settle(self) -> None:
        if self._buffer.recall():
            self._cleared = 0
        self._progress.add(self._buffer.hand.counted())
        self._buffer.hand = Hand([])

    def _part_with(self, partition: Partition) -> None:
        self._progress.forget([partition])
        self._buffer.hand.gone[partition] = None

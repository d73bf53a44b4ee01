"""Where a consumer is in each of its partitions. Pure, and the one owner of every position.

    committed <= base <= processed <= handed out <= pending <= librdkafka's position

Fetched records of a partition have no gaps: the first pending record follows the last one that was
handed out, and librdkafka continues after the last pending one. Three calls drop fetched records,
and each sets where the partition continues:

    seek      at the offset that the application chose
    rewind    at the first record that was handed out and not committed
    revoke    nowhere: another member has the partition

`seek` and `rewind` leave a pending seek: librdkafka has to be moved to that offset. Until
`seek_done`, records that still arrive from the old position are dropped. A seek that failed is
retried later. It is never forgotten, so no record is skipped.

The lock is held while state changes, never during a call of librdkafka. So the event loop may call
`offsets` at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Message

from millstream.client.consumer.buffer import Buffer, PolledBatch, partition_of
from millstream.client.consumer.progress import CommitProgress
from millstream.client.record import Partition, Records
from millstream.client.setting import DeliveryMode


class Positions:
    """The positions of all partitions. `topic` is the only topic of all records, if there is
    one."""

    def __init__(self, delivery: DeliveryMode, topic: str | None = None) -> None:
        self._delivery = delivery
        self._lock = threading.Lock()
        self._buffer = Buffer()
        self._progress = CommitProgress(topic)
        #: Pending seeks: the offsets to which librdkafka has to be moved before it continues.
        self._seeks: dict[Partition, int] = {}
        #: The target of the last seek of each partition.
        self._sought: dict[Partition, int] = {}
        #: How many of the first pending records are committed (at most once).
        self._precommitted = 0
        #: Partitions that were revoked while the current batch had uncommitted records of them.
        self._revoked: dict[Partition, None] = {}

    def mix_topics(self) -> None:
        """Expect records of more than one topic from now on."""
        with self._lock:
            self._progress.topic = None

    # Records

    @property
    def has_pending(self) -> bool:
        """Whether there are records to hand out."""
        return bool(self._buffer.pending)

    @property
    def has_current_batch(self) -> bool:
        """Whether the application has records that it may still process."""
        return bool(self._buffer.current.returned())

    @property
    def has_precommitted(self) -> bool:
        """Whether pending records may be handed out because they are committed (at most once)."""
        return self._precommitted > 0

    def accept(self, messages: list[Message]) -> None:
        """Add fetched records."""
        with self._lock:
            if self._seeks:
                messages = [each for each in messages if partition_of(each) not in self._seeks]
            self._buffer.add(messages)

    def peek(self, count_max: int) -> list[Message]:
        """Return the records that `hand_out` would hand out."""
        return self._buffer.pending[:count_max]

    def mark_precommitted(self, messages: list[Message]) -> None:
        """Let the first pending records be handed out: they are committed."""
        with self._lock:
            self._precommitted = len(messages)
            self._progress.hand_out(messages)

    def hand_out(self, count_max: int) -> list[Message]:
        """Hand out pending records. Those handed out before count as processed.

        At most once hands out only records that are committed.
        """
        with self._lock:
            self._mark_processed()
            if self._delivery == "at_most_once":
                count_max = min(count_max, self._precommitted)
                self._precommitted -= count_max
            batch = self._buffer.hand_out(count_max)
            if self._delivery == "exactly_once":
                self._progress.hand_out(batch)
            return batch

    def iterate(self, records: Records) -> Iterator[Message]:
        """Hand out the current batch one by one: records not reached yet are not handed out."""
        with self._lock:
            return self._buffer.current.iterate(records)

    def recall(self) -> None:
        """Make the records pending again that an iteration has not reached. The iteration ends."""
        with self._lock:
            self._recall()

    def mark_processed(self) -> None:
        """Count the current batch as processed."""
        with self._lock:
            self._mark_processed()

    def fail(self) -> None:
        """Count the last record, or the last batch, as not processed."""
        with self._lock:
            self._recall()
            self._buffer.current.fail()

    # Commits

    def offsets(self) -> dict[Partition, int]:
        """Return the next offsets after the handed-out records that are not committed."""
        with self._lock:
            return self._progress.uncommitted(self._buffer.current.committable())

    def processed(self) -> dict[Partition, int]:
        """As `offsets`, without the current batch."""
        with self._lock:
            return self._progress.uncommitted()

    def handed_out(self) -> dict[Partition, int]:
        """Return the next offsets after handed-out records, where another offset is committed."""
        with self._lock:
            return self._progress.handed_out(self._buffer.current.committable())

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        """Note that these offsets are committed."""
        with self._lock:
            self._progress.committed(offsets, self._buffer.current.committable())

    def take_revoked(self) -> list[Partition]:
        """Return partitions that were revoked with records in the current batch, each once."""
        with self._lock:
            revoked, self._revoked = self._revoked, {}
            return sorted(revoked)

    # Seeks

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue at `offset`. The current batch is no longer committed for this partition."""
        with self._lock:
            self._recall()
            self._exclude(partition)
            self._buffer.drop(partition)
            self._seeks[partition] = offset

    def rewind(self) -> None:
        """Return to the last commit, in every partition of which records were handed out."""
        with self._lock:
            self._recall()
            self._buffer.current = PolledBatch([])
            for partition, offset in self._progress.rewind().items():
                self._buffer.drop(partition)
                self._seeks[partition] = offset

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that another member has now."""
        with self._lock:
            self._recall()
            in_hand = self._buffer.current.committable()
            uncommitted = self._progress.uncommitted(in_hand) if in_hand else {}
            for partition in partitions:
                if partition in uncommitted and self._delivery == "at_least_once":
                    self._revoked[partition] = None
                self._exclude(partition)
                self._buffer.forget(partition)
                self._seeks.pop(partition, None)
                self._sought.pop(partition, None)

    def next_offset(self, partition: Partition) -> int | None:
        """Return where the application continues in a partition; None if only librdkafka knows.

        The target of a seek may be one of librdkafka's negative numbers for the ends.
        """
        with self._lock:
            if partition in self._seeks:
                return self._seeks[partition]
            return self._buffer.next_offset(partition)

    def sought(self, partition: Partition) -> int | None:
        """Return the target of the partition's last seek, or None."""
        with self._lock:
            return self._sought.get(partition)

    def next_seek(self) -> tuple[Partition, int] | None:
        """Return a pending seek, or None."""
        with self._lock:
            return next(iter(self._seeks.items()), None)

    def seek_done(self, partition: Partition, offset: int) -> None:
        """Remove a pending seek, unless the partition has another target meanwhile."""
        with self._lock:
            if self._seeks.get(partition) == offset:
                del self._seeks[partition]
                self._sought[partition] = offset

    # Pauses

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out no records of these partitions."""
        with self._lock:
            self._recall()
            self._buffer.pause(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out records of these partitions again."""
        with self._lock:
            self._recall()
            self._buffer.resume(partitions)

    # With the lock held

    def _recall(self) -> None:
        self._precommitted = 0
        self._buffer.recall()

    def _mark_processed(self) -> None:
        if self._buffer.recall():
            self._precommitted = 0
        self._progress.add(self._buffer.current.committable())
        self._buffer.current = PolledBatch([])

    def _exclude(self, partition: Partition) -> None:
        self._progress.forget([partition])
        self._buffer.current.excluded[partition] = None

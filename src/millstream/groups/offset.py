"""The committed offsets of one group: commit, fetch, delete, expire. Pure.

The group decides who may commit, and the caller which topics exist. Every change returns the
records that persist it; replaying them (`restore`) restores the offsets.

An offset that is committed inside a transaction is pending until the transaction ends
(`complete_transaction`). If several transactions commit an offset for one partition, the last
commit wins, in whatever order the transactions end. A later commit drops earlier pending ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.coordination.effects import LogRecord
from millstream.groups import group_record as record
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.group import Group
from millstream.groups.group_record import NO_EXPIRY
from millstream.model.topic import NO_TOPIC_ID, TopicId


class GroupOffsets:
    """The committed and pending offsets of one group."""

    __slots__ = ("_pending", "_serial", "_topics", "group_id")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: By topic and partition. Every topic has at least one partition.
        self._topics: dict[str, dict[int, CommittedOffset]] = {}
        #: By producer id, then topic and partition: the serial number of the commit, and the
        #: offset. Every producer has at least one offset.
        self._pending: dict[int, dict[tuple[str, int], tuple[int, CommittedOffset]]] = {}
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._topics) or bool(self._pending)

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    @property
    def topics(self) -> Iterable[str]:
        return self._topics.keys()

    def partitions(self, topic: str) -> Iterable[int]:
        return self._topics.get(topic, {}).keys()

    def get(
        self, topic: str, partition: int, topic_id: TopicId | None = None
    ) -> CommittedOffset | None:
        """Return the committed offset; None if there is none, or if it belongs to a deleted topic
        of the same name with another id than `topic_id`."""
        partitions = self._topics.get(topic)
        committed = partitions.get(partition) if partitions is not None else None
        if (
            committed is not None
            and topic_id is not None
            and committed.topic_id not in (topic_id, NO_TOPIC_ID)
        ):
            return None
        return committed

    def commit(self, topic: str, partition: int, committed: CommittedOffset) -> LogRecord:
        """Commit an offset; return its record."""
        self._drop_pending(topic, partition)
        self._put(topic, partition, committed)
        return self._record(topic, partition, committed)

    def _record(self, topic: str, partition: int, committed: CommittedOffset) -> LogRecord:
        return record.encode(
            self._key(topic, partition),
            record.OffsetCommitValue(
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                commit_timestamp=committed.commit_ms,
                expire_timestamp=committed.expire_ms,
                topic_id=committed.topic_id,
            ),
        )

    # Transactions

    def commit_pending(
        self, producer_id: int, topic: str, partition: int, committed: CommittedOffset
    ) -> LogRecord:
        """Commit an offset as part of a producer's transaction; return its record."""
        self._pend(producer_id, topic, partition, committed)
        return self._record(topic, partition, committed)

    def complete_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or drop the offsets of a producer's transaction. The marker in the log persists
        this, so there is no record."""
        pending = self._pending.pop(producer_id, {})
        if is_commit:
            for (topic, partition), (serial, committed) in pending.items():
                self._drop_pending(topic, partition, serial)
                self._put(topic, partition, committed)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether a transaction that is still open may change the offset."""
        key = (topic, partition)
        return any(key in pending for pending in self._pending.values())

    def _pend(
        self, producer_id: int, topic: str, partition: int, committed: CommittedOffset
    ) -> None:
        self._serial += 1
        pending = self._pending.setdefault(producer_id, {})
        pending[topic, partition] = (self._serial, committed)

    def _drop_pending(self, topic: str, partition: int, serial: int | None = None) -> bool:
        """Drop pending offsets, or only those before `serial`; return whether there were any."""
        key = (topic, partition)
        has_dropped = False
        for producer_id, pending in list(self._pending.items()):
            if key in pending and (serial is None or pending[key][0] < serial):
                has_dropped = True
                del pending[key]
                if not pending:
                    del self._pending[producer_id]
        return has_dropped

    # Deletion and expiry

    def delete(self, topic: str, partition: int) -> list[LogRecord]:
        """Delete one offset; return its tombstone, or nothing if there is no offset."""
        if not self._drop(topic, partition):
            return []
        return [record.encode(self._key(topic, partition), None)]

    def delete_topic(self, topic: str) -> list[LogRecord]:
        return [
            tombstone
            for partition in self._known_partitions(topic)
            for tombstone in self.delete(topic, partition)
        ]

    def delete_all(self) -> list[LogRecord]:
        pending = {topic for keys in self._pending.values() for topic, _ in keys}
        topics = [*self._topics, *(pending - self._topics.keys())]
        return [tombstone for topic in topics for tombstone in self.delete_topic(topic)]

    def _known_partitions(self, topic: str) -> list[int]:
        """Return the partitions with committed or pending offsets."""
        found = set(self._topics.get(topic, ()))
        for keys in self._pending.values():
            found.update(partition for name, partition in keys if name == topic)
        return sorted(found)

    def expire(self, now_ms: int, retention_ms: int, group: Group) -> list[LogRecord]:
        """Delete offsets of unsubscribed topics that are older than the retention; return the
        tombstones. In an empty group no topic is subscribed, and the offsets age from the time at
        which the group became empty."""
        tombstones: list[LogRecord] = []
        for topic in [topic for topic in self._topics if not group.is_subscribed(topic)]:
            for partition, committed in list(self._topics[topic].items()):
                idle_since_ms = group.offset_idle_since(committed.commit_ms)
                if idle_since_ms is None or self.is_unstable(topic, partition):
                    continue
                due_ms = idle_since_ms + retention_ms
                if committed.expire_ms != NO_EXPIRY:
                    due_ms = committed.expire_ms
                if now_ms >= due_ms:
                    tombstones += self.delete(topic, partition)
        return tombstones

    def restore(
        self,
        key: record.OffsetCommitKey,
        value: record.OffsetCommitValue | None,
        producer_id: int = -1,
    ) -> None:
        """Apply a record of the log, pending if it is part of a producer's transaction."""
        if value is None:
            self._drop(key.topic, key.partition)
            return
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
        )
        if producer_id >= 0:
            self._pend(producer_id, key.topic, key.partition, committed)
        else:
            self._drop_pending(key.topic, key.partition)
            self._put(key.topic, key.partition, committed)

    def _put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        partitions = self._topics.get(topic)
        if partitions is None:
            partitions = self._topics[topic] = {}
        partitions[partition] = committed

    def _drop(self, topic: str, partition: int) -> bool:
        was_pending = self._drop_pending(topic, partition)
        partitions = self._topics.get(topic)
        if partitions is None or partitions.pop(partition, None) is None:
            return was_pending
        if not partitions:
            del self._topics[topic]
        return True

    def _key(self, topic: str, partition: int) -> record.OffsetCommitKey:
        return record.OffsetCommitKey(group_id=self.group_id, topic=topic, partition=partition)

"""The committed offsets of one group: commit, fetch, delete, expire. Pure.

Who may commit is the group's to say, and which topics exist the caller's. Every change comes with
the records that make it last; replaying them (`restore`) gives the same offsets again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from millstream.groups import record
from millstream.groups.effects import LogRecord
from millstream.groups.group import Group
from millstream.groups.record import NO_EXPIRY
from millstream.model.topic import TopicId

_NO_TOPIC_ID: Final = bytes(16)


class CommittedOffset(NamedTuple):
    """What a group has committed for one partition."""

    offset: int
    #: Of the last record read; -1 if the client did not say.
    leader_epoch: int
    metadata: str
    commit_ms: int
    #: Only old clients set it; then it holds instead of the broker's retention.
    expire_ms: int = NO_EXPIRY
    #: The topic that was meant, so that its offsets do not pass to another of the same name.
    topic_id: TopicId = _NO_TOPIC_ID


class GroupOffsets:
    """See the module's text."""

    __slots__ = ("_topics", "group_id")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: By topic and partition. No topic is without partitions.
        self._topics: dict[str, dict[int, CommittedOffset]] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

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
        """The committed offset; None also if it was of an earlier topic than `topic_id`."""
        partitions = self._topics.get(topic)
        committed = partitions.get(partition) if partitions is not None else None
        if (
            committed is not None
            and topic_id is not None
            and committed.topic_id not in (topic_id, _NO_TOPIC_ID)
        ):
            return None
        return committed

    def commit(self, topic: str, partition: int, committed: CommittedOffset) -> LogRecord:
        self._put(topic, partition, committed)
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

    def delete(self, topic: str, partition: int) -> list[LogRecord]:
        """Forget one offset; nothing happens if there is none."""
        if not self._drop(topic, partition):
            return []
        return [record.encode(self._key(topic, partition), None)]

    def delete_topic(self, topic: str) -> list[LogRecord]:
        return [
            tombstone
            for partition in list(self.partitions(topic))
            for tombstone in self.delete(topic, partition)
        ]

    def delete_all(self) -> list[LogRecord]:
        return [tombstone for topic in list(self._topics) for tombstone in self.delete_topic(topic)]

    def expire(self, now_ms: int, retention_ms: int, group: Group) -> list[LogRecord]:
        """Forget what nobody uses any more: offsets of topics that no member subscribes to, once
        they are older than the retention. An empty group subscribes to nothing, and its offsets
        age from when it became empty."""
        tombstones: list[LogRecord] = []
        for topic in [topic for topic in self._topics if not group.is_subscribed(topic)]:
            for partition, committed in list(self._topics[topic].items()):
                idle_since_ms = group.offset_idle_since(committed.commit_ms)
                if idle_since_ms is None:
                    continue
                due_ms = idle_since_ms + retention_ms
                if committed.expire_ms != NO_EXPIRY:
                    due_ms = committed.expire_ms
                if now_ms >= due_ms:
                    tombstones += self.delete(topic, partition)
        return tombstones

    def restore(self, key: record.OffsetCommitKey, value: record.OffsetCommitValue | None) -> None:
        """Take over one record of the log."""
        if value is None:
            self._drop(key.topic, key.partition)
            return
        self._put(
            key.topic,
            key.partition,
            CommittedOffset(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
                value.topic_id,
            ),
        )

    def _put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        partitions = self._topics.get(topic)
        if partitions is None:
            partitions = self._topics[topic] = {}
        partitions[partition] = committed

    def _drop(self, topic: str, partition: int) -> bool:
        partitions = self._topics.get(topic)
        if partitions is None or partitions.pop(partition, None) is None:
            return False
        if not partitions:
            del self._topics[topic]
        return True

    def _key(self, topic: str, partition: int) -> record.OffsetCommitKey:
        return record.OffsetCommitKey(group_id=self.group_id, topic=topic, partition=partition)

"""An OffsetCommit or TxnOffsetCommit request for one group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.groups.committed_offset import CommittedOffset
from millstream.model.topic import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """Offsets to commit, and the member that commits them. All topics exist."""

    group_id: str
    member_id: str
    instance_id: str | None
    #: The member epoch in a consumer group.
    generation: int
    #: The version of the request.
    version: int
    #: Topic, partition and offset.
    offsets: Sequence[tuple[str, int, CommittedOffset]]
    #: The producer whose transaction the offsets are part of, if any.
    producer: ProducerIdAndEpoch | None = None

    @property
    def is_transactional(self) -> bool:
        return self.producer is not None

    @property
    def is_anonymous(self) -> bool:
        """Whether the request names no member."""
        return self.generation < 0 and not self.member_id and self.instance_id is None

    @property
    def partitions(self) -> Iterator[tuple[TopicId, int]]:
        """The partitions whose offsets are committed."""
        for _, partition, committed in self.offsets:
            yield committed.topic_id, partition

"""Commits of group members, for tests of groups without a coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.offset_commit import OffsetCommit
from millstream.model.sentinel import NO_EPOCH
from millstream.model.topic import NO_TOPIC_ID, TopicId

#: A partition that no member of any test owns.
_UNOWNED = ((NO_TOPIC_ID, 0),)


def commit_of_member(
    member_id: str,
    instance_id: str | None,
    generation: int,
    version: int = 9,
    *,
    partitions: Iterable[tuple[TopicId, int]] = _UNOWNED,
    producer: ProducerIdAndEpoch | None = None,
) -> OffsetCommit:
    """Return a commit of offset 0 in each partition."""
    return OffsetCommit(
        group_id="g",
        member_id=member_id,
        instance_id=instance_id,
        generation=generation,
        version=version,
        offsets=[
            ("t", partition, CommittedOffset(0, NO_EPOCH, "", 0, topic_id=topic_id))
            for topic_id, partition in partitions
        ],
        producer=producer,
    )

"""A committed offset of one partition."""

from __future__ import annotations

from typing import NamedTuple

from millstream.groups.group_record import NO_EXPIRY
from millstream.model.topic import NO_TOPIC_ID, TopicId


class CommittedOffset(NamedTuple):
    """The offset that a group committed for one partition."""

    offset: int
    #: The leader epoch of the last record read; NO_EPOCH if the client did not send one.
    leader_epoch: int
    metadata: str
    commit_ms: int
    #: Only old clients set an expiry. It overrides the broker's retention.
    expire_ms: int = NO_EXPIRY
    #: The id of the topic at the time of the commit. A new topic of the same name does not inherit
    #: the offset.
    topic_id: TopicId = NO_TOPIC_ID

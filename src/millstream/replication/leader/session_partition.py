"""One partition of a follower's fetch session: its position, and what the follower was last sent.

A `SessionPartition` is a `Reader` of its `Partition` while this broker has the partition, and
reports its changes to the session. Event loop only.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from millstream.model.sentinel import NO_OFFSET
from millstream.model.topic import TopicId
from millstream.replication.leader.catch_up_pace import CatchUpPace
from millstream.replication.leader.fetch_position import FetchPosition
from millstream.replication.partition import Partition

SessionKey: TypeAlias = tuple[TopicId, int]


class PartitionObserver(Protocol):
    """The session that changes of a partition are reported to."""

    pace: CatchUpPace

    def touch(self, entry: SessionPartition, *, has_records: bool) -> None: ...


class SessionPartition:
    """One partition in a session."""

    __slots__ = (
        "_session",
        "ahead_until",
        "is_held",
        "is_sent",
        "key",
        "partition",
        "position",
        "sent_high_watermark",
        "sent_log_start_offset",
    )

    def __init__(
        self, session: PartitionObserver, key: SessionKey, position: FetchPosition
    ) -> None:
        self._session = session
        self.key = key
        self.position = position
        self.partition: Partition | None = None
        self.is_sent = False
        #: Whether the pace holds records back.
        self.is_held = False
        #: Monotonic time until which the follower, whose metadata are newer than this broker's,
        #: gets no error; else None.
        self.ahead_until: float | None = None
        self.sent_high_watermark = NO_OFFSET
        self.sent_log_start_offset = NO_OFFSET

    def attach(self, partition: Partition | None) -> None:
        """Observe `partition` instead of the previous one."""
        if partition is self.partition:
            return
        self.detach()
        if partition is not None:
            partition.readers = (*partition.readers, self)
            self.partition = partition

    def detach(self) -> None:
        partition, self.partition = self.partition, None
        if partition is not None:
            partition.readers = tuple(each for each in partition.readers if each is not self)

    def reset_sent(self) -> None:
        """Forget what was sent: the follower has sent its position anew."""
        self.is_sent = False
        self.sent_high_watermark = self.sent_log_start_offset = NO_OFFSET

    @property
    def is_ahead(self) -> bool:
        """Whether the follower has newer metadata of the partition than this broker."""
        partition = self.partition
        return partition is None or self.position.current_leader_epoch > partition.leader_epoch

    @property
    def has_new_start(self) -> bool:
        """Whether the log starts later than the follower knows. DeleteRecords waits for it."""
        known = max(self.sent_log_start_offset, self.position.log_start_offset)
        return self.partition is not None and known < self.partition.log.log_start_offset

    def is_behind(self) -> bool:
        """Whether the follower lacks records of the log."""
        partition = self.partition
        return partition is not None and self.position.offset < partition.log.log_end_offset

    def more_appended(self, size: int) -> None:
        self._session.pace.produced(size)
        self._session.touch(self, has_records=not self.is_held)

    def changed(self) -> None:
        self._session.touch(self, has_records=False)

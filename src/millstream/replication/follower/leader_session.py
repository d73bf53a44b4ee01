"""A fetcher's session with one leader: its partitions, their positions, the next request. Pure.

The counterpart on the leader is `follower_session`.

States of a partition:

    to name   the leader does not know it yet, or its position or leader epoch changed
    named     the leader knows its position; rows of responses are applied
    delayed   the leader returned an error, or applying a row failed: not named before a time, or
              before its metadata change

A row counts only in the response to the request that named the partition last, or to a later one.
Since that request, neither the leader epoch nor the log end of the partition may have changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from millstream.model.sentinel import INT32_MAX
from millstream.model.topic import TopicId
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import INITIAL_EPOCH, NO_SESSION, FetchRequest

Key: TypeAlias = tuple[TopicId, int]

#: Later than every time of a clock.
NEVER: Final = float("inf")


class FetchLimits(NamedTuple):
    """The limits that each Fetch request sets, as configured."""

    partition_bytes_max: int = 1024 * 1024
    bytes_max: int = 10 * 1024 * 1024
    bytes_min: int = 1
    wait_ms_max: int = 500


class FollowedPartition:
    """One partition that this broker follows, and the position that its leader last got."""

    __slots__ = (
        "delayed_until",
        "failures",
        "key",
        "named_epoch",
        "named_in",
        "named_offset",
        "partition",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        # Load the epochs now. The file may have an epoch in which this broker led and wrote
        # nothing.
        _ = partition.log.epochs
        partition.log.drop_unused_epochs()
        self.key: Key = (partition.log.topic_id, partition.topic_partition.partition)
        self.named_offset = -1
        self.named_epoch = -1
        #: Number of the request that named it last.
        self.named_in = 0
        #: Monotonic time; 0 while it is not delayed.
        self.delayed_until = 0.0
        #: Failures in a row.
        self.failures = 0

    def name(self, number: int, partition_bytes_max: int) -> FetchRequest.Topic.Partition:
        log = self.partition.log
        self.named_in = number
        self.named_offset = log.log_end_offset
        self.named_epoch = self.partition.leader_epoch
        return FetchRequest.Topic.Partition(
            partition=self.key[1],
            current_leader_epoch=self.named_epoch,
            fetch_offset=self.named_offset,
            last_fetched_epoch=log.last_record_epoch,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=partition_bytes_max,
        )

    @property
    def is_as_named(self) -> bool:
        partition = self.partition
        return (
            partition.log.log_end_offset == self.named_offset
            and partition.leader_epoch == self.named_epoch
            and not partition.is_leader
        )


class LeaderSession:
    """The session with one leader. `reset` starts a new one."""

    __slots__ = (
        "_delayed",
        "_epoch",
        "_followed",
        "_forgotten",
        "_limits",
        "_session_id",
        "_to_name",
        "requests",
    )

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._followed: dict[Key, FollowedPartition] = {}
        self._to_name: dict[FollowedPartition, None] = {}
        self._delayed: dict[FollowedPartition, None] = {}
        self._forgotten: set[Key] = set()
        self._session_id = NO_SESSION
        #: Session epoch of the next request.
        self._epoch = INITIAL_EPOCH
        #: Number of requests so far, which is the number of the last one.
        self.requests = 0

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def is_open(self) -> bool:
        """Whether the session id is known, so that a second request can be sent."""
        return self._session_id != NO_SESSION

    @property
    def has_news(self) -> bool:
        return bool(self._to_name or self._forgotten)

    # Partitions

    def add(self, partition: Partition) -> None:
        """Add a partition, or name it again because its metadata changed."""
        key = (partition.log.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            self._drop(key)
            followed = self._followed[key] = FollowedPartition(partition)
            self._forgotten.discard(key)
        followed.delayed_until = 0.0
        followed.failures = 0
        self._delayed.pop(followed, None)
        self._to_name[followed] = None

    def remove(self, key: Key) -> None:
        if self._drop(key):
            self._forgotten.add(key)

    def _drop(self, key: Key) -> bool:
        followed = self._followed.pop(key, None)
        if followed is None:
            return False
        self._to_name.pop(followed, None)
        self._delayed.pop(followed, None)
        return True

    def find(self, key: Key, number: int) -> FollowedPartition | None:
        """Return the partition of a row in the response to request `number`, if the row counts."""
        followed = self._followed.get(key)
        if followed is None or followed.named_in > number or not followed.is_as_named:
            return None
        return followed

    def moved(self, followed: FollowedPartition) -> None:
        """Name a partition in the next request: its log end or start changed."""
        if self._followed.get(followed.key) is followed:
            self._to_name[followed] = None

    def delay(self, followed: FollowedPartition, until: float) -> None:
        if self._followed.get(followed.key) is followed:
            self._to_name.pop(followed, None)
            followed.delayed_until = until
            self._delayed[followed] = None

    def wake_delayed(self, now: float) -> None:
        """Name partitions again whose delay is over."""
        for followed in [each for each in self._delayed if each.delayed_until <= now]:
            self._delayed.pop(followed, None)
            followed.delayed_until = 0.0
            self._to_name[followed] = None

    def delay_left_s(self, now: float) -> float:
        """Return the time until the first delay is over."""
        times = (each.delayed_until for each in self._delayed)
        return max(min(times, default=NEVER) - now, 0.0)

    # Requests and responses

    def reset(self) -> None:
        """Start a new session: name every partition that is not delayed."""
        self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        self._forgotten.clear()
        self._to_name = dict.fromkeys(
            followed for followed in self._followed.values() if followed not in self._delayed
        )

    def opened(self, session_id: int) -> None:
        """Set the session id from the first response."""
        self._session_id = session_id

    def request(self, broker_id: int, broker_epoch: int) -> FetchRequest:
        """Return the next request. It must be sent, because the session epoch counts it."""
        limits = self._limits
        self.requests += 1
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=broker_id, replica_epoch=broker_epoch
            ),
            max_wait_ms=limits.wait_ms_max,
            min_bytes=limits.bytes_min,
            max_bytes=limits.bytes_max,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=self._named(),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=[number])
                for topic_id, number in self._forgotten
            ],
        )
        self._to_name.clear()
        self._forgotten.clear()
        self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1
        return request

    def _named(self) -> list[FetchRequest.Topic]:
        topics: dict[TopicId, FetchRequest.Topic] = {}
        for followed in self._to_name:
            topic_id = followed.key[0]
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchRequest.Topic(topic_id=topic_id)
            topic.partitions.append(followed.name(self.requests, self._limits.partition_bytes_max))
        return list(topics.values())

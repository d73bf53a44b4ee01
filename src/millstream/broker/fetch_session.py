"""Fetch sessions (KIP-227): the partitions that a client fetches, kept between its requests.

A full Fetch with epoch 0 opens a session if there is room. From then on the client sends only
changes, and the response has only partitions that changed. The epoch of a session counts its
requests. A request with another epoch is rejected, and the client starts over with a full Fetch.

The number of sessions is bounded. A new session evicts the least recently used one if that one was
idle for `EVICTION_S`; otherwise the client is served without a session. Sessions are not
persistent.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT32_MAX
from millstream.model.topic import TopicId

EVICTION_S = 120.0


class FetchPartition:
    """One partition that a client fetches, and the offsets of its last response."""

    __slots__ = (
        "current_leader_epoch",
        "last_fetched_epoch",
        "max_bytes",
        "offset",
        "partition",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: TopicId, partition: int) -> None:
        #: The name in the request; empty if the client uses topic ids.
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    @property
    def key(self) -> tuple[str, TopicId, int]:
        return self.topic, self.topic_id, self.partition


class FetchSession:
    """The partitions of one session, in the order in which they are read."""

    __slots__ = ("epoch", "partitions", "session_id", "used_at", "uses_topic_ids")

    def __init__(
        self, session_id: int, wanted: Iterable[FetchPartition], *, uses_topic_ids: bool
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        #: The epoch that the next request must carry.
        self.epoch = 1
        self.used_at = 0.0
        self.partitions = {entry.key: entry for entry in wanted}

    def update(
        self, wanted: Iterable[FetchPartition], forgotten: Iterable[tuple[str, TopicId, int]]
    ) -> None:
        for entry in wanted:
            known = self.partitions.get(entry.key)
            if known is None:
                self.partitions[entry.key] = entry
                continue
            known.offset = entry.offset
            known.max_bytes = entry.max_bytes
            known.current_leader_epoch = entry.current_leader_epoch
            known.last_fetched_epoch = entry.last_fetched_epoch
        for key in forgotten:
            self.partitions.pop(key, None)

    def mark_served(self, keys: Iterable[tuple[str, TopicId, int]]) -> None:
        """Move partitions to the end, so that every partition is read in turn under a small
        limit."""
        for key in keys:
            entry = self.partitions.pop(key, None)
            if entry is not None:
                self.partitions[key] = entry


class FetchSessions:
    """All fetch sessions of a broker."""

    __slots__ = ("_clock", "_random", "_sessions", "_slots_max")

    def __init__(self, slots_max: int, clock: Clock, random: Random) -> None:
        self._slots_max = slots_max
        self._clock = clock
        self._random = random
        #: Sessions by id, least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, wanted: Iterable[FetchPartition], *, uses_topic_ids: bool
    ) -> FetchSession | None:
        """Return a new session; None if there is no room."""
        now = self._clock.monotonic()
        if len(self._sessions) >= self._slots_max and not self._evict_one(now):
            return None
        session_id = self._random.randint(1, INT32_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, INT32_MAX)
        session = FetchSession(session_id, wanted, uses_topic_ids=uses_topic_ids)
        session.used_at = now
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, *, uses_topic_ids: bool) -> FetchSession:
        """Return the session of an incremental request, after advancing its epoch."""
        session = self._sessions.get(session_id)
        if session is None:
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_topic_ids != uses_topic_ids:
            raise BrokerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        session.used_at = self._clock.monotonic()
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def _evict_one(self, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.used_at < EVICTION_S:
            return False
        del self._sessions[oldest.session_id]
        return True

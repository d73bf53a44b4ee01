"""The fetch sessions of all followers that fetch from this broker, one per fetcher.

A fetcher is identified by its client id. A Fetch with epoch 0 opens its session and replaces the
fetcher's earlier one. Only registered brokers get sessions, at most `FETCHERS_MAX` each. Sessions
are closed when their broker leaves the cluster.
"""

from __future__ import annotations

from typing import Final

from millstream.env.random import Random
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT32_MAX
from millstream.replication.leader.follower_session import FollowerSession, LeaderContext
from millstream.wire.messages.fetch import INITIAL_EPOCH, FetchRequest

#: Largest number of sessions of one follower. Beyond it the oldest one is closed.
FETCHERS_MAX: Final = 32


class FollowerSessions:
    """Sessions by broker and fetcher. Event loop only."""

    __slots__ = ("_context", "_random", "_sessions")

    def __init__(self, context: LeaderContext, random: Random) -> None:
        self._context = context
        self._random = random
        #: By broker, then by fetcher.
        self._sessions: dict[int, dict[str, FollowerSession]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def of(self, broker_id: int) -> list[FollowerSession]:
        return list(self._sessions.get(broker_id, {}).values())

    def receive(self, request: FetchRequest, fetcher: str) -> FollowerSession:
        """Apply a follower's request to its session, and return the session.

        A request that waits in the session gets its response first. Raises STALE_BROKER_EPOCH,
        FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH."""
        assert request.replica_state is not None
        broker_id = request.replica_state.replica_id
        broker_epoch = request.replica_state.replica_epoch
        if not self._context.isr.is_current(broker_id, broker_epoch):
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH)
        if request.session_epoch == INITIAL_EPOCH:
            session = self._open(broker_id, broker_epoch, fetcher)
        else:
            session = self._resume(broker_id, broker_epoch, fetcher, request)
        session.respond_now()
        session.apply_request(request)
        return session

    def _open(self, broker_id: int, broker_epoch: int, fetcher: str) -> FollowerSession:
        sessions = self._sessions.setdefault(broker_id, {})
        if fetcher in sessions:
            sessions.pop(fetcher).close()
        elif len(sessions) == FETCHERS_MAX:
            sessions.pop(next(iter(sessions))).close()
        session_id = self._random.randint(1, INT32_MAX)
        session = FollowerSession(self._context, broker_id, broker_epoch, session_id)
        sessions[fetcher] = session
        return session

    def _resume(
        self, broker_id: int, broker_epoch: int, fetcher: str, request: FetchRequest
    ) -> FollowerSession:
        session = self._sessions.get(broker_id, {}).get(fetcher)
        if (
            session is None
            or session.session_id != request.session_id
            or session.broker_epoch != broker_epoch
        ):
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.step()
        return session

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a delta. Called after the partitions have applied it."""
        for broker_id, broker in delta.brokers.items():
            sessions = self._sessions.get(broker_id, {})
            for fetcher, session in list(sessions.items()):
                if broker is None or broker.epoch > session.broker_epoch:
                    sessions.pop(fetcher).close()
            if not sessions:
                self._sessions.pop(broker_id, None)
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.find_new_partitions()

    def close(self) -> None:
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.close()
        self._sessions.clear()

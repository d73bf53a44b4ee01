"""All followers that fetch from this broker: one session each, admitted by their registration.

A session is opened by a Fetch with epoch 0, and replaces the follower's earlier one. Only brokers
that are registered get one, so there are at most as many as there are brokers; it goes when its
broker leaves the cluster.
"""

from __future__ import annotations

from typing import Final

from millstream.env.random import Random
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.follower_session import FollowerSession, Leader
from millstream.wire.messages.fetch import FetchRequest

_INITIAL_EPOCH: Final = 0
_INT32_MAX: Final = 2**31 - 1


class FollowerSessions:
    """Event loop only."""

    __slots__ = ("_leader", "_random", "_sessions")

    def __init__(self, leader: Leader, random: Random) -> None:
        self._leader = leader
        self._random = random
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def receive(self, request: FetchRequest) -> FollowerSession:
        """The session that a follower's request belongs to, with the request taken in.

        A request that waited in it has been answered. Raises STALE_BROKER_EPOCH,
        FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH."""
        assert request.replica_state is not None
        broker_id = request.replica_state.replica_id
        broker_epoch = request.replica_state.replica_epoch
        if not self._leader.isr.is_current(broker_id, broker_epoch):
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH)
        if request.session_epoch == _INITIAL_EPOCH:
            session = self._open(broker_id, broker_epoch)
        else:
            session = self._resume(broker_id, broker_epoch, request)
        session.answer_waiting()
        session.take(request)
        return session

    def _open(self, broker_id: int, broker_epoch: int) -> FollowerSession:
        earlier = self._sessions.pop(broker_id, None)
        if earlier is not None:
            earlier.close()
        session_id = self._random.randint(1, _INT32_MAX)
        session = FollowerSession(self._leader, broker_id, broker_epoch, session_id)
        self._sessions[broker_id] = session
        return session

    def _resume(self, broker_id: int, broker_epoch: int, request: FetchRequest) -> FollowerSession:
        session = self._sessions.get(broker_id)
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

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """To be called after the partitions have followed."""
        for broker_id, broker in delta.brokers.items():
            session = self._sessions.get(broker_id)
            if session is not None and (broker is None or broker.epoch > session.broker_epoch):
                del self._sessions[broker_id]
                session.close()

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

from __future__ import annotations

import random

import pytest

from harness.in_process.manual_clock import ManualClock
from millstream.broker.fetch_session import EVICTION_S, FetchPartition, FetchSessions
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import NO_TOPIC_ID


def wanted(partition: int, offset: int = 0) -> FetchPartition:
    entry = FetchPartition("topic", NO_TOPIC_ID, partition)
    entry.offset = offset
    return entry


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def sessions(clock: ManualClock) -> FetchSessions:
    return FetchSessions(2, clock, random.Random(1))


def test_a_session_adds_updates_and_removes_partitions(sessions: FetchSessions) -> None:
    session = sessions.open([wanted(0), wanted(1)], uses_topic_ids=False)
    assert session is not None
    again = sessions.resume(session.session_id, 1, uses_topic_ids=False)
    again.update([wanted(1, offset=7), wanted(2)], [("topic", NO_TOPIC_ID, 0)])
    assert [(key[2], entry.offset) for key, entry in again.partitions.items()] == [(1, 7), (2, 0)]


def test_served_partitions_move_to_the_end(sessions: FetchSessions) -> None:
    session = sessions.open([wanted(0), wanted(1), wanted(2)], uses_topic_ids=False)
    assert session is not None
    session.mark_served([("topic", NO_TOPIC_ID, 0), ("topic", NO_TOPIC_ID, 9)])
    assert [key[2] for key in session.partitions] == [1, 2, 0]


def test_epochs_increase_and_wrap_to_1(sessions: FetchSessions) -> None:
    session = sessions.open([wanted(0)], uses_topic_ids=False)
    assert session is not None
    sessions.resume(session.session_id, 1, uses_topic_ids=False)
    for epoch in (1, 3, 0):
        with pytest.raises(BrokerError) as caught:
            sessions.resume(session.session_id, epoch, uses_topic_ids=False)
        assert caught.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = 2**31 - 1
    sessions.resume(session.session_id, 2**31 - 1, uses_topic_ids=False)
    assert session.epoch == 1


def test_an_unknown_session_and_a_change_of_topic_ids_are_rejected(sessions: FetchSessions) -> None:
    session = sessions.open([wanted(0)], uses_topic_ids=True)
    assert session is not None
    with pytest.raises(BrokerError) as unknown:
        sessions.resume(session.session_id + 1, 1, uses_topic_ids=True)
    assert unknown.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(BrokerError) as mixed:
        sessions.resume(session.session_id, 1, uses_topic_ids=False)
    assert mixed.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_only_an_idle_session_is_evicted(sessions: FetchSessions, clock: ManualClock) -> None:
    first = sessions.open([wanted(0)], uses_topic_ids=False)
    second = sessions.open([wanted(0)], uses_topic_ids=False)
    assert first is not None
    assert second is not None
    assert sessions.open([wanted(0)], uses_topic_ids=False) is None
    clock.now = EVICTION_S
    sessions.resume(first.session_id, 1, uses_topic_ids=False)
    assert sessions.open([wanted(0)], uses_topic_ids=False) is not None
    with pytest.raises(BrokerError):
        sessions.resume(second.session_id, 1, uses_topic_ids=False)

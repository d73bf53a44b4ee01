from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.replication.leader.follower_state import NEVER, FollowerFetch, FollowerState

LAG_S = 10.0


def fetch(offset: int, now: float, broker_epoch: int = 1) -> FollowerFetch:
    return FollowerFetch(2, broker_epoch, offset, 0, now)


def test_a_fetch_at_the_log_end_is_caught_up_now() -> None:
    state = FollowerState(2)
    assert state.fetched(fetch(5, 1.0), 5)
    assert (state.log_end_offset, state.caught_up_at) == (5, 1.0)


def test_a_fetch_at_an_earlier_log_end_was_caught_up_then() -> None:
    state = FollowerState(2)
    state.fetched(fetch(5, 1.0), 8)
    assert state.caught_up_at == NEVER
    state.fetched(fetch(8, 2.0), 12)
    assert state.caught_up_at == 1.0
    state.fetched(fetch(11, 3.0), 15)
    assert state.caught_up_at == 1.0


def test_a_fetch_of_an_earlier_registration_changes_nothing() -> None:
    state = FollowerState(2)
    state.fetched(fetch(3, 1.0, broker_epoch=7), 5)
    assert not state.fetched(fetch(5, 2.0, broker_epoch=6), 5)
    assert (state.log_end_offset, state.broker_epoch, state.caught_up_at) == (3, 7, NEVER)


def test_fetches_of_an_earlier_registration_do_not_count() -> None:
    state = FollowerState(2, caught_up_at=0.0)
    state.fetched(fetch(3, 0.5, broker_epoch=6), 5)
    assert state.is_caught_up(5, 1.0, LAG_S), "a member has time for its first fetches"
    state.fetched(fetch(5, 1.0, broker_epoch=6), 5)
    state.fetched(fetch(5, 2.0, broker_epoch=7), 90)
    assert not state.is_caught_up(90, 2.0, LAG_S)
    state.fetched(fetch(90, 3.0, broker_epoch=7), 95)
    assert state.is_caught_up(95, 3.0, LAG_S)


def test_a_follower_that_has_everything_is_caught_up_for_ever() -> None:
    state = FollowerState(2)
    state.fetched(fetch(5, 1.0), 5)
    assert state.is_caught_up(5, 1e9, LAG_S)
    assert state.is_caught_up(6, 1.0 + LAG_S, LAG_S)
    assert not state.is_caught_up(6, 1.1 + LAG_S, LAG_S)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(0.01, 5), st.booleans()), min_size=1, max_size=30
    )
)
def test_a_follower_had_every_record_at_its_caught_up_time(
    steps: list[tuple[int, float, bool]],
) -> None:
    """Checked against all log end offsets that the leader had."""
    state = FollowerState(2)
    now, leader_end, follower_end = 0.0, 0, 0
    ends = [(0.0, 0)]
    for appended, seconds, is_greedy in steps:
        now += seconds
        leader_end += appended
        ends.append((now, leader_end))
        follower_end = leader_end if is_greedy else follower_end + (leader_end - follower_end) // 2
        state.fetched(fetch(follower_end, now), leader_end)
        if state.caught_up_at != NEVER:
            end_then = max(end for time, end in ends if time <= state.caught_up_at)
            assert follower_end >= end_then

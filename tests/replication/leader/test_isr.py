from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.leader import isr
from millstream.replication.leader.follower_state import FollowerFetch, FollowerState
from millstream.replication.leader.isr import LeaderView

LEADER = 1
LAG_S = 10.0
RECORD = PartitionRecord(replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1, 2, 3))

offsets = st.integers(0, 20)


@st.composite
def followers(draw: st.DrawFn) -> dict[int, FollowerState]:
    found = {}
    for replica in (2, 3):
        state = found[replica] = FollowerState(replica)
        if draw(st.booleans()):
            end = draw(offsets)
            fetch = FollowerFetch(replica, draw(st.integers(1, 2)), end, 0, draw(st.floats(0, 30)))
            state.fetched(fetch, draw(offsets))
    return found


@st.composite
def views(draw: st.DrawFn) -> LeaderView:
    end = draw(offsets)
    return LeaderView(
        LEADER,
        end,
        draw(st.integers(0, end)),
        draw(st.integers(0, end)),
        draw(st.dictionaries(st.sampled_from([2, 3]), st.integers(1, 2))),
        draw(st.floats(0, 60)),
        LAG_S,
    )


@given(followers(), views(), st.sets(st.sampled_from([2, 3])))
def test_members_of_the_next_isr(
    states: dict[int, FollowerState], leader: LeaderView, members: set[int]
) -> None:
    record = msgspec.structs.replace(RECORD, isr=(LEADER, *sorted(members)))
    found = isr.next_isr(record, states, leader)
    assert found[0] == LEADER
    assert len(set(found)) == len(found)
    for replica, state in states.items():
        has_committed = state.log_end_offset >= leader.high_watermark
        if replica in found and replica not in members:
            assert has_committed
            assert state.log_end_offset >= leader.epoch_start_offset
            assert leader.eligible.get(replica) == state.broker_epoch
        if replica in members and state.log_end_offset >= 0 and not has_committed:
            assert replica not in found
        if replica in members and state.log_end_offset >= leader.log_end_offset:
            assert replica in found
    # A second decision on the result changes nothing, so no replica joins and leaves in turn.
    settled = msgspec.structs.replace(record, isr=found)
    assert set(isr.next_isr(settled, states, leader)) == set(found)


@given(offsets, st.lists(st.integers(-1, 20), max_size=3))
def test_the_committed_offset_is_the_lowest_log_end_offset(own: int, ends: list[int]) -> None:
    states = []
    for end in ends:
        state = FollowerState(2)
        state.log_end_offset = end
        states.append(state)
    assert isr.committed_offset(own, states) == min([own, *ends])


def test_the_maximal_isr_has_members_and_joining_replicas() -> None:
    record = msgspec.structs.replace(RECORD, isr=(1, 2))
    assert isr.maximal_isr(record, (3,)) == {1, 2, 3}
    assert isr.maximal_isr(record, ()) == {1, 2}

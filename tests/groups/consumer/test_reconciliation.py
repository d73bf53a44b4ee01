"""One step of a member: it loses no partition that it may still own, and keeps its target."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from groups.consumer_world import Place, places
from millstream.groups.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    MemberTarget,
    OwnedPartitions,
    reconcile,
)
from millstream.model.topic import TopicId

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
PLACES = [(topic_id, partition) for topic_id in (A, B, C) for partition in range(3)]
STATES = [each for each in MemberState if each is not MemberState.UNKNOWN]

some_places = st.sets(st.sampled_from(PLACES))


def grouped(found: set[Place]) -> dict[TopicId, dict[int, int]]:
    rows: dict[TopicId, dict[int, int]] = {}
    for topic_id, partition in sorted(found):
        rows.setdefault(topic_id, {})[partition] = 1
    return rows


def all_of(current: CurrentAssignment) -> set[Place]:
    return places(current.assigned) | places(current.revoking)


@st.composite
def holdings(draw: st.DrawFn) -> CurrentAssignment:
    state = draw(st.sampled_from(STATES))
    assigned = draw(some_places)
    is_revoking = state is MemberState.UNREVOKED_PARTITIONS
    revoking = draw(some_places) - assigned if is_revoking else set()
    epoch = draw(st.integers(1, 5))
    return CurrentAssignment(epoch, max(epoch - 1, 1), state, grouped(assigned), grouped(revoking))


@st.composite
def goals(draw: st.DrawFn) -> MemberTarget:
    topics = draw(st.sets(st.sampled_from([A, B, C])))
    return MemberTarget(draw(st.integers(5, 8)), grouped(draw(some_places)), topics)


def wanted(goal: MemberTarget) -> set[Place]:
    return {place for place in places(goal.partitions) if place[0] in goal.topics}


@settings(max_examples=300, deadline=None)
@given(holdings(), goals(), some_places, st.none() | some_places)
def test_a_step(
    before: CurrentAssignment, goal: MemberTarget, taken: set[Place], said: set[Place] | None
) -> None:
    others = taken - all_of(before)
    owned: OwnedPartitions | None = None if said is None else grouped(said)

    def reconcile_member(current: CurrentAssignment) -> CurrentAssignment:
        return reconcile(current, goal, lambda *place: place not in others, owned)

    after = reconcile_member(before)
    assigned = places(after.assigned)
    assert assigned.isdisjoint(places(after.revoking))
    assert assigned.isdisjoint(others)
    assert all_of(before) & (all_of(before) if said is None else said) <= all_of(after)
    assert places(before.assigned) & wanted(goal) <= assigned
    assert assigned - places(before.assigned) <= wanted(goal)
    assert {topic_id for topic_id, _ in assigned} <= goal.topics
    assert after.epoch in (before.epoch, goal.epoch)
    if after.state is MemberState.UNREVOKED_PARTITIONS:
        assert after.epoch == before.epoch
        assert after.revoking
    else:
        assert after.epoch == goal.epoch
        assert not after.revoking
        assert (after.state is MemberState.STABLE) == (assigned == wanted(goal))
    assert reconcile_member(after) == after


@settings(max_examples=100, deadline=None)
@given(holdings(), goals())
def test_a_member_that_owns_nothing_gets_all_free_partitions(
    before: CurrentAssignment, goal: MemberTarget
) -> None:
    after = reconcile(before, goal, lambda *place: True, {})
    assert after.is_reconciled(goal.epoch)
    assert places(after.assigned) == wanted(goal)


def test_partitions_that_stay_keep_their_epochs() -> None:
    before = CurrentAssignment(3, 2, MemberState.STABLE, {A: {0: 1, 1: 3}})
    after = reconcile(before, MemberTarget(4, {A: {0, 1, 2}}, {A}), lambda *place: True, None)
    assert after == CurrentAssignment(4, 3, MemberState.STABLE, {A: {0: 1, 1: 3, 2: 4}})


def test_a_member_that_still_waits_does_not_change() -> None:
    goal = MemberTarget(4, {A: {0, 1}}, {A})
    waiting = reconcile(CurrentAssignment(3, 2), goal, lambda *place: place == (A, 0), None)
    assert waiting == CurrentAssignment(4, 3, MemberState.UNRELEASED_PARTITIONS, {A: {0: 4}})
    assert reconcile(waiting, goal, lambda *place: place == (A, 0), None) is waiting

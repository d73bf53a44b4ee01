"""Assignors: every partition has one owner, loads are balanced, and moves are minimal."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.groups.consumer.assignor import Assignment, SubscribedMember, assign_ranges
from millstream.groups.consumer.uniform_assignor import EXACT_MEMBERS_MAX, assign_uniformly
from millstream.model.topic import TopicId

TOPICS = [bytes([number]) * 16 for number in range(1, 13)]
T1, T2 = TOPICS[:2]

Place = tuple[TopicId, int]


def owners(assignments: dict[str, Assignment]) -> dict[Place, str]:
    found: dict[Place, str] = {}
    for member_id, assignment in assignments.items():
        for topic_id, partitions in assignment.items():
            assert partitions
            for partition in partitions:
                assert (topic_id, partition) not in found
                found[topic_id, partition] = member_id
    return found


def places(members: dict[str, SubscribedMember], counts: dict[TopicId, int]) -> set[Place]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {(topic, partition) for topic in topics for partition in range(counts[topic])}


def moves(members: dict[str, SubscribedMember], found: dict[Place, str]) -> int:
    """Return the number of partitions that moved away from a member that still subscribes."""
    return sum(
        1
        for member_id, member in members.items()
        for topic, partitions in member.previous.items()
        for partition in partitions
        if topic in member.topics and found.get((topic, partition), member_id) != member_id
    )


def squares(members: dict[str, SubscribedMember], found: dict[Place, str]) -> int:
    loads = Counter(found.values())
    return sum(loads[member_id] ** 2 for member_id in members)


def candidate(*topics: TopicId, instance: str | None = None) -> SubscribedMember:
    return SubscribedMember(instance, frozenset(topics), {})


@st.composite
def groups(
    draw: st.DrawFn,
    members_max: int,
    partitions_max: int,
    *,
    alike: bool,
    members_min: int = 1,
    topics_max: int = 3,
) -> tuple[dict[str, SubscribedMember], dict[TopicId, int]]:
    counts = {
        topic: draw(st.integers(0, partitions_max))
        for topic in TOPICS[: draw(st.integers(1, topics_max))]
    }
    names = [f"m{number}" for number in range(draw(st.integers(members_min, members_max)))]
    topics = st.sets(st.sampled_from(sorted(counts)), min_size=1, max_size=3)
    shared = draw(topics)
    previous: dict[str, dict[TopicId, set[int]]] = {name: {} for name in names}
    for topic, count in counts.items():
        # Some partitions belonged to a member that left; some do not exist.
        for partition in range(count + 1):
            owner = draw(st.sampled_from([*names, None]))
            if owner is not None:
                previous[owner].setdefault(topic, set()).add(partition)
    return {
        name: SubscribedMember(None, frozenset(shared if alike else draw(topics)), previous[name])
        for name in names
    }, counts


@settings(max_examples=150, deadline=None)
@given(groups(7, 12, alike=True))
def test_uniform_for_equal_subscriptions(
    group: tuple[dict[str, SubscribedMember], dict[TopicId, int]],
) -> None:
    members, counts = group
    found = owners(assign_uniformly(members, counts))
    assert found.keys() == places(members, counts)
    loads = Counter(found.values())
    assert max(loads.values(), default=0) - min(loads[each] for each in members) <= 1
    assert moves(members, found) == fewest_moves_of_equals(members, counts)


def fewest_moves_of_equals(members: dict[str, SubscribedMember], counts: dict[TopicId, int]) -> int:
    """Try every choice of the members that get one partition more than the others."""
    everything = places(members, counts)
    quota, extras = divmod(len(everything), len(members))
    had = {
        name: sum((topic, each) in everything for topic in m.previous for each in m.previous[topic])
        for name, m in members.items()
    }
    return min(
        sum(max(0, had[name] - quota - (name in lucky)) for name in members)
        for lucky in combinations(members, extras)
    )


@settings(max_examples=120, deadline=None)
@given(groups(3, 3, alike=False))
def test_uniform_for_different_subscriptions_is_optimal(
    group: tuple[dict[str, SubscribedMember], dict[TopicId, int]],
) -> None:
    members, counts = group
    found = owners(assign_uniformly(members, counts))
    everything = sorted(places(members, counts))
    assert found.keys() == set(everything)
    assert all(topic in members[owner].topics for (topic, _), owner in found.items())
    choices = [
        [name for name in members if topic in members[name].topics] for topic, _ in everything
    ]
    best = min(
        (squares(members, tried), moves(members, tried))
        for tried in (dict(zip(everything, each, strict=True)) for each in product(*choices))
    )
    assert (squares(members, found), moves(members, found)) == best


@settings(max_examples=60, deadline=None)
@given(groups(60, 20, alike=False, members_min=EXACT_MEMBERS_MAX + 1, topics_max=12))
def test_uniform_for_different_subscriptions_in_large_groups(
    group: tuple[dict[str, SubscribedMember], dict[TopicId, int]],
) -> None:
    members, counts = group
    found = owners(assign_uniformly(members, counts))
    assert found.keys() == places(members, counts)
    assert all(topic in members[owner].topics for (topic, _), owner in found.items())
    assert_even(members, found)
    assert_nothing_can_be_taken_back(members, found)


def assert_even(members: dict[str, SubscribedMember], found: dict[Place, str]) -> None:
    """Check that no chain of moves leads to a member with two partitions less. That holds if and
    only if the sum of squares is minimal."""
    loads = Counter(found.values())
    for start in members:
        reached, waiting = {start}, [start]
        for giver in waiting:
            gives = {topic for (topic, _), owner in found.items() if owner == giver}
            for taker in members.keys() - reached:
                if gives & members[taker].topics:
                    reached.add(taker)
                    waiting.append(taker)
        assert loads[start] - min(loads[each] for each in reached) < 2


def assert_nothing_can_be_taken_back(
    members: dict[str, SubscribedMember], found: dict[Place, str]
) -> None:
    loads = Counter(found.values())
    homes = {
        (topic, partition): name
        for name, member in members.items()
        for topic in member.previous.keys() & member.topics
        for partition in member.previous[topic]
    }
    for place, owner in found.items():
        home = homes.get(place, owner)
        if home == owner:
            continue
        assert loads[owner] <= loads[home]
        for other, other_owner in found.items():
            if other_owner == home and homes.get(other) != home:
                assert other[0] not in members[owner].topics


@settings(max_examples=40, deadline=None)
@given(groups(30, 20, alike=False))
def test_uniform_is_stable(
    group: tuple[dict[str, SubscribedMember], dict[TopicId, int]],
) -> None:
    members, counts = group
    first = assign_uniformly(members, counts)
    assert owners(first).keys() == places(members, counts)
    assert assign_uniformly(dict(reversed(members.items())), counts) == first
    again = {name: each._replace(previous=first[name]) for name, each in members.items()}
    assert assign_uniformly(again, counts) == first


def test_uniform_spreads_each_topic() -> None:
    members = {name: candidate(T1, T2) for name in ("a", "b")}
    assert assign_uniformly(members, {T1: 4, T2: 4}) == {
        "a": {T1: {0, 2}, T2: {0, 2}},
        "b": {T1: {1, 3}, T2: {1, 3}},
    }


def test_uniform_balances_a_large_group_of_two_kinds() -> None:
    members = {f"m{n:03}": candidate(T1, T2) if n % 2 else candidate(T1) for n in range(100)}
    found = owners(assign_uniformly(members, {T1: 300, T2: 200}))
    loads = Counter(found.values())
    assert set(loads.values()) == {5}


def test_range_is_co_partitioned_and_orders_static_members_first() -> None:
    members = {
        "x": candidate(T1, T2, instance="i2"),
        "a": candidate(T1, T2),
        "y": candidate(T1, T2, instance="i1"),
    }
    assert assign_ranges(members, {T1: 5, T2: 5}) == {
        "y": {T1: {0, 1}, T2: {0, 1}},
        "x": {T1: {2, 3}, T2: {2, 3}},
        "a": {T1: {4}, T2: {4}},
    }


@settings(max_examples=60, deadline=None)
@given(groups(6, 8, alike=False))
def test_range_assigns_ranges(
    group: tuple[dict[str, SubscribedMember], dict[TopicId, int]],
) -> None:
    members, counts = group
    assignments = assign_ranges(members, counts)
    found = owners(assignments)
    assert found.keys() == places(members, counts)
    for name, assignment in assignments.items():
        for topic, partitions in assignment.items():
            assert topic in members[name].topics
            assert max(partitions) - min(partitions) + 1 == len(partitions)


@pytest.mark.parametrize("assign", [assign_ranges, assign_uniformly])
def test_no_members_and_no_topics(assign) -> None:  # type: ignore[no-untyped-def]
    assert assign({}, {}) == {}
    assert assign({"a": candidate()}, {}) == {"a": {}}
    assert assign({"a": candidate(T1), "b": candidate(T1)}, {T1: 0}) == {"a": {}, "b": {}}

"""The generation of a classic group: transitions, checks and its record."""

from __future__ import annotations

import pytest

from groups.classic.test_roster import member
from groups.classic_world import subscription
from millstream.coordination.effects import Effects
from millstream.groups import group_record as record
from millstream.groups.classic import generation_record
from millstream.groups.classic.classic_state import TRANSITIONS, ClassicState
from millstream.groups.classic.generation import ClassicGeneration
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT32_MAX


def generation_with_members() -> ClassicGeneration:
    generation = ClassicGeneration("g")
    generation.protocol_type = "consumer"
    for member_id in ("a", "b"):
        added = member(member_id)
        added.protocols = [("range", subscription(f"topic-{member_id}"))]
        generation.roster.add(added)
    generation.enter(ClassicState.PREPARING_REBALANCE, 5)
    return generation


def test_a_generation_begins_with_the_protocol_and_topics_of_its_members() -> None:
    generation = generation_with_members()
    generation.begin(6)
    assert (generation.number, generation.state_since_ms) == (1, 6)
    assert generation.protocol_name == "range"
    assert generation.subscribed == {"topic-a", "topic-b"}
    assert generation.state is ClassicState.COMPLETING_REBALANCE


def test_the_number_wraps_to_1() -> None:
    generation = generation_with_members()
    generation.number = INT32_MAX
    generation.begin(6)
    assert generation.number == 1


def test_an_empty_generation_of_consumers_subscribes_to_nothing() -> None:
    generation = generation_with_members()
    generation.become_empty(6)
    assert (generation.number, generation.protocol_name) == (1, None)
    assert generation.subscribed == frozenset()
    assert generation.state is ClassicState.EMPTY


@pytest.mark.parametrize("state", ClassicState)
def test_only_listed_transitions_are_possible(state: ClassicState) -> None:
    for after in ClassicState:
        generation = ClassicGeneration("g")
        generation.state = state
        if after in TRANSITIONS[state]:
            generation.enter(after, 1)
            assert generation.state is after
        else:
            with pytest.raises(AssertionError):
                generation.enter(after, 1)


def test_members_are_checked_against_the_generation() -> None:
    generation = generation_with_members()
    generation.begin(6)
    assert generation.check_member("a", None, 1) is generation.roster.members["a"]
    with pytest.raises(BrokerError) as caught:
        generation.check_member("a", None, 2)
    assert caught.value.code == ErrorCode.ILLEGAL_GENERATION
    generation.state = ClassicState.DEAD
    with pytest.raises(BrokerError) as caught:
        generation.check_member("a", None, 1)
    assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_record_restores_the_generation() -> None:
    generation = generation_with_members()
    generation.begin(6)
    generation.enter(ClassicState.STABLE, 7)
    generation.roster.assign(generation.roster.members["a"], b"assignment")
    effects = Effects()
    generation.append_record(effects)
    ((encoded_key, encoded_value),) = effects.records
    value = record.decode_value(record.decode_key(encoded_key), encoded_value)
    restored = ClassicGeneration("g")
    restored.restore(generation_record.decode(value))
    assert restored.state is ClassicState.STABLE
    assert (restored.number, restored.state_since_ms, restored.subscribed) == (
        1,
        7,
        generation.subscribed,
    )
    assert {each.member_id: each.assignment for each in restored.roster} == {
        "a": b"assignment",
        "b": b"",
    }
    assert restored.roster.leader_id == "a"


def test_only_the_leader_sees_the_members() -> None:
    generation = generation_with_members()
    generation.begin(6)
    leader, follower = generation.roster.members["a"], generation.roster.members["b"]
    seen = generation.join_response(leader, show_members=True)
    assert [each.member_id for each in seen.members] == ["a", "b"]
    assert generation.join_response(follower, show_members=False).members == []

from __future__ import annotations

import pytest

from groups.classic_world import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    World,
    replay,
    subscription,
)
from groups.member_commit import commit_of_member
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.groups.classic.roster import PENDING_MAX
from millstream.model.error import BrokerError, ErrorCode


def test_members_that_come_during_the_initial_delay_are_in_the_first_generation() -> None:
    world = World()
    first, first_join = world.join_fully()
    world.advance(INITIAL_DELAY_MS - 1)
    second, second_join = world.join_fully()
    assert not world.responses.keys() & {first_join, second_join}
    world.advance(1)
    assert not world.responses.keys() & {first_join, second_join}, "a newcomer prolongs the delay"
    world.advance(INITIAL_DELAY_MS)
    for token in (first_join, second_join):
        assert world.responses[token].generation_id == 1
        assert world.responses[token].leader == first
        assert world.responses[token].protocol_name == "range"
    assert {m.member_id for m in world.responses[first_join].members} == {first, second}
    assert world.responses[second_join].members == []
    assert world.group.state is ClassicState.COMPLETING_REBALANCE


def test_the_initial_delay_never_exceeds_the_rebalance_timeout() -> None:
    world = World()
    joins = [world.join_fully()[1]]
    for _ in range(100):
        world.advance(1000)
        joins.append(world.join_fully()[1])
        if joins[0] in world.responses:
            break
    assert world.responses[joins[0]].error_code == ErrorCode.NONE
    assert world.now_ms - 1_000_000 <= REBALANCE_MS + INITIAL_DELAY_MS


def test_followers_get_their_assignment_with_the_leaders_sync() -> None:
    world = World()
    (leader, _), (follower, _) = world.join_fully(), world.join_fully()
    world.end_join()
    waiting = world.sync(follower, 1)
    assert waiting not in world.responses
    done = world.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert world.responses[waiting].assignment == b"F"
    assert world.responses[done].assignment == b"L"
    assert world.group.state is ClassicState.STABLE
    assert len(world.records) == 1
    assert world.responses[world.sync(follower, 1)].assignment == b"F"


def test_a_join_in_a_stable_group_makes_all_members_rejoin() -> None:
    world = World()
    leader, follower = world.stable()
    newcomer, join = world.join_fully()
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.responses[world.sync(leader, 1)].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(leader)
    assert join not in world.responses
    rejoin = world.join(follower)
    assert world.responses[join].generation_id == world.responses[rejoin].generation_id == 2
    assert {each.member_id for each in world.group.roster} == {leader, follower, newcomer}


def test_a_member_that_does_not_rejoin_within_the_rebalance_timeout_is_removed() -> None:
    world = World()
    leader, follower = world.stable()
    _, join = world.join_fully()
    world.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        world.advance(5000)
        world.heartbeat(follower, 1)
    assert world.responses[join].generation_id == 2
    assert world.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_leads_when_the_leader_does_not_rejoin() -> None:
    world = World()
    leader, follower = world.stable()
    world.join(follower, protocols=[("range", subscription("other"))])
    while world.group.state is ClassicState.PREPARING_REBALANCE:
        assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
        world.advance(SESSION_MS // 2)
    assert world.group.roster.leader_id == follower
    assert leader not in world.group.roster


def test_a_member_without_heartbeats_for_the_session_timeout_is_removed() -> None:
    world = World()
    leader, follower = world.stable()
    for _ in range(5):
        world.advance(SESSION_MS // 2)
        world.heartbeat(leader)
        if follower not in world.group.roster:
            break
    assert follower not in world.group.roster
    assert world.group.state is ClassicState.PREPARING_REBALANCE
    again = world.join(leader)
    assert world.responses[again].generation_id == 2


def test_the_session_of_a_member_that_waits_for_a_response_does_not_expire() -> None:
    world = World()
    leader, follower = world.stable()
    join = world.join(leader)
    for _ in range(5):
        world.advance(SESSION_MS // 2)
        world.heartbeat(follower, 1)
    assert leader in world.group.roster
    world.join(follower)
    assert world.responses[join].generation_id == 2


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    world = World()
    (leader, _), (follower, _) = world.join_fully(), world.join_fully()
    world.end_join()
    assert world.group.state is ClassicState.COMPLETING_REBALANCE
    world.sync(leader, 1, {leader: b"L", follower: b"F"})
    for _ in range(REBALANCE_MS // 5000 + 1):
        world.heartbeat(leader)
        world.heartbeat(follower)
        world.advance(5000)
    assert follower not in world.group.roster
    assert world.group.state is ClassicState.PREPARING_REBALANCE


def test_the_last_member_to_leave_empties_the_group_and_writes_a_record() -> None:
    world = World()
    leader, follower = world.stable()
    response = world.leave((leader, None), (follower, None), ("nobody", None))
    codes = [row.error_code for row in response.members]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.group.is_empty
    assert world.group.generation == 2
    assert replay(world).is_empty
    assert not [key for key in world.timers if key[0] == "session"]


@pytest.mark.parametrize("version", [0, 3])
def test_old_clients_are_added_without_an_assigned_id(version: int) -> None:
    world = World()
    token = world.join(version=version)
    world.advance(INITIAL_DELAY_MS)
    assert world.responses[token].error_code == ErrorCode.NONE
    assert world.responses[token].member_id.startswith("client-")


def test_a_pending_id_is_dropped_after_the_session_timeout() -> None:
    world = World()
    given = world.responses[world.join()].member_id
    assert not world.group.is_blank
    world.advance(SESSION_MS)
    assert world.group.is_blank
    assert world.responses[world.join(given)].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_number_of_pending_ids_is_bounded() -> None:
    world = World()
    for _ in range(PENDING_MAX + 10):
        world.join()
    assert len(world.group.roster.pending) == PENDING_MAX
    assert len(world.timers) == PENDING_MAX
    assert world.records == []


def test_fencing_by_member_generation_and_protocol() -> None:
    world = World()
    leader, follower = world.stable()
    assert world.heartbeat("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert world.responses[world.sync("nobody", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.responses[world.sync(follower, 9)].error_code == ErrorCode.ILLEGAL_GENERATION
    wrong = world.sync(follower, 1, protocol_name="sticky")
    assert world.responses[wrong].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    world = World()
    sub = subscription("t")
    world.join_fully(protocols=[("a", sub), ("b", sub), ("c", sub)])
    world.join_fully(protocols=[("c", sub), ("b", sub)])
    world.join_fully(protocols=[("x", sub), ("c", sub), ("b", sub)])
    world.end_join()
    assert world.group.protocol_name == "c"
    alien = world.join(protocols=[("a", sub)])
    assert world.responses[alien].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = world.join(protocol_type="connect", protocols=[("c", sub)])
    assert world.responses[other].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_rejects_a_join_without_protocols_or_type() -> None:
    world = World()
    for token in (world.join(protocols=[]), world.join(protocol_type="")):
        assert world.responses[token].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_follower_that_joins_again_unchanged_gets_the_generation() -> None:
    world = World()
    leader, follower = world.stable()
    again = world.responses[world.join(follower)]
    assert (again.error_code, again.generation_id, again.leader) == (0, 1, leader)
    assert world.group.state is ClassicState.STABLE
    world.join(leader)
    assert world.group.state is ClassicState.PREPARING_REBALANCE, "the leader may force one"


def test_a_repeated_join_replaces_the_first() -> None:
    world = World()
    leader, follower = world.stable()
    first = world.join(leader)
    second = world.join(leader)
    assert world.responses[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(follower)
    assert world.responses[second].error_code == ErrorCode.NONE


def test_a_full_group_rejects_new_members() -> None:
    settings = ClassicGroupSettings(initial_rebalance_delay_ms=INITIAL_DELAY_MS, group_size_max=2)
    world = World(settings)
    leader, follower = world.stable(2)
    assert world.responses[world.join()].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group.state is ClassicState.STABLE
    assert world.heartbeat(leader) == world.heartbeat(follower) == ErrorCode.NONE


def test_a_join_that_would_exceed_the_record_size_is_rejected() -> None:
    world = World(ClassicGroupSettings(record_bytes_max=10_000))
    heavy = world.join(protocols=[("range", bytes(6000))])
    assert world.responses[heavy].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    (leader,) = world.stable(1)
    world.join(leader)
    heavy = world.sync(leader, 2, {leader: bytes(11_000)})
    assert world.responses[heavy].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.responses[world.sync(leader, 2, {leader: b"x"})].error_code == ErrorCode.NONE


# Static members


def stable_static(world: World, *names: str) -> dict[str, str]:
    tokens = {name: world.join(instance_id=name) for name in names}
    world.end_join()
    ids = {name: world.responses[token].member_id for name, token in tokens.items()}
    generation, leader = world.group.generation, world.group.roster.leader_id
    parts = {member_id: name.encode() for name, member_id in ids.items()}
    for name, member_id in sorted(ids.items(), key=lambda item: item[1] == leader):
        world.sync(member_id, generation, parts if member_id == leader else None, instance_id=name)
    assert world.group.state is ClassicState.STABLE
    return ids


def test_a_static_member_that_restarts_in_time_keeps_its_assignment() -> None:
    world = World()
    ids = stable_static(world, "a", "b")
    for name in ("b", "a"):
        world.advance(SESSION_MS // 2)
        other = "a" if name == "b" else "b"
        world.heartbeat(ids[other], instance_id=other)
        back = world.responses[world.join(instance_id=name)]
        assert (back.error_code, back.generation_id) == (0, 1)
        assert back.member_id != ids[name]
        assert back.skip_assignment == (name == "a")
        assert bool(back.members) == (name == "a")
        synced = world.sync(back.member_id, 1, instance_id=name)
        assert world.responses[synced].assignment == name.encode()
        old = ids[name]
        assert world.heartbeat(old, 1, name) == ErrorCode.FENCED_INSTANCE_ID
        fenced = world.responses[world.join(old, instance_id=name)]
        assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
        ids[name] = back.member_id
    assert world.group.state is ClassicState.STABLE
    restored = replay(world)
    assert restored.roster.static == ids
    assert restored.roster.leader_id == ids["a"]


def test_an_old_static_leader_that_restarts_is_not_named_as_leader() -> None:
    world = World()
    ids = stable_static(world, "a", "b")
    back = world.responses[world.join(instance_id="a", version=8)]
    assert back.leader == ids["a"] != back.member_id
    assert not back.skip_assignment
    assert not back.members


def test_a_static_member_with_other_topics_or_protocols_causes_a_rebalance() -> None:
    world = World()
    stable_static(world, "a", "b")
    token = world.join(instance_id="b", protocols=[("range", subscription("t", "u"))])
    assert world.group.state is ClassicState.PREPARING_REBALANCE
    assert token not in world.responses


def test_a_duplicate_static_member_fences_one_that_waits() -> None:
    world = World()
    first = world.join(instance_id="a")
    second = world.join(instance_id="a")
    assert world.responses[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    world.end_join()
    assert world.responses[second].error_code == ErrorCode.NONE
    assert len(world.group.roster) == 1


def test_a_duplicate_static_member_fences_one_that_waits_for_its_assignment() -> None:
    world = World()
    tokens = [world.join(instance_id="a"), world.join(instance_id="b")]
    world.end_join()
    follower = world.responses[tokens[1]].member_id
    waiting = world.sync(follower, 1, instance_id="b")
    again = world.join(instance_id="b")
    assert world.responses[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.group.state is ClassicState.PREPARING_REBALANCE
    world.join(world.responses[tokens[0]].member_id, instance_id="a")
    assert world.responses[again].generation_id == 2


def test_a_static_member_keeps_its_assignment_through_a_missed_rebalance() -> None:
    world = World()
    ids = stable_static(world, "a", "b")
    world.join(ids["a"], instance_id="a")
    world.advance(SESSION_MS - 1)
    assert world.group.state is ClassicState.PREPARING_REBALANCE
    assert ids["b"] in world.group.roster
    world.advance(1)
    assert ids["b"] not in world.group.roster
    assert world.group.generation == 2


def test_an_operator_removes_a_static_member_by_name() -> None:
    world = World()
    stable_static(world, "a", "b")
    response = world.leave(("", "b"), ("", "c"), ("wrong", "a"))
    assert [row.error_code for row in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert list(world.group.roster.static) == ["a"]


def test_a_full_group_lets_its_own_static_member_back_in() -> None:
    world = World(ClassicGroupSettings(initial_rebalance_delay_ms=0, group_size_max=2))
    stable_static(world, "a", "b")
    assert world.responses[world.join(instance_id="b")].error_code == ErrorCode.NONE
    full = world.responses[world.join(instance_id="c")]
    assert full.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# Commits, restarts, the end


def check_commit(world: World, member_id: str, generation: int) -> ErrorCode:
    try:
        world.carry_out(
            world.group.commit(world.now_ms, commit_of_member(member_id, None, generation))
        )
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def test_only_members_of_the_generation_may_commit() -> None:
    world = World()
    assert check_commit(world, "", -1) == ErrorCode.NONE
    assert check_commit(world, "somebody", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = world.stable()
    assert check_commit(world, leader, 1) == ErrorCode.NONE
    assert check_commit(world, leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert check_commit(world, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    world.join(leader)
    assert check_commit(world, follower, 1) == ErrorCode.NONE, "before it gives partitions up"
    world.join(follower)
    assert check_commit(world, leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert check_commit(world, leader, 1) == ErrorCode.ILLEGAL_GENERATION


def test_a_commit_renews_the_session() -> None:
    world = World()
    (leader,) = world.stable(1)
    for _ in range(4):
        world.advance(SESSION_MS - 1)
        assert check_commit(world, leader, 1) == ErrorCode.NONE
    assert leader in world.group.roster


def test_members_continue_in_their_generation_after_a_restart() -> None:
    world = World()
    leader, follower = world.stable()
    world.restart()
    assert world.group.state is ClassicState.STABLE
    assert world.heartbeat(leader, 1) == ErrorCode.NONE
    assert world.responses[world.sync(follower, 1)].assignment == follower.encode()
    world.advance(SESSION_MS - 1)
    world.heartbeat(leader, 1)
    world.advance(1)
    assert list(world.group.roster.members) == [leader]


def test_waiting_requests_fail_when_the_group_moves_away() -> None:
    world = World()
    leader, follower = world.stable()
    waiting = world.join(leader)
    world.carry_out(world.group.fail_waiting(ErrorCode.NOT_COORDINATOR))
    assert world.responses[waiting].error_code == ErrorCode.NOT_COORDINATOR
    world = World()
    (leader, _), (follower, _) = world.join_fully(), world.join_fully()
    world.end_join()
    waiting = world.sync(follower, 1)
    world.carry_out(world.group.fail_waiting(ErrorCode.NOT_COORDINATOR))
    assert world.responses[waiting].error_code == ErrorCode.NOT_COORDINATOR


def test_topics_that_members_subscribe_to() -> None:
    world = World()
    assert not world.group.is_subscribed("t")
    world.stable()
    assert world.group.is_subscribed("t")
    assert not world.group.is_subscribed("u")
    world = World()
    world.join_fully(protocols=[("range", b"\xff")])
    world.end_join()
    assert world.group.is_subscribed("anything"), "if it can't be read, every topic may be one"


def test_offsets_of_an_empty_group_are_unused_from_when_it_became_empty() -> None:
    world = World()
    assert world.group.offset_idle_since(5) == 5
    leader, follower = world.stable()
    assert world.group.offset_idle_since(5) == 5, "of topics that are not subscribed any more"
    world.join(leader)
    assert world.group.offset_idle_since(5) is None
    world.leave((leader, None), (follower, None))
    assert world.group.offset_idle_since(5) == world.now_ms
    assert replay(world).offset_idle_since(5) == world.now_ms

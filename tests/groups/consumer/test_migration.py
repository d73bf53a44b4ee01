"""Groups that change their protocol, and members of both protocols in one group."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from groups.fixed_topic_view import FixedTopicView
from groups.member_commit import commit_of_member
from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups import group_record as record
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_member import ClassicMember
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.generation_record import StoredGeneration, decode
from millstream.groups.consumer.consumer_description import describe_consumer_group
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import ConsumerState
from millstream.groups.consumer.migration import UpgradingHeartbeat, downgrade, upgrade
from millstream.groups.group import Caller
from millstream.groups.subscription.topic_view import AssignableTopic
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.schema import decode_prefixed, encode_prefixed

A, B = b"a" * 16, b"b" * 16
TOPICS = FixedTopicView({"apples": AssignableTopic(A, 4), "berries": AssignableTopic(B, 2)}, 1)
NOW_MS = 1_000_000
CALLER = Caller("client", "/host", 9)


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    shape = ConsumerProtocolSubscription
    rows = [
        shape.TopicPartitions(topic=name, partitions=each) for name, each in (owned or {}).items()
    ]
    return encode_prefixed(shape(topics=list(topics), owned_partitions=rows), 1)


def assignment(**topics: list[int]) -> bytes:
    shape = ConsumerProtocolAssignment
    rows = [shape.TopicPartitions(topic=name, partitions=each) for name, each in topics.items()]
    return encode_prefixed(shape(assigned_partitions=rows), 1)


def classic_member(member_id: str, *partitions: int, **rest: Any) -> ClassicMember:
    fields: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": "client",
        "client_host": "/host",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocols": (("range", subscription("apples")),),
        "assignment": assignment(apples=list(partitions)) if partitions else b"",
    }
    return ClassicMember(**fields | rest)


def classic_group(*members: ClassicMember, protocol_type: str = "consumer") -> ClassicGroup:
    group = ClassicGroup("g", ClassicGroupSettings(), Random(1))
    leader = members[0].member_id if members else None
    group.restore(StoredGeneration(protocol_type, 7, "range", leader, NOW_MS, list(members)))
    return group


def consumer_join(member_id: str = "new", **rest: Any) -> ConsumerGroupHeartbeatRequest:
    rest.setdefault("subscribed_topic_names", ["apples"])
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, rebalance_timeout_ms=30_000, topic_partitions=[], **rest
    )


class World:
    """A consumer group that was upgraded from a classic group."""

    def __init__(self, classic: ClassicGroup, **options: Any) -> None:
        self.classic = classic
        self.settings = ConsumerGroupSettings(**options)
        self.group: ConsumerGroup | None = None
        self.log: list[LogRecord] = []
        self.timers: dict[TimerKey, int] = {}

    def upgrade(self, **rest: Any) -> ConsumerGroupHeartbeatResponse:
        heartbeat = UpgradingHeartbeat(consumer_join(**rest), Caller("client", "/host", 1), "token")
        group = ConsumerGroup("g", self.settings, Random(1))
        is_upgraded, effects = upgrade(self.classic, group, NOW_MS, heartbeat, TOPICS)
        self.group = group if is_upgraded else None
        found = dict(self.apply(effects))
        return found["token"]

    @property
    def consumer(self) -> ConsumerGroup:
        assert self.group is not None
        return self.group

    def apply(self, effects: Effects) -> list[tuple[Any, Any]]:
        self.log += effects.records
        for key, due_ms in effects.timers:
            self.timers.pop(key, None)
            if due_ms is not None:
                self.timers[key] = due_ms
        return effects.replies

    def beat(
        self, member_id: str, epoch: int, owned: list[int] | None = None
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch
        )
        if owned is not None:
            row = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=A, partitions=owned)
            request.topic_partitions = [row]
        ((_, response),) = self.apply(
            self.consumer.consumer_heartbeat(NOW_MS, request, CALLER, TOPICS, 1)
        )
        return response

    def join(self, member_id: str, owned: list[int], **rest: Any) -> JoinGroupResponse:
        request = JoinGroupRequest(group_id="g", member_id=member_id, session_timeout_ms=10_000)
        request.rebalance_timeout_ms, request.protocol_type = 20_000, "consumer"
        metadata = subscription("apples", owned={"apples": owned} if owned else None)
        request.protocols = [JoinGroupRequest.Protocol(name="range", metadata=metadata)]
        for name, value in rest.items():
            setattr(request, name, value)
        effects = self.consumer.join(NOW_MS, request, CALLER, TOPICS, 1)
        ((_, response),) = self.apply(effects)
        return response

    def sync(self, member_id: str, generation: int, **rest: Any) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id="g", member_id=member_id, generation_id=generation, **rest
        )
        effects = self.consumer.sync(NOW_MS, request, TOPICS, 1)
        ((_, response),) = self.apply(effects)
        return response

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        effects = Effects()
        who = (member_id, instance_id, generation)
        code = self.consumer.heartbeat(NOW_MS, *who, effects)
        self.apply(effects)
        return code

    def leave(self, *members: LeaveGroupRequest.Member) -> list[LeaveGroupResponse.Member]:
        ((_, response),) = self.apply(self.consumer.leave(NOW_MS, members, 1))
        return response.members


def partitions_of(response: SyncGroupResponse) -> list[int]:
    assert response.error_code == 0
    found = decode_prefixed(ConsumerProtocolAssignment, response.assignment)
    return [each for row in found.assigned_partitions for each in row.partitions]


def replayed(log: list[LogRecord]) -> tuple[ConsumerState, record.GroupMetadataValue | None]:
    state = ConsumerState("g")
    classic: record.GroupMetadataValue | None = None
    for encoded, stored in log:
        key = record.decode_key(encoded)
        assert not isinstance(key, record.UnknownKey)
        value = record.decode_value(key, stored)
        if isinstance(key, record.GroupMetadataKey):
            assert value is None or isinstance(value, record.GroupMetadataValue)
            classic = value
        else:
            state.replay(key, value)
    return state, classic


# Upgrade


def test_a_consumer_joins_a_stable_classic_group() -> None:
    world = World(classic_group(classic_member("c1", 0, 1), classic_member("c2", 2, 3)))
    response = world.upgrade()
    # Members keep their partitions until they have revoked them.
    assert (response.error_code, response.member_epoch) == (0, 8)
    assert response.assignment is not None
    assert response.assignment.topic_partitions == []
    state = world.consumer.state
    assert state.members["c1"].current.assigned == {A: {0: 7, 1: 7}}
    assert state.members["c2"].current.assigned == {A: {2: 7, 3: 7}}
    assert (state.epoch, state.target_epoch) == (8, 8)
    assert replayed(world.log) == (state, None)
    assert world.timers == {
        ("session", "c1"): NOW_MS + 10_000,
        ("session", "c2"): NOW_MS + 10_000,
        ("session", "new"): NOW_MS + 45_000,
    }
    types = {
        each.member_id: each.member_type
        for each in describe_consumer_group(world.consumer, TOPICS).members
    }
    assert types == {"c1": 0, "c2": 0, "new": 1}


def test_members_of_both_protocols_share_partitions() -> None:
    world = World(classic_group(classic_member("c1", 0, 1), classic_member("c2", 2, 3)))
    world.upgrade()
    target = world.consumer.state.targets
    assert sorted(len(each[A]) for each in target.values()) == [1, 1, 2]
    giver, keeps = next(
        (name, each[A]) for name, each in target.items() if name != "new" and len(each[A]) == 1
    )
    other = "c2" if giver == "c1" else "c1"
    had = {"c1": [0, 1], "c2": [2, 3]}
    assert world.heartbeat(giver, 7) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.timers["join", giver] == NOW_MS + 20_000
    joined = world.join(giver, had[giver])
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 7, "range")
    assert ("join", giver) not in world.timers
    assert world.timers["sync", giver] == NOW_MS + 20_000
    assert partitions_of(world.sync(giver, 7)) == sorted(keeps)
    assert ("sync", giver) not in world.timers
    # The member has not reported yet that it has stopped.
    assert world.heartbeat(giver, 7) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.beat("new", 8).assignment is None
    joined = world.join(giver, sorted(keeps))
    assert joined.generation_id == 8
    assert partitions_of(world.sync(giver, 8)) == sorted(keeps)
    assert world.heartbeat(giver, 8) == ErrorCode.NONE
    given = world.beat("new", 8).assignment
    assert given is not None
    assert len(given.topic_partitions[0].partitions) == 1
    # The other member keeps its partitions and gets the new epoch.
    assert world.join(other, had[other]).generation_id == 8
    assert partitions_of(world.sync(other, 8)) == had[other]
    assert world.consumer.state_name == "Stable"


def test_a_classic_member_must_rejoin_when_its_partitions_are_free() -> None:
    world = World(classic_group(classic_member("c1", 0, 1, 2, 3)))
    world.upgrade()
    world.join("c1", [0, 1, 2, 3])
    world.join("c1", [0, 1])
    world.beat("new", 8)
    assert world.heartbeat("c1", 8) == ErrorCode.NONE
    world.beat("new", -1)
    assert world.heartbeat("c1", 8) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = world.join("c1", [0, 1])
    assert partitions_of(world.sync("c1", joined.generation_id)) == [0, 1, 2, 3]


def test_a_classic_member_waits_for_others() -> None:
    world = World(classic_group(classic_member("c1", 0, 1, 2, 3)))
    world.upgrade()
    second = world.join("", [], group_instance_id="i2")
    assert (
        partitions_of(world.sync(second.member_id, second.generation_id, group_instance_id="i2"))
        == []
    )
    assert world.heartbeat(second.member_id, second.generation_id, "i2") == ErrorCode.NONE
    joined = world.join("c1", [])
    assert joined.generation_id == second.generation_id == 9
    assert world.heartbeat(second.member_id, 9, "i2") == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(second.member_id, [], group_instance_id="i2")
    assert partitions_of(world.sync(second.member_id, 9, group_instance_id="i2"))


def test_a_delayed_target_does_not_make_classic_members_rejoin() -> None:
    world = World(classic_group(classic_member("c1", 0, 1, 2, 3)), large_group_size=2)
    world.upgrade()
    assert world.join("c1", [0, 1, 2, 3]).generation_id == 7
    joined = world.join("c1", [0, 1])
    another = consumer_join("another")
    world.apply(world.consumer.consumer_heartbeat(NOW_MS, another, CALLER, TOPICS, 1))
    assert world.consumer.state.epoch > world.consumer.state.target_epoch == joined.generation_id
    assert partitions_of(world.sync("c1", joined.generation_id)) == [0, 1]
    assert world.heartbeat("c1", joined.generation_id) == ErrorCode.NONE


def test_an_empty_classic_group_is_replaced() -> None:
    world = World(classic_group())
    response = world.upgrade()
    assert (response.error_code, response.member_epoch) == (0, 8)
    assert replayed(world.log) == (world.consumer.state, None)


C1, C2 = classic_member("c1"), classic_member("c2")
MUTE = classic_member("c1", protocols=(("range", b"?"),))
TORN = classic_member("c1", assignment=b"???")
FULL = {"group_size_max": 1}
NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("classic", "options", "rest", "code"),
    [
        (classic_group(C1, protocol_type="connect"), {}, {}, NOT_FOUND),
        (classic_group(C1, C2), FULL, {}, NOT_FOUND),
        (classic_group(MUTE), {}, {}, NOT_FOUND),
        (classic_group(TORN), {}, {}, NOT_FOUND),
        (classic_group(C1), FULL, {}, ErrorCode.GROUP_MAX_SIZE_REACHED),
        (
            classic_group(C1),
            {},
            {"subscribed_topic_regex": "("},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
        ),
    ],
)
def test_a_rejected_upgrade_changes_nothing(
    classic: ClassicGroup, options: dict[str, Any], rest: dict[str, Any], code: ErrorCode
) -> None:
    world = World(classic, **options)
    assert world.upgrade(**rest).error_code == code
    assert world.group is None
    assert not world.log
    assert not world.timers


def test_an_upgrade_fails_waiting_requests() -> None:
    classic = classic_group(classic_member("c1", 0))
    classic.roster.await_join(classic.roster.members["c1"], "waiting")
    heartbeat = UpgradingHeartbeat(consumer_join(), CALLER, "token")
    consumer = ConsumerGroup("g", ConsumerGroupSettings(), Random(1))
    _, effects = upgrade(classic, consumer, NOW_MS, heartbeat, TOPICS)
    replies = dict(effects.replies)
    assert replies["waiting"].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert replies["token"].error_code == 0


def test_a_partition_of_two_members_stays_with_one() -> None:
    world = World(classic_group(classic_member("c1", 0, 1), classic_member("c2", 1, 2)))
    assert world.upgrade().error_code == 0
    assert world.consumer.state.members["c2"].current.assigned == {A: {2: 7}}


def test_without_an_assignment_members_keep_the_partitions_that_they_report() -> None:
    claims = (("cooperative", subscription("apples", owned={"apples": [2, 3]})),)
    members = [classic_member("a", protocols=claims), classic_member("b", protocols=claims)]
    world = World(classic_group(*members))
    response = world.upgrade()
    assert response.assignment is not None
    assert [row.partitions for row in response.assignment.topic_partitions] == [[1]]
    assert {id_: each.current.assigned for id_, each in world.consumer.state.members.items()} == {
        "a": {A: {2: 7, 3: 7}},
        "b": {},
        "new": {A: {1: 8}},
    }


def test_an_assignment_takes_precedence_over_a_report() -> None:
    claims = (("range", subscription("apples", owned={"apples": [0, 1]})),)
    world = World(classic_group(classic_member("a", protocols=claims), classic_member("b", 1)))
    world.upgrade()
    assert world.consumer.state.members["a"].current.assigned == {A: {0: 7}}
    assert world.consumer.state.members["b"].current.assigned == {A: {1: 7}}


def test_a_static_classic_member_is_replaced_by_a_consumer() -> None:
    world = World(classic_group(classic_member("c1", 0, 1, 2, 3, instance_id="i1")))
    response = world.upgrade(instance_id="i1")
    assert response.assignment is not None
    assert response.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert set(world.consumer.state.members) == {"new"}
    assert world.heartbeat("c1", 7, "i1") == ErrorCode.FENCED_INSTANCE_ID
    assert set(world.timers) == {("session", "new")}


# Classic members


def mixed() -> World:
    world = World(classic_group(classic_member("c1", 0, 1, 2, 3)))
    world.upgrade()
    return world


def test_a_new_classic_member_gets_an_id_first() -> None:
    world = mixed()
    first = world.join("", [])
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    assert world.join(first.member_id, []).error_code == 0


@pytest.mark.parametrize(
    "change",
    [
        {"protocol_type": "connect"},
        {"protocols": []},
        {"protocols": [JoinGroupRequest.Protocol(name="else", metadata=subscription("apples"))]},
        {"protocols": [JoinGroupRequest.Protocol(name="range", metadata=b"")]},
    ],
)
def test_protocols_must_match(change: dict[str, Any]) -> None:
    world = mixed()
    written = len(world.log)
    assert world.join("c9", [], **change).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(world.log) == written


def test_a_removed_member_that_owns_partitions_is_rejected() -> None:
    world = World(classic_group(classic_member("c", 0, 1, 2, 3)))
    world.upgrade()
    world.apply(world.consumer.expire(NOW_MS, ("session", "c")))
    written = len(world.log)
    assert world.join("c", [0, 1]).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(world.log) == written
    assert world.join("c", []).error_code == 0


def test_oversized_member_data_is_rejected() -> None:
    world = mixed()
    written = len(world.log)
    large = [JoinGroupRequest.Protocol(name="range", metadata=bytes(300_000))]
    assert world.join("c9", [], protocols=large).error_code == ErrorCode.INVALID_REQUEST
    assert world.join("c" * 2_000, []).error_code == ErrorCode.INVALID_REQUEST
    assert len(world.log) == written


def test_classic_members_are_fenced_by_generation() -> None:
    world = mixed()
    assert world.heartbeat("c1", 6) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("c9", 7) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("new", 8) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync("c1", 6).error_code == ErrorCode.ILLEGAL_GENERATION
    assert world.sync("c1", 7).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert (
        world.sync("c1", 7, protocol_name="x").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    with pytest.raises(BrokerError) as caught:
        world.consumer.commit(NOW_MS, commit_of_member("c1", None, 6, 8))
    assert caught.value.code == ErrorCode.ILLEGAL_GENERATION
    world.consumer.commit(NOW_MS, commit_of_member("c1", None, 7, 8))


@pytest.mark.parametrize("what", ["session", "join", "sync"])
def test_timers_remove_classic_members(what: str) -> None:
    world = mixed()
    if what == "sync":
        world.join("c1", [0, 1, 2, 3])
    else:
        world.heartbeat("c1", 7)
    assert (what, "c1") in world.timers
    world.apply(world.consumer.expire(NOW_MS, (what, "c1")))
    assert set(world.consumer.state.members) == {"new"}
    assert not any(member_id == "c1" for _, member_id in world.timers)


def test_repeated_heartbeats_do_not_prolong_the_join_timer() -> None:
    world = mixed()
    world.heartbeat("c1", 7)
    del world.timers["join", "c1"]
    world.heartbeat("c1", 7)
    assert ("join", "c1") not in world.timers


def test_classic_members_leave() -> None:
    shape = LeaveGroupRequest.Member
    world = World(classic_group(classic_member("c1", 0), classic_member("c2", 1, instance_id="i2")))
    world.upgrade()
    epoch = world.consumer.state.epoch
    rows = world.leave(
        shape(member_id="c1"),
        shape(group_instance_id="i2"),
        shape(member_id="new"),
        shape(member_id="x"),
    )
    codes = [row.error_code for row in rows]
    assert codes == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert set(world.consumer.state.members) == {"new"}
    assert world.consumer.state.epoch == epoch + 1


def test_a_classic_member_becomes_a_consumer_under_its_id() -> None:
    world = mixed()
    world.heartbeat("c1", 7)
    effects = world.consumer.consumer_heartbeat(NOW_MS, consumer_join("c1"), CALLER, TOPICS, 1)
    world.apply(effects)
    assert world.consumer.state.members["c1"].classic is None
    assert ("join", "c1") not in world.timers
    assert not world.consumer.is_all_classic


# Downgrade


def test_a_group_with_only_classic_members_becomes_classic() -> None:
    world = World(classic_group(classic_member("c1", 0, 1), classic_member("c2", 2, 3)))
    world.upgrade()
    assert not world.consumer.is_all_classic
    world.beat("new", -1)
    assert world.consumer.is_all_classic
    classic = ClassicGroup("g", ClassicGroupSettings(), Random(1))
    world.apply(downgrade(world.consumer, classic, NOW_MS, TOPICS))
    state, stored = replayed(world.log)
    assert state == ConsumerState("g")
    assert stored is not None
    assert {each.member_id: each.assignment for each in decode(stored).members} == {
        "c1": assignment(apples=[0, 1]),
        "c2": assignment(apples=[2, 3]),
    }
    assert (classic.generation, classic.protocol_name, classic.state_name) == (
        7,
        "range",
        "PreparingRebalance",
    )
    assert set(classic.roster.members) == {"c1", "c2"}
    effects = Effects()
    assert classic.heartbeat(NOW_MS, "c1", None, 7, effects) == ErrorCode.REBALANCE_IN_PROGRESS
    assert {what for what, _ in world.timers} == {"session", "join"}


def test_an_empty_group_is_not_all_classic() -> None:
    assert not ConsumerGroup("g", ConsumerGroupSettings(), Random(1)).is_all_classic

"""The rules of a consumer group, one test per rule."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from groups.consumer_world import replay
from groups.fixed_topic_view import FixedTopicView
from groups.member_commit import commit_of_member
from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups import group_record as record
from millstream.groups.consumer.consumer_description import describe_consumer_group
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import ConsumerState
from millstream.groups.consumer.reconciliation import CurrentAssignment, MemberState
from millstream.groups.group import Caller
from millstream.groups.subscription.topic_view import AssignableTopic
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

Request, Response = ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
A, B = b"a" * 16, b"b" * 16
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = MemberState


class World:
    """A group with virtual time, two topics and a log."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = 1_000_000
        self.group = ConsumerGroup("g", ConsumerGroupSettings(**options), Random(1))
        self.topics = {"apples": AssignableTopic(A, 4), "berries": AssignableTopic(B, 2)}
        self.version = 1
        self.log: list[LogRecord] = []
        self.timers: dict[TimerKey, int] = {}

    @property
    def view(self) -> FixedTopicView:
        return FixedTopicView(self.topics, self.version)

    def beat(
        self, member_id: str, epoch: int, owned: dict[bytes, list[int]] | None = None, **rest: Any
    ) -> Response:
        rows = (
            owned
            if owned is None
            else [
                Request.TopicPartitions(topic_id=topic, partitions=each)
                for topic, each in owned.items()
            ]
        )
        version = rest.pop("version", 1)
        request = Request(
            group_id="g", member_id=member_id, member_epoch=epoch, topic_partitions=rows, **rest
        )
        caller = Caller("client", "/host", version)
        effects = self.group.consumer_heartbeat(self.now_ms, request, caller, self.view, "token")
        self.apply(effects)
        ((token, response),) = effects.replies
        assert token == "token"
        return response

    def join(self, member_id: str, *names: str, **rest: Any) -> Response:
        rest.setdefault("rebalance_timeout_ms", 30_000)
        rest.setdefault("subscribed_topic_names", list(names) or ["apples"])
        return self.beat(member_id, 0, {}, **rest)

    def apply(self, effects: Effects) -> None:
        self.log += effects.records
        for key, due_ms in effects.timers:
            self.timers.pop(key, None)
            if due_ms is not None:
                self.timers[key] = due_ms

    def change_topics(self, **topics: AssignableTopic | None) -> None:
        self.version += 1
        for name, topic in topics.items():
            self.topics.pop(name, None)
            if topic is not None:
                self.topics[name] = topic

    def expire(self, what: str, member_id: str) -> None:
        self.now_ms = max(self.now_ms, self.timers.pop((what, member_id)))
        self.apply(self.group.expire(self.now_ms, (what, member_id)))

    def current(self, member_id: str) -> CurrentAssignment:
        return self.group.state.members[member_id].current

    def has(self, member_id: str) -> dict[bytes, list[int]]:
        return {topic: sorted(each) for topic, each in self.current(member_id).assigned.items()}


def given_to(response: Response) -> dict[bytes, list[int]] | None:
    assert response.error_code == 0, response
    if response.assignment is None:
        return None
    return {row.topic_id: row.partitions for row in response.assignment.topic_partitions}


# Joining and reconciling


def test_the_first_member_gets_everything_at_once() -> None:
    world = World()
    response = world.join("m1")
    assert (response.member_id, response.member_epoch) == ("m1", 1)
    assert response.heartbeat_interval_ms == 5_000
    assert given_to(response) == {A: [0, 1, 2, 3]}
    assert world.group.state_name == "Stable"
    assert given_to(world.beat("m1", 1)) is None
    kinds = [type(record.decode_key(key)).__name__ for key, _ in world.log]
    assert kinds == [
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupCurrentMemberAssignmentKey",
    ]


def test_a_partition_moves_only_after_its_owner_revoked_it() -> None:
    world = World()
    world.join("m1")
    second = world.join("m2")
    assert (second.member_epoch, given_to(second)) == (2, {})
    assert world.current("m2").state is UNRELEASED
    assert world.group.state_name == "Reconciling"

    response = world.beat("m1", 1)
    assert (response.member_epoch, given_to(response)) == (1, {A: [0, 1]})
    assert world.current("m1").state is UNREVOKED
    # Until the member reports that it has stopped, no heartbeat changes anything.
    assert given_to(world.beat("m1", 1)) is None
    assert given_to(world.beat("m1", 1, {A: [0, 1, 2, 3]})) is None
    assert given_to(world.beat("m2", 2)) is None

    done = world.beat("m1", 1, {A: [0, 1]})
    assert (done.member_epoch, given_to(done)) == (2, None)
    assert given_to(world.beat("m2", 2)) == {A: [2, 3]}
    assert world.group.state_name == "Stable"
    assert world.current("m1").assigned == {A: {0: 1, 1: 1}}
    assert world.current("m2").assigned == {A: {2: 2, 3: 2}}


def test_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    assert ("rebalance", "m1") not in world.timers
    world.beat("m1", 1)
    assert world.timers["rebalance", "m1"] == world.now_ms + 30_000
    world.expire("rebalance", "m1")
    assert "m1" not in world.group.state.members
    assert world.group.state_name == "Assigning"
    assert given_to(world.beat("m2", 2)) == {A: [0, 1, 2, 3]}
    assert world.beat("m1", 1, {A: [0, 1]}).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_late_rebalance_timer_does_nothing() -> None:
    world = World()
    world.join("m1")
    world.apply(world.group.expire(world.now_ms, ("rebalance", "m1")))
    world.apply(world.group.expire(world.now_ms, ("session", "who")))
    assert "m1" in world.group.state.members


def test_revoking_cancels_the_rebalance_timer() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    world.beat("m1", 1, {A: [0, 1]})
    assert ("rebalance", "m1") not in world.timers


def test_a_member_without_heartbeats_is_fenced() -> None:
    world = World()
    world.join("m1")
    assert world.timers["session", "m1"] == world.now_ms + 45_000
    world.now_ms += 5_000
    world.beat("m1", 1)
    assert world.timers["session", "m1"] == world.now_ms + 45_000
    world.expire("session", "m1")
    assert world.group.is_empty
    assert not world.timers


def test_leaving_frees_partitions_at_once() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    response = world.beat("m1", -1)
    assert (response.member_id, response.member_epoch) == ("m1", -1)
    assert given_to(world.beat("m2", 2)) == {A: [0, 1, 2, 3]}
    assert world.beat("m1", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Epochs


def test_a_lost_response_is_repeated() -> None:
    world = World()
    world.join("m1")
    world.join("m2", "berries")
    lost = world.beat("m1", 1)
    assert lost.member_epoch == 2
    again = world.beat(
        "m1", 1, {A: [0, 1]}, rebalance_timeout_ms=30_000, subscribed_topic_names=["apples"]
    )
    assert (again.member_epoch, given_to(again)) == (2, {A: [0, 1, 2, 3]})


@pytest.mark.parametrize(
    ("epoch", "owned"),
    [(3, {}), (1, None), (1, {B: [0]}), (1, {A: [0, 9]}), (0, None)],
)
def test_wrong_epochs_are_fenced(epoch: int, owned: dict[bytes, list[int]] | None) -> None:
    world = World()
    world.join("m1")
    world.join("m2", "berries")
    world.beat("m1", 1)
    expected = ErrorCode.FENCED_MEMBER_EPOCH if epoch else ErrorCode.INVALID_REQUEST
    assert world.beat("m1", epoch, owned).error_code == expected


def test_the_epoch_before_the_last_is_too_old() -> None:
    world = World()
    world.join("m1")
    for number in (2, 3):
        world.join(f"m{number}", "berries")
        world.beat("m1", number - 1)
    assert world.beat("m1", 1, {}).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("m1", 2, {}).error_code == 0


def test_joining_again_under_the_same_id_keeps_the_assignment() -> None:
    world = World()
    world.join("m1")
    written = len(world.log)
    again = world.join("m1")
    assert (again.member_epoch, given_to(again)) == (1, {A: [0, 1, 2, 3]})
    assert len(world.log) == written


def test_a_rejoining_member_owns_no_partition() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    again = world.join("m1")
    assert (again.member_epoch, given_to(again)) == (2, {A: [0, 1]})
    assert given_to(world.beat("m2", 2)) == {A: [2, 3]}


def test_a_member_in_an_unknown_state_must_join_again() -> None:
    world = World()
    world.join("m1")
    state = world.group.state
    state.write_current(Effects(), "m1", CurrentAssignment(1, 1, MemberState(9), {A: {0: 1}}))
    assert world.current("m1").state is UNKNOWN
    assert world.beat("m1", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("m1", 1, {A: [0]}).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert given_to(world.join("m1")) == {A: [0, 1, 2, 3]}


# Rejected requests


@pytest.mark.parametrize(
    ("epoch", "change", "code"),
    [
        (-3, {}, ErrorCode.INVALID_REQUEST),
        (0, {"member_id": ""}, ErrorCode.INVALID_REQUEST),
        (1, {"member_id": "", "version": 0}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        (0, {"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        (0, {"owned": None}, ErrorCode.INVALID_REQUEST),
        (0, {"owned": {A: [0]}}, ErrorCode.INVALID_REQUEST),
        (0, {"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        (-2, {}, ErrorCode.INVALID_REQUEST),
        (0, {"member_id": "m" * 40_000}, ErrorCode.INVALID_REQUEST),
        (0, {"subscribed_topic_names": ["t" * 200] * 2_000}, ErrorCode.INVALID_REQUEST),
        (0, {"subscribed_topic_regex": "\u20ac" * 9_999}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (0, {"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (0, {"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (0, {"subscribed_topic_regex": "a" * 20_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        (-2, {"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_rejected_requests(epoch: int, change: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    fields = {
        "member_id": "m1",
        "owned": {},
        "rebalance_timeout_ms": 1,
        "subscribed_topic_names": ["apples"],
    } | change
    response = world.beat(epoch=epoch, **fields)
    assert response.error_code == code
    assert response.error_message
    assert not world.log
    assert not world.timers
    assert world.group.is_blank


def test_a_full_consumer_group_rejects_new_members() -> None:
    world = World(group_size_max=2)
    world.join("m1")
    world.join("m2", instance_id="i")
    assert world.join("m3").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("m1", 1).error_code == 0
    world.beat("m2", -2, instance_id="i")
    assert world.join("m3", instance_id="i").error_code == 0


def test_the_first_version_lets_the_broker_choose_the_id() -> None:
    world = World()
    response = world.join("", version=0)
    assert response.member_id in world.group.state.members
    assert len(response.member_id) == 22


# Static members


def test_a_restarted_static_member_keeps_its_partitions() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    world.join("m2", instance_id="i2")
    world.beat("m1", 1)
    world.beat("m1", 1, {A: [0, 1]})
    world.beat("m2", 2)
    epoch = world.group.state.epoch
    assert world.beat("m1", -2, instance_id="i1").member_epoch == -2
    assert world.timers["session", "m1"] == world.now_ms + 45_000
    back = world.join("m1b", instance_id="i1")
    assert (back.member_epoch, given_to(back)) == (epoch, {A: [0, 1]})
    assert given_to(world.beat("m2", 2)) is None
    assert world.group.state.epoch == epoch
    assert world.group.state_name == "Stable"
    assert ("session", "m1") not in world.timers
    assert set(world.group.state.members) == {"m1b", "m2"}
    # A client that still uses the old id is fenced.
    assert world.beat("m1", epoch, instance_id="i1").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("m1", -1, instance_id="i1").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("m1", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_id_in_use_is_rejected() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    assert world.join("m2", instance_id="i1").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.join("m1", instance_id="i1").error_code == 0


def test_partitions_of_a_static_member_that_left_temporarily_stay_assigned() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    world.beat("m1", -2, instance_id="i1")
    assert given_to(world.join("m2")) == {}
    assert world.beat("m1", 1, instance_id="i1").error_code == ErrorCode.FENCED_MEMBER_EPOCH
    world.expire("session", "m1")
    assert given_to(world.beat("m2", 2)) == {A: [0, 1, 2, 3]}


def test_a_static_member_that_comes_back_gets_the_newer_target() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    world.beat("m1", -2, instance_id="i1")
    world.join("m2")
    back = world.join("m1b", instance_id="i1")
    assert given_to(back) == {A: [0, 1]}
    assert given_to(world.beat("m2", 2)) == {A: [2, 3]}


def test_a_member_that_becomes_another_instance_frees_its_partitions() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    world.join("m2")
    world.beat("m1", 1)
    world.beat("m1", 1, {A: [0, 1]})
    assert given_to(world.beat("m2", 2)) == {A: [2, 3]}
    world.beat("m1", -2, instance_id="i1")
    assert given_to(world.join("m2", instance_id="i1")) == {A: [0, 1, 2, 3]}
    assert set(world.group.state.members) == {"m2"}


# Topics and subscriptions


def test_new_partitions_are_assigned() -> None:
    world = World()
    world.join("m1")
    world.change_topics(apples=AssignableTopic(A, 5))
    assert given_to(world.beat("m1", 1)) == {A: [0, 1, 2, 3, 4]}
    assert world.group.state.epoch == 2


def test_changes_of_unsubscribed_topics_start_no_epoch() -> None:
    world = World()
    world.join("m1")
    world.change_topics(berries=None, cherries=AssignableTopic(b"c" * 16, 1))
    assert given_to(world.beat("m1", 1)) is None
    assert world.group.state.epoch == 1


def test_subscribed_topics_may_be_created_later_and_deleted() -> None:
    world = World()
    assert given_to(world.join("m1", "cherries")) == {}
    world.change_topics(cherries=AssignableTopic(b"c" * 16, 1))
    assert given_to(world.beat("m1", 1)) == {b"c" * 16: [0]}
    world.change_topics(cherries=AssignableTopic(b"d" * 16, 1))
    assert given_to(world.beat("m1", 2)) == {}
    assert given_to(world.beat("m1", 2, {})) == {b"d" * 16: [0]}


def test_a_change_after_a_member_left_starts_one_epoch_not_two() -> None:
    world = World()
    world.join("m1")
    world.join("m2", "berries")
    world.beat("m1", 1)
    world.beat("m2", -1)
    epoch = world.group.state.epoch
    world.beat("m1", 2)
    assert world.group.state.epoch == world.group.state.target_epoch == epoch
    # Topics that only the removed member subscribed to no longer matter.
    world.change_topics(berries=AssignableTopic(B, 9))
    world.beat("m1", epoch)
    assert world.group.state.epoch == epoch


def test_a_member_may_change_its_subscription() -> None:
    world = World()
    world.join("m1")
    assert given_to(world.beat("m1", 1, subscribed_topic_names=["berries"])) == {}
    assert given_to(world.beat("m1", 1, {})) == {B: [0, 1]}
    assert world.group.is_subscribed("berries")
    assert not world.group.is_subscribed("apples")


def test_patterns_match_new_topics() -> None:
    world = World(pattern_refresh_ms=10_000)
    first = world.join("m1", subscribed_topic_names=None, subscribed_topic_regex="ap.*|ch.*")
    assert given_to(first) == {A: [0, 1, 2, 3]}
    world.change_topics(cherries=AssignableTopic(b"c" * 16, 1))
    assert given_to(world.beat("m1", 1)) is None
    world.now_ms += 10_000
    assert given_to(world.beat("m1", 1)) == {A: [0, 1, 2, 3], b"c" * 16: [0]}
    assert set(world.group.state.patterns) == {"ap.*|ch.*"}
    world.beat("m1", 2, subscribed_topic_regex="", subscribed_topic_names=["apples"])
    assert not world.group.state.patterns


def test_an_unused_pattern_is_deleted() -> None:
    world = World()
    world.join("m1", subscribed_topic_regex="b.*")
    world.join("m2", subscribed_topic_regex="b.*")
    world.beat("m1", -1)
    assert set(world.group.state.patterns) == {"b.*"}
    world.beat("m2", -1)
    assert not world.group.state.patterns


def test_the_assignor_with_the_most_votes_is_used() -> None:
    world = World()
    world.join("m1", "apples", "berries")
    assert world.group.assignor_name == "uniform"
    world.join("m2", "apples", "berries", server_assignor="range")
    assert world.group.assignor_name == "range"
    assert world.group.state.targets == {"m1": {A: {0, 1}, B: {0}}, "m2": {A: {2, 3}, B: {1}}}
    epoch = world.group.state.epoch
    world.beat("m1", 1, server_assignor="uniform")
    assert world.group.assignor_name == "uniform"
    assert world.group.state.epoch == epoch + 1


def test_a_large_group_is_not_assigned_at_every_join() -> None:
    world = World(large_group_size=3, assignment_interval_ms=1_000)
    for number in range(10):
        assert world.join(f"m{number}").error_code == 0
    assert world.group.state.target_epoch == 2
    world.now_ms += 1_000
    world.beat("m9", world.current("m9").epoch)
    assert world.group.state.target_epoch == world.group.state.epoch == 10


def test_partitions_of_unsubscribed_topics_are_revoked_before_a_new_target() -> None:
    world = World(large_group_size=1, assignment_interval_ms=1_000)
    world.join("m1", "apples", "berries")
    response = world.beat("m1", 1, subscribed_topic_names=["berries"])
    assert world.group.state_name == "Assigning"
    assert (response.member_epoch, given_to(response)) == (1, {B: [0, 1]})
    assert world.current("m1").state is UNREVOKED
    assert world.timers["rebalance", "m1"] == world.now_ms + 30_000
    done = world.beat("m1", 1, {B: [0, 1]})
    assert (done.member_epoch, given_to(done)) == (1, None)
    assert world.current("m1") == CurrentAssignment(1, 1, STABLE, {B: {0: 1, 1: 1}})


def test_a_revoking_member_also_revokes_unsubscribed_topics() -> None:
    world = World()
    world.join("m1", "apples", "berries")
    world.join("m2", "apples")
    world.beat("m1", 1)
    assert world.has("m1") == {A: [3], B: [0, 1]}
    response = world.beat("m1", 1, subscribed_topic_names=["apples"])
    assert (response.member_epoch, given_to(response)) == (1, {A: [3]})
    assert world.current("m1").revoking == {A: {0: 1, 1: 1, 2: 1}, B: {0: 1, 1: 1}}
    # The member has revoked the first partitions, but not the rest.
    assert given_to(world.beat("m1", 1, {A: [3], B: [0]})) is None
    done = world.beat("m1", 1, {A: [3]})
    assert (done.member_epoch, given_to(done)) == (3, {A: [2, 3]})


def test_revoking_twice_in_one_epoch() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    world.join("m3")
    world.join("m4")
    response = world.beat("m1", 1, {A: [0, 1]})
    assert (response.member_epoch, given_to(response)) == (1, {A: [0]})
    assert given_to(world.beat("m2", 2)) == {A: [2]}
    done = world.beat("m1", 1, {A: [0]})
    assert (done.member_epoch, given_to(done)) == (4, None)


# Offsets


def commit(world: World, member_id: str, epoch: int, version: int = 9, **rest: Any) -> ErrorCode:
    try:
        world.group.commit(world.now_ms, commit_of_member(member_id, None, epoch, version, **rest))
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def test_commits_are_fenced_by_epoch() -> None:
    world = World()
    assert commit(world, "", -1) == ErrorCode.NONE
    world.join("m1")
    assert commit(world, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "m1", 1) == ErrorCode.NONE
    assert commit(world, "m1", 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    world.expire("session", "m1")
    world.join("m2")
    assert commit(world, "m1", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_older_epoch_may_commit_partitions_owned_ever_since() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    assert commit(world, "m1", 1, partitions=[(A, 0), (A, 3)]) == ErrorCode.NONE
    world.beat("m1", 1, {A: [0, 1]})
    world.beat("m2", 2)
    assert commit(world, "m1", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 1, partitions=[(A, 0), (A, 1)]) == ErrorCode.NONE
    assert commit(world, "m1", 1, partitions=[(A, 0), (A, 3)]) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "m2", 1, partitions=[(A, 3)]) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 3, partitions=[(A, 0)]) == ErrorCode.STALE_MEMBER_EPOCH


def test_fetching_offsets() -> None:
    world = World()
    world.join("m1")
    world.group.check_fetch(None, -1)
    world.group.check_fetch("m1", 1)
    for member_id, epoch, code in (
        ("m1", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("m2", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(BrokerError) as caught:
            world.group.check_fetch(member_id, epoch)
        assert caught.value.code == code


# The log


def replayed(log: list[LogRecord]) -> ConsumerState:
    state = ConsumerState("g")
    replay(state, log)
    return state


def test_a_loaded_group_continues() -> None:
    world = World()
    world.join("m1", subscribed_topic_regex="b.*")
    world.join("m2", instance_id="i2")
    world.beat("m1", 1)
    again = ConsumerGroup("g", ConsumerGroupSettings(), Random(1))
    replay(again.state, world.log)
    assert again.state == world.group.state
    effects = again.loaded(world.now_ms)
    timers = {key: due for key, due in effects.timers if due is not None}
    assert timers == {
        ("session", "m1"): world.now_ms + 45_000,
        ("session", "m2"): world.now_ms + 45_000,
        ("rebalance", "m1"): world.now_ms + 30_000,
    }
    assert not effects.records
    # Nothing changed, so the group does not start a new epoch.
    world.group = again
    epoch = again.state.epoch
    assert given_to(world.beat("m1", 1)) is None
    assert again.state.epoch == epoch


def test_tombstones_delete_all_records() -> None:
    world = World()
    world.join("m1", subscribed_topic_regex="b.*")
    world.join("m2")
    assert replayed(world.log + world.group.tombstones()) == ConsumerState("g")
    keys = {key for key, _ in world.log}
    assert keys == {key for key, value in world.group.tombstones() if value is None}


def test_records_of_older_kafkas() -> None:
    state = ConsumerState("g")
    topics_key = record.ConsumerGroupPartitionMetadataKey(group_id="g")
    state.replay(topics_key, record.ConsumerGroupPartitionMetadataValue())
    shape = record.ConsumerGroupCurrentMemberAssignmentValue
    state.replay(
        record.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m1"),
        shape(
            member_epoch=7,
            assigned_partitions=[shape.TopicPartitions(topic_id=A, partitions=[0, 1])],
        ),
    )
    assert state.members["m1"].current.assigned == {A: {0: 7, 1: 7}}
    assert record.encode(topics_key, None) in state.tombstones()
    effects = Effects()
    state.write_epoch(effects, 8, 1)
    assert effects.records[-1] == record.encode(topics_key, None)
    assert record.encode(topics_key, None) not in state.tombstones()


def test_records_of_other_kinds_are_rejected() -> None:
    with pytest.raises(TypeError):
        ConsumerState("g").replay(record.GroupMetadataKey(group_id="g"), None)


# Describing


def test_describe() -> None:
    world = World()
    world.join("m1", "apples", rack_id="r1", instance_id="i1")
    world.join("m2", "apples", subscribed_topic_regex="b.*")
    world.beat("m1", 1)
    found = describe_consumer_group(world.group, world.view)
    assert (found.group_id, found.group_state, found.assignor_name) == (
        "g",
        "Reconciling",
        "uniform",
    )
    assert (found.group_epoch, found.assignment_epoch) == (2, 2)
    first, second = found.members
    assert (first.member_id, first.instance_id, first.rack_id) == ("m1", "i1", "r1")
    assert (first.client_id, first.client_host, first.member_type) == ("client", "/host", 1)
    assert first.subscribed_topic_names == ["apples"]
    assert second.subscribed_topic_regex == "b.*"
    assert [row.topic_name for row in second.target_assignment.topic_partitions] == [
        "apples",
        "berries",
    ]
    assert [row.partitions for row in second.assignment.topic_partitions] == [[0, 1]]
    world.change_topics(apples=None)
    gone = describe_consumer_group(world.group, world.view).members[0]
    assert gone.assignment.topic_partitions == []

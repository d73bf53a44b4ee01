"""A consumer group with virtual time, timers, topics and a log, and clients of both protocols.

Requests take no time: a client gets the response at the moment of the request, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from groups.fixed_topic_view import FixedTopicView
from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups import group_record as record
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import ConsumerState
from millstream.groups.consumer.reconciliation import OwnedPartitions, PartitionEpochs
from millstream.groups.group import Caller
from millstream.groups.subscription.topic_view import AssignableTopic
from millstream.model.error import ErrorCode
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.schema import decode_prefixed, encode_prefixed

Request, Response = ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
Place = tuple[TopicId, int]

SESSION_MS = 45_000
REBALANCE_MS = 30_000
REJOIN = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


def places(partition_epochs: OwnedPartitions) -> set[Place]:
    return {
        (topic_id, partition) for topic_id, row in partition_epochs.items() for partition in row
    }


def assigned_places(response: Response) -> set[Place]:
    assert response.assignment is not None
    return {
        (row.topic_id, each)
        for row in response.assignment.topic_partitions
        for each in row.partitions
    }


def replay(state: ConsumerState, log: Iterable[LogRecord]) -> None:
    for encoded, value in log:
        key = record.decode_key(encoded)
        assert not isinstance(key, record.UnknownKey)
        state.replay(key, record.decode_value(key, value))


@dataclass(eq=False)
class Client:
    """A client of the consumer protocol. Requests and responses may be lost."""

    member_id: str
    names: list[str]
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    #: The assignment of the last response. The client adds partitions at once, and revokes later.
    target: set[Place] = field(default_factory=set)
    reported: set[Place] | None = None
    is_full: bool = True
    is_alive: bool = True

    def beat(self, world: ConsumerWorld, *, arrives: bool, is_answered: bool) -> None:
        """Send the next heartbeat. After a lost response the following request sets all fields."""
        request = self.request()
        response = world.send(request) if arrives else None
        if response is None or not is_answered:
            self.is_full = True
            return
        self.receive(response, request)

    def request(self) -> Request:
        request = Request(group_id="g", member_id=self.member_id, member_epoch=self.epoch)
        request.instance_id = self.instance_id
        if self.is_full or self.epoch == 0:
            request.subscribed_topic_names = self.names
            request.subscribed_topic_regex = self.pattern or ""
            request.rebalance_timeout_ms = REBALANCE_MS
            request.server_assignor = self.assignor
        if self.is_full or self.epoch == 0 or self.reported != self.owned:
            request.topic_partitions = [
                Request.TopicPartitions(topic_id=topic_id, partitions=[partition])
                for topic_id, partition in sorted(self.owned)
            ]
        return request

    def receive(self, response: Response, sent: Request) -> None:
        if response.error_code:
            assert response.error_code in REJOIN, response
            self.start_over()
            return
        self.is_full = False
        if sent.topic_partitions is not None:
            self.reported = {
                (row.topic_id, each) for row in sent.topic_partitions for each in row.partitions
            }
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.target = assigned_places(response)
            self.owned |= self.target

    def leave(self, world: ConsumerWorld, *, is_for_good: bool) -> None:
        if self.epoch > 0:
            request = Request(group_id="g", member_id=self.member_id, instance_id=self.instance_id)
            is_away = self.instance_id is not None and not is_for_good
            request.member_epoch = -2 if is_away else -1
            world.send(request)

    def start_over(self) -> None:
        self.epoch = 0
        self.owned, self.target, self.reported = set(), set(), None
        self.is_full = True

    def give_up(self) -> None:
        self.owned &= self.target


@dataclass(eq=False)
class ClassicClient:
    """A client of the classic protocol. An eager one revokes all partitions before it rejoins."""

    names: list[str]
    instance_id: str | None
    is_eager: bool
    member_id: str = ""
    epoch: int = -1
    owned: set[Place] = field(default_factory=set)
    is_joining: bool = True
    is_syncing: bool = False
    is_alive: bool = True

    def beat(self, world: ConsumerWorld, *, arrives: bool, is_answered: bool) -> None:
        """Send the next request. A lost request is sent again."""
        if not arrives:
            return
        if self.is_joining:
            self.join(world, is_answered)
        elif self.is_syncing:
            self.sync(world, is_answered)
        else:
            code = world.classic_heartbeat(self)
            if is_answered:
                self.receive(code)

    def receive(self, code: ErrorCode) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.is_joining = True
        elif code:
            self.start_over(code)

    def leave(self, world: ConsumerWorld, *, is_for_good: bool) -> None:
        """Leave the group. Static members shut down without LeaveGroup."""
        if self.instance_id is None:
            leaving = LeaveGroupRequest.Member(member_id=self.member_id)
            world.carry_out(world.group.leave(world.now_ms, [leaving], object()))

    def start_over(self, code: ErrorCode) -> None:
        assert code in (ErrorCode.ILLEGAL_GENERATION, *REJOIN), code
        self.owned, self.is_joining, self.epoch = set(), True, -1
        if code != ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.is_alive = False

    def join(self, world: ConsumerWorld, is_answered: bool) -> None:
        if self.is_eager:
            self.owned = set()
        joined = world.classic_join(self)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = world.classic_join(self)
        if not is_answered:
            return
        if joined.error_code:
            self.start_over(ErrorCode(joined.error_code))
            return
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        self.is_joining, self.is_syncing = False, True

    def sync(self, world: ConsumerWorld, is_answered: bool) -> None:
        synced = world.classic_sync(self)
        if not is_answered:
            return
        self.is_syncing = False
        if synced.error_code:
            self.receive(ErrorCode(synced.error_code))
            return
        assignment = decode_prefixed(ConsumerProtocolAssignment, synced.assignment)
        ids = {name: topic.topic_id for name, topic in world.topics.items()}
        assigned = {
            (ids[row.topic], each)
            for row in assignment.assigned_partitions
            for each in row.partitions
        }
        # A cooperative client has revoked the missing partitions, and joins to report that.
        self.is_joining = not self.owned <= assigned
        self.owned = assigned

    def give_up(self) -> None:
        """The client revoked the partitions when it got the response."""


class ConsumerWorld:
    """A group with virtual time, timers, topics and a log."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = 1_000_000
        self._settings = ConsumerGroupSettings(
            session_timeout_ms=SESSION_MS, pattern_refresh_ms=2_000, **options
        )
        self._random = Random(1)
        self.group = ConsumerGroup("g", self._settings, self._random)
        self.timers: dict[TimerKey, int] = {}
        self.log: list[LogRecord] = []
        #: The state that a replay of the log gives.
        self.replica = ConsumerState("g")
        self.topics = {
            "apples": AssignableTopic(b"a" * 16, 3),
            "berries": AssignableTopic(b"b" * 16, 2),
        }
        self._version = 1

    @property
    def view(self) -> FixedTopicView:
        return FixedTopicView(self.topics, self._version)

    def carry_out(self, effects: Effects) -> list[Any]:
        self.log += effects.records
        replay(self.replica, effects.records)
        for key, due_ms in effects.timers:
            if due_ms is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = due_ms
        return [reply for _, reply in effects.replies]

    def compacted_log(self) -> list[LogRecord]:
        """Return the last record of every key, without tombstones."""
        last = {key: number for number, (key, _) in enumerate(self.log)}
        return [
            (key, value)
            for number, (key, value) in enumerate(self.log)
            if last[key] == number and value is not None
        ]

    def reload(self) -> None:
        """Replace the group by one that is loaded from the log."""
        self.group = ConsumerGroup("g", self._settings, self._random)
        replay(self.group.state, self.compacted_log())
        self.timers.clear()
        self.carry_out(self.group.loaded(self.now_ms))

    def change_topic(self, name: str, more: int) -> None:
        """Add partitions to a topic, create it, or delete it. A new topic gets a new id."""
        self._version += 1
        known = self.topics.get(name)
        if known is None:
            self.topics[name] = AssignableTopic(
                self._version.to_bytes(2) + name[:1].encode() * 14, more
            )
        elif more == 0:
            del self.topics[name]
        else:
            self.topics[name] = known._replace(partition_count=known.partition_count + more)

    def pass_time(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while due := [(due_ms, key) for key, due_ms in self.timers.items() if due_ms <= end_ms]:
            self.now_ms, key = min(due)
            del self.timers[key]
            self.carry_out(self.group.expire(self.now_ms, key))
        self.now_ms = end_ms

    def check_step(self, before: PartitionEpochs, member_id: str) -> None:
        """Check that the client has only partitions of subscribed topics, and keeps those of its
        target."""
        state = self.group.state
        member = state.members[member_id]
        wanted = state.topics_of(member)
        ids = {topic.topic_id for name, topic in self.topics.items() if name in wanted}
        assert member.current.assigned.keys() <= ids
        if state.epoch == state.target_epoch:
            kept = places(before) & places(state.targets[member_id])
            assert kept <= places(member.current.assigned)

    # Requests of clients

    def send(self, request: Request) -> Response:
        known = self.group.state.members.get(request.member_id)
        before = known.current.assigned if known else {}
        caller = Caller("client", "/host", 1)
        (response,) = self.carry_out(
            self.group.consumer_heartbeat(self.now_ms, request, caller, self.view, object())
        )
        if response.error_code == ErrorCode.NONE and request.member_epoch >= 0:
            self.check_step(before, request.member_id)
        return response

    def classic_join(self, client: ClassicClient) -> JoinGroupResponse:
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        shape = ConsumerProtocolSubscription
        rows = [
            shape.TopicPartitions(topic=names[topic_id], partitions=[partition])
            for topic_id, partition in sorted(client.owned)
            if topic_id in names
        ]
        subscription = shape(topics=client.names, owned_partitions=rows, generation_id=client.epoch)
        request = JoinGroupRequest(group_id="g", member_id=client.member_id)
        request.session_timeout_ms, request.rebalance_timeout_ms = SESSION_MS, REBALANCE_MS
        request.group_instance_id, request.protocol_type = client.instance_id, "consumer"
        metadata = encode_prefixed(subscription, 3)
        request.protocols = [JoinGroupRequest.Protocol(name="some", metadata=metadata)]
        caller = Caller("client", "/host", 9)
        effects = self.group.join(self.now_ms, request, caller, self.view, object())
        return self.carry_out(effects)[0]

    def classic_sync(self, client: ClassicClient) -> SyncGroupResponse:
        request = SyncGroupRequest(group_id="g", member_id=client.member_id)
        request.generation_id, request.group_instance_id = client.epoch, client.instance_id
        effects = self.group.sync(self.now_ms, request, self.view, object())
        return self.carry_out(effects)[0]

    def classic_heartbeat(self, client: ClassicClient) -> ErrorCode:
        effects = Effects()
        who = (client.member_id, client.instance_id, client.epoch)
        code = self.group.heartbeat(self.now_ms, *who, effects)
        self.carry_out(effects)
        return code

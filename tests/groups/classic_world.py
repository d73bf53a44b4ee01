"""A classic group with virtual time, timers, a log of records, and responses by token."""

from __future__ import annotations

import random
import struct
from typing import Any

from groups.fixed_topic_view import FixedTopicView
from millstream.coordination.effects import Effects, TimerKey
from millstream.groups import group_record as record
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.group import Caller
from millstream.model.error import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3000
#: Classic groups do not use the topics that exist.
_TOPICS = FixedTopicView({})


def subscription(*topics: str) -> bytes:
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic in topics:
        parts.append(struct.pack(">h", len(topic)) + topic.encode())
    return b"".join([*parts, struct.pack(">i", -1)])


class World:
    """Tokens are numbers that stand for replies; `responses` maps each to its one response."""

    def __init__(self, settings: ClassicGroupSettings | None = None, seed: int = 0) -> None:
        self.now_ms = 1_000_000
        self.settings = settings or ClassicGroupSettings(
            initial_rebalance_delay_ms=INITIAL_DELAY_MS
        )
        self.random = random.Random(seed)
        self.group = ClassicGroup("group", self.settings, self.random)
        self.timers: dict[TimerKey, int] = {}
        self.responses: dict[int, Any] = {}
        self.records: list[tuple[bytes, bytes | None]] = []
        self.last_token = 0
        #: The sender of each SyncGroup, by token.
        self.senders: dict[int, str] = {}

    def carry_out(self, effects: Effects) -> Effects:
        for key, due_ms in effects.timers:
            if due_ms is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = due_ms
        for token, reply in effects.replies:
            assert token not in self.responses, "a request got two responses"
            self.responses[token] = reply
            if token in self.senders and not reply.error_code:
                assert self.senders[token] in self.group.roster, (
                    "an unknown member got an assignment"
                )
        self.records += effects.records
        return effects

    def token(self) -> int:
        self.last_token += 1
        return self.last_token

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        version: int = 9,
        protocol_type: str = "consumer",
        client_id: str = "client",
        session_ms: int = SESSION_MS,
    ) -> int:
        given = [("range", subscription("t"))] if protocols is None else protocols
        request = JoinGroupRequest(
            group_id="group",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.Protocol(name=n, metadata=m) for n, m in given],
        )
        token = self.token()
        caller = Caller(client_id, "/127.0.0.1", version)
        self.carry_out(self.group.join(self.now_ms, request, caller, _TOPICS, token))
        return token

    def join_fully(self, **options: Any) -> tuple[str, int]:
        """Join as a dynamic member: request an id, then join with it. Return id and token."""
        response = self.responses[self.join(**options)]
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id, self.join(response.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id="group",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.Assignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        token = self.token()
        self.senders[token] = member_id
        self.carry_out(self.group.sync(self.now_ms, request, _TOPICS, token))
        return token

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        effects = Effects()
        given = self.group.generation if generation is None else generation
        code = self.group.heartbeat(self.now_ms, member_id, instance_id, given, effects)
        self.carry_out(effects)
        return code

    def leave(self, *members: tuple[str, str | None]) -> Any:
        token = self.token()
        rows = [LeaveGroupRequest.Member(member_id=m, group_instance_id=i) for m, i in members]
        self.carry_out(self.group.leave(self.now_ms, rows, token))
        return self.responses[token]

    # Time

    def advance(self, ms: int) -> None:
        """Advance the time, and expire the timers that are due, in order."""
        end_ms = self.now_ms + ms
        while due := [(at, key) for key, at in self.timers.items() if at <= end_ms]:
            at, key = min(due)
            del self.timers[key]
            self.now_ms = max(self.now_ms, at)
            self.carry_out(self.group.expire(self.now_ms, key))
        self.now_ms = end_ms

    def end_join(self) -> None:
        """Advance the time until the join timer has expired."""
        while (due_ms := self.timers.get(("join", ""))) is not None:
            self.advance(due_ms - self.now_ms)

    # Restarts

    def restart(self) -> None:
        """Replace the broker by one that replays the log. Pending requests get no response."""
        self.timers.clear()
        self.group = replay(self)
        self.carry_out(self.group.loaded(self.now_ms))

    def stable(self, count: int = 2) -> list[str]:
        """Create a stable generation of `count` dynamic members; return their ids, the leader's
        first."""
        members = [self.join_fully() for _ in range(count)]
        self.end_join()
        self.finish_sync([member_id for member_id, _ in members])
        ids = [member_id for member_id, _ in members]
        leader = self.group.roster.leader_id
        return sorted(ids, key=lambda each: each != leader)

    def finish_sync(self, ids: list[str]) -> None:
        generation = self.group.generation
        leader = self.group.roster.leader_id
        for member_id in sorted(ids, key=lambda each: each == leader):
            parts = {each: each.encode() for each in ids} if member_id == leader else None
            self.sync(member_id, generation, parts)


def replay(world: World) -> ClassicGroup:
    group = ClassicGroup("group", world.settings, world.random)
    for raw_key, raw_value in world.records:
        key = record.decode_key(raw_key)
        assert isinstance(key, record.GroupMetadataKey)
        value = record.decode_value(key, raw_value)
        assert isinstance(value, record.GroupMetadataValue)
        group.restore(classic_record.decode(value))
    return group

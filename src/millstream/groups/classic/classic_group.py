"""A classic group: members join, the leader among them assigns, and every member syncs.

The broker does not read assignments. It collects the members of a generation, sends all of them to
one member, the leader, and passes on the leader's assignment.

A group has a `generation` (its members, protocol and state), a `rebalance` (how the next generation
comes about) and a `join` (JoinGroup). This module handles everything else: SyncGroup, Heartbeat,
commits, LeaveGroup, timeouts, and loading from the log.

Timers: ("session", member id) expires when a member is silent; the others are in `rebalance`.

Static members (KIP-345) keep their assignment through a restart. A static member that joins again
under its instance id within the session timeout gets a new member id and the same assignment. A
client that still uses the old id is fenced.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.env.random import Random
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_member import ClassicMember, session_timer
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.groups.classic.generation import ClassicGeneration, join_error, sync_error
from millstream.groups.classic.join import NO_MEMBER_ID, ClassicJoin
from millstream.groups.classic.rebalance import JOIN_TIMER, SYNC_TIMER, ClassicRebalance
from millstream.groups.classic.roster import ClassicRoster
from millstream.groups.group import Caller, GroupKind
from millstream.groups.group_settings import GroupSettings
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE
_DEAD = ClassicState.DEAD


class ClassicGroup:
    """One classic group. Implements `Group`."""

    __slots__ = ("_generation", "_join", "_rebalance", "_settings", "group_id")

    def __init__(self, group_id: str, settings: ClassicGroupSettings, random: Random) -> None:
        self.group_id = group_id
        self._settings = settings
        self._generation = ClassicGeneration(group_id)
        self._rebalance = ClassicRebalance(self._generation, settings)
        self._join = ClassicJoin(self._generation, self._rebalance, settings, random)

    # State

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def state(self) -> ClassicState:
        return self._generation.state

    @property
    def state_name(self) -> str:
        return self._generation.state.value

    @property
    def generation(self) -> int:
        return self._generation.number

    @property
    def protocol_type(self) -> str | None:
        return self._generation.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The protocol of the current generation."""
        return self._generation.protocol_name

    @property
    def is_of_consumers(self) -> bool:
        return self._generation.is_of_consumers

    @property
    def roster(self) -> ClassicRoster:
        return self._generation.roster

    @property
    def member_ids(self) -> list[str]:
        return list(self._generation.roster.members)

    @property
    def is_empty(self) -> bool:
        return self._generation.state is _EMPTY

    @property
    def is_blank(self) -> bool:
        return self.is_empty and self.generation == 0 and not self.has_pending_members

    @property
    def has_pending_members(self) -> bool:
        return bool(self._generation.roster.pending)

    @property
    def is_joinable(self) -> bool:
        return True

    def is_subscribed(self, topic: str) -> bool:
        subscribed = self._generation.subscribed
        if subscribed is None:
            return self.is_of_consumers and not self.is_empty
        return topic in subscribed

    def offset_idle_since(self, commit_ms: int) -> int | None:
        generation = self._generation
        if generation.protocol_type is None:
            return commit_ms
        if self.is_empty:
            return generation.state_since_ms if generation.state_since_ms >= 0 else commit_ms
        is_known = generation.is_of_consumers and generation.subscribed is not None
        return commit_ms if is_known and generation.state is _STABLE else None

    # Joining and syncing

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        return self._join.join(now_ms, request, caller, reply)

    def sync(
        self,
        now_ms: int,
        request: SyncGroupRequest,
        topics: TopicView,
        reply: Reply[SyncGroupResponse],
    ) -> Effects:
        """Handle SyncGroup. The SyncGroup of a follower waits for the leader's."""
        effects = Effects()
        generation = self._generation
        try:
            member = generation.check_member(
                request.member_id, request.group_instance_id, request.generation_id
            )
            if _differs(request.protocol_type, generation.protocol_type) or _differs(
                request.protocol_name, generation.protocol_name
            ):
                raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if generation.state is _PREPARING:
                raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
            self._sync(now_ms, member, request.assignments, reply, effects)
        except BrokerError as error:
            effects.deliver(reply, sync_error(error.code))
        return effects

    def _sync(
        self,
        now_ms: int,
        member: ClassicMember,
        assignments: Sequence[SyncGroupRequest.Assignment],
        reply: Reply[SyncGroupResponse],
        effects: Effects,
    ) -> None:
        is_leader = member.member_id == self.roster.leader_id
        if self.state is _COMPLETING:
            if is_leader:
                self._check_assignments(assignments)
            # A retry on another connection replaces the earlier request.
            member.complete_sync(sync_error(ErrorCode.REBALANCE_IN_PROGRESS), effects)
            member.awaiting_sync = reply
            if is_leader:
                self._assign(now_ms, assignments, effects)
        else:
            member.restart_session(now_ms, effects)
            effects.deliver(reply, self._generation.sync_response(member))
        self._rebalance.mark_synced(member.member_id, effects)

    def _check_assignments(self, assignments: Sequence[SyncGroupRequest.Assignment]) -> None:
        size = sum(len(each.assignment) for each in assignments)
        if self.roster.weight + size > self._settings.record_bytes_max:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _assign(
        self,
        now_ms: int,
        assignments: Sequence[SyncGroupRequest.Assignment],
        effects: Effects,
    ) -> None:
        """Store the leader's assignment, and respond to the members that wait for it."""
        assigned = {each.member_id: each.assignment for each in assignments}
        self._generation.enter(_STABLE, now_ms)
        for member in self.roster:
            self.roster.assign(member, assigned.get(member.member_id, b""))
            if member.complete_sync(self._generation.sync_response(member), effects):
                member.restart_session(now_ms, effects)
        self._generation.append_record(effects)

    # Heartbeats and commits

    def heartbeat(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
    ) -> ErrorCode:
        try:
            member = self._generation.check_member(member_id, instance_id, generation)
        except BrokerError as error:
            return error.code
        member.restart_session(now_ms, effects)
        if self._generation.state is _PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit(self, now_ms: int, commit: OffsetCommit) -> Effects:
        """Check a commit. A member's commit also renews its session.

        While the group has no members, a client that is no member may commit: a consumer that
        assigns its partitions itself, or an operator."""
        effects = Effects()
        self._generation.check_alive()
        if commit.generation < 0 and self.is_empty:
            return effects
        if commit.is_anonymous:
            if commit.is_transactional:
                return effects
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._generation.check_member(
            commit.member_id, commit.instance_id, commit.generation
        )
        if self.state is _COMPLETING and not commit.is_transactional:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.restart_session(now_ms, effects)
        return effects

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Any client may fetch the offsets of a classic group."""

    # Leaving

    def leave(
        self,
        now_ms: int,
        members: Sequence[LeaveGroupRequest.Member],
        reply: Reply[LeaveGroupResponse],
    ) -> Effects:
        effects = Effects()
        response = LeaveGroupResponse()
        if self.state is _DEAD:
            response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            members = ()
        has_left = False
        for leaving in members:
            row = LeaveGroupResponse.Member(
                member_id=leaving.member_id, group_instance_id=leaving.group_instance_id
            )
            response.members.append(row)
            try:
                self._leave(leaving.member_id, leaving.group_instance_id, effects)
                has_left = True
            except BrokerError as error:
                row.error_code = error.code
        if has_left and not self.is_empty:
            self._rebalance.update(now_ms, effects)
        effects.deliver(reply, response)
        return effects

    def _leave(self, member_id: str, instance_id: str | None, effects: Effects) -> None:
        roster = self.roster
        if not member_id and instance_id is not None:
            member_id = roster.static.get(instance_id, NO_MEMBER_ID)
        if member_id not in roster.pending:
            roster.check(member_id, instance_id)
        effects.cancel_timer(session_timer(member_id))
        self._remove(member_id, effects)

    def _remove(self, member_id: str, effects: Effects) -> None:
        """Remove a member or a pending id; its waiting request fails with UNKNOWN_MEMBER_ID."""
        member = self.roster.members.get(member_id)
        if member is not None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            if (reply := self.roster.pop_join(member)) is not None:
                effects.deliver(reply, join_error(code, NO_MEMBER_ID))
            member.complete_sync(sync_error(code), effects)
        self._rebalance.drop_unsynced(member_id)
        self.roster.remove(member_id)

    # Time

    def expire(self, now_ms: int, key: TimerKey) -> Effects:
        effects = Effects()
        if key == JOIN_TIMER:
            self._rebalance.expire_join(now_ms, effects)
        elif key == SYNC_TIMER:
            self._expire_sync(now_ms, effects)
        elif self.state is not _DEAD:
            self._expire_session(now_ms, key[1], effects)
        return effects

    def _expire_session(self, now_ms: int, member_id: str, effects: Effects) -> None:
        member = self.roster.members.get(member_id)
        if member is None:
            self._join.drop_pending(now_ms, member_id, effects)
        elif not member.is_awaiting_response:
            self._remove(member_id, effects)
            self._rebalance.update(now_ms, effects)

    def _expire_sync(self, now_ms: int, effects: Effects) -> None:
        """Remove the members that joined this generation and never sent SyncGroup."""
        unsynced = self._rebalance.unsynced
        if self.state not in (_COMPLETING, _STABLE) or not unsynced:
            return
        for member_id in unsynced:
            effects.cancel_timer(session_timer(member_id))
            self._remove(member_id, effects)
        self._rebalance.update(now_ms, effects)

    def rebalance(self, now_ms: int) -> Effects:
        """Make all members join again, for a reason that the members do not know."""
        effects = Effects()
        self._rebalance.update(now_ms, effects)
        return effects

    # Lifetime

    def configure(self, settings: GroupSettings) -> None:
        """The settings of classic groups do not change while the broker runs."""

    def delete(self) -> None:
        self._generation.state = _DEAD

    def tombstones(self) -> list[LogRecord]:
        return [classic_record.tombstone(self.group_id)]

    def fail_waiting(self, code: ErrorCode) -> Effects:
        effects = Effects()
        for member in self.roster:
            if (reply := self.roster.pop_join(member)) is not None:
                effects.deliver(reply, join_error(code, member.member_id))
            member.complete_sync(sync_error(code), effects)
        return effects

    def loaded(self, now_ms: int) -> Effects:
        effects = Effects()
        for member in self.roster:
            member.restart_session(now_ms, effects)
        if len(self.roster) > self._settings.group_size_max:
            self._rebalance.update(now_ms, effects)
        return effects

    def restore(self, stored: classic_record.StoredGeneration) -> None:
        """Replace the group's state with the contents of its last record."""
        self._generation.restore(stored)


def _differs(sent: str | None, known: str | None) -> bool:
    return sent is not None and known is not None and sent != known

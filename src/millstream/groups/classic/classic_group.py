"""A classic group: everything that can happen to it, as one object.

The states and the rebalance are in `classic_rebalance`, JoinGroup in `classic_join`; the rest is
here: SyncGroup, Heartbeat, commits, LeaveGroup, timeouts, and coming back from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_member import ClassicMember
from millstream.groups.classic.join import NO_MEMBER_ID, ClassicJoin, join_failed
from millstream.groups.classic.rebalance import (
    JOIN_TIMER,
    SYNC_TIMER,
    ClassicGroupSettings,
    ClassicState,
)
from millstream.groups.classic.roster import ClassicRoster
from millstream.groups.group import GroupKind
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicId
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["ClassicGroup", "ClassicGroupSettings", "ClassicState"]

_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE
_DEAD: Final = ClassicState.DEAD


class ClassicGroup(ClassicJoin):
    """See the module's text. Is a `Group`."""

    __slots__ = ()

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_blank(self) -> bool:
        """Whether nothing would be lost with it: it never had members and nobody is coming."""
        return self.is_empty and self.generation == 0 and not self.roster.pending

    def is_subscribed(self, topic: str) -> bool:
        if self._subscribed is None:
            return self.is_of_consumers and not self.is_empty
        return topic in self._subscribed

    def offset_idle_since(self, commit_ms: int) -> int | None:
        if self.protocol_type is None:
            return commit_ms
        if self.is_empty:
            return self.state_since_ms if self.state_since_ms >= 0 else commit_ms
        if self.is_of_consumers and self._subscribed is not None and self.state is _STABLE:
            return commit_ms
        return None

    # Syncing

    def sync(
        self, now_ms: int, request: SyncGroupRequest, reply: Reply[SyncGroupResponse]
    ) -> Effects:
        """SyncGroup. A follower's is answered once the leader's has come."""
        effects = Effects()
        try:
            member = self._check_generation(
                request.member_id, request.group_instance_id, request.generation_id
            )
            if _differs(request.protocol_type, self.protocol_type) or _differs(
                request.protocol_name, self.protocol_name
            ):
                raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self.state is _PREPARING:
                raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
            self._sync(now_ms, member, request.assignments, reply, effects)
        except BrokerError as error:
            effects.deliver(reply, SyncGroupResponse(error_code=error.code))
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
            # A retry on another connection takes the place of the earlier request.
            earlier = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            self._answer_sync(member, earlier, effects)
            member.awaiting_sync = reply
            if is_leader:
                self._assign(now_ms, assignments, effects)
        else:
            self._watch_session(now_ms, member, effects)
            effects.deliver(reply, self._synced(member))
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            effects.cancel_timer(SYNC_TIMER)

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
        """The leader has decided: keep it, and tell those who wait for it."""
        decided = {each.member_id: each.assignment for each in assignments}
        self._enter(_STABLE, now_ms)
        for member in self.roster:
            self.roster.assign(member, decided.get(member.member_id, b""))
            if self._answer_sync(member, self._synced(member), effects):
                self._watch_session(now_ms, member, effects)
        self._persist(effects)

    def _synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # Signs of life

    def heartbeat(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
    ) -> ErrorCode:
        """Heartbeat: returns its answer, which needs no record."""
        try:
            member = self._check_generation(member_id, instance_id, generation)
        except BrokerError as error:
            return error.code
        self._watch_session(now_ms, member, effects)
        if self.state is _PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        partitions: Iterable[tuple[TopicId, int]] | None = None,
        *,
        is_transactional: bool = False,
    ) -> Effects:
        """See `Group.commit`. It is a sign of life.

        Whoever does not claim to be a member may commit while there are no members: a consumer
        that assigns itself, or an operator."""
        effects = Effects()
        self._check_alive()
        if generation < 0 and self.is_empty:
            return effects
        if generation < 0 and not member_id and instance_id is None:
            if is_transactional:
                return effects
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._check_generation(member_id, instance_id, generation)
        if self.state is _COMPLETING and not is_transactional:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._watch_session(now_ms, member, effects)
        return effects

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may read a classic group's offsets."""

    def _check_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicMember:
        self._check_alive()
        member = self.roster.check(member_id, instance_id)
        if generation != self.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # Leaving

    def leave(
        self,
        now_ms: int,
        members: Sequence[LeaveGroupRequest.Member],
        reply: Reply[LeaveGroupResponse],
    ) -> Effects:
        """LeaveGroup. A static member may be named by its instance id alone (an operator does)."""
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
            self._rebalance(now_ms, effects)
        effects.deliver(reply, response)
        return effects

    def _leave(self, member_id: str, instance_id: str | None, effects: Effects) -> None:
        if not member_id and instance_id is not None:
            member_id = self.roster.static.get(instance_id, NO_MEMBER_ID)
        if member_id not in self.roster.pending:
            self.roster.check(member_id, instance_id)
        effects.cancel_timer(("session", member_id))
        self._remove(member_id, effects)

    def _remove(self, member_id: str, effects: Effects) -> None:
        """Drop a member or a pending id; what it waits for is answered with UNKNOWN_MEMBER_ID."""
        member = self.roster.members.get(member_id)
        if member is not None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            if (reply := self.roster.pop_join(member)) is not None:
                effects.deliver(reply, join_failed(code, NO_MEMBER_ID))
            self._answer_sync(member, SyncGroupResponse(error_code=code), effects)
        self._pending_sync.discard(member_id)
        self.roster.remove(member_id)

    # Time

    def expire(self, now_ms: int, key: TimerKey) -> Effects:
        effects = Effects()
        if key == JOIN_TIMER:
            self._end_of_join(now_ms, effects)
        elif key == SYNC_TIMER:
            self._end_of_sync(now_ms, effects)
        elif self.state is not _DEAD:
            self._end_of_session(now_ms, key[1], effects)
        return effects

    def _end_of_session(self, now_ms: int, member_id: str, effects: Effects) -> None:
        member = self.roster.members.get(member_id)
        if member is None:
            self._forget_pending(now_ms, member_id, effects)
        elif not member.is_silent_for_good_reason:
            self._remove(member_id, effects)
            self._rebalance(now_ms, effects)

    def _end_of_sync(self, now_ms: int, effects: Effects) -> None:
        """Members that joined a generation and then never asked for their part are gone."""
        if self.state not in (_COMPLETING, _STABLE) or not self._pending_sync:
            return
        for member_id in sorted(self._pending_sync):
            effects.cancel_timer(("session", member_id))
            self._remove(member_id, effects)
        self._rebalance(now_ms, effects)

    def rebalance(self, now_ms: int) -> Effects:
        """Let all members join again, for a reason that they don't know of."""
        effects = Effects()
        self._rebalance(now_ms, effects)
        return effects

    # The end, and a new beginning elsewhere

    def delete(self) -> None:
        """The group was deleted; nobody may use this object any more."""
        self.state = _DEAD

    def tombstones(self) -> list[LogRecord]:
        return [classic_record.tombstone(self.group_id)]

    def abandon(self, code: ErrorCode) -> Effects:
        effects = Effects()
        for member in self.roster:
            if (reply := self.roster.pop_join(member)) is not None:
                effects.deliver(reply, join_failed(code, member.member_id))
            self._answer_sync(member, SyncGroupResponse(error_code=code), effects)
        return effects

    def loaded(self, now_ms: int) -> Effects:
        """Expect the members of the last generation back, within their session timeouts."""
        effects = Effects()
        for member in self.roster:
            self._watch_session(now_ms, member, effects)
        if len(self.roster) > self._settings.group_size_max:
            self._rebalance(now_ms, effects)
        return effects

    def restore(self, stored: classic_record.StoredGeneration) -> None:
        """Become what the last record says; for replaying the log."""
        self.roster = ClassicRoster()
        for member in stored.members:
            self.roster.add(member)
        if stored.leader in self.roster:
            self.roster.leader_id = stored.leader
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        self.state = _STABLE if self.roster.members else _EMPTY
        self.state_since_ms = stored.state_since_ms
        self._subscribed = self._topics_of_members()


def _differs(said: str | None, known: str | None) -> bool:
    return said is not None and known is not None and said != known

"""How members get into a classic group: JoinGroup.

who joins                          while the group is       what happens
an unknown dynamic member          any                      is given an id to come back with
one with a given-out id, or
an unknown static member           any                      is added: rebalance
a known static member, as new      STABLE, nothing changed  takes its old place: no rebalance
                                   any other                takes its old place: rebalance
a member                           PREPARING_REBALANCE      has joined
a member, unchanged                COMPLETING_REBALANCE     is told the generation again
a member, unchanged, not leading   STABLE                   is told the generation again
a member, otherwise                                         rebalance
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from millstream.coordination.effects import Effects
from millstream.groups.classic.classic_member import ClassicMember, Protocols, weight_of
from millstream.groups.classic.rebalance import ClassicRebalance, ClassicState
from millstream.groups.group import Caller
from millstream.groups.subscription.subscribed_topics import subscribed_topics
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

#: From this version on a dynamic member is told its id before it is let in (KIP-394), so that a
#: client that gave up waiting does not leave a member behind.
_MEMBER_ID_REQUIRED_SINCE: Final = 4
#: From this version on a leader can be told that there is nothing to assign (KIP-814).
_SKIP_ASSIGNMENT_SINCE: Final = 9
NO_MEMBER_ID: Final = ""
#: Of a client id, what goes into member ids.
_CLIENT_ID_CHARACTERS_MAX: Final = 255

_PREPARING, _COMPLETING = ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE
_STABLE = ClassicState.STABLE


class _Joining(NamedTuple):
    """A JoinGroup at work."""

    request: JoinGroupRequest
    protocols: Protocols
    caller: Caller
    reply: Reply[JoinGroupResponse]


class ClassicJoin(ClassicRebalance):
    """See the module's text."""

    __slots__ = ()

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        """JoinGroup. Answered when the generation is complete, or at once with an error."""
        effects = Effects()
        protocols = tuple((each.name, each.metadata) for each in request.protocols)
        try:
            self._join(now_ms, _Joining(request, protocols, caller, reply), effects)
        except BrokerError as error:
            member_id = request.member_id
            if error.code == ErrorCode.GROUP_MAX_SIZE_REACHED:
                # It will not come back under this id.
                self._forget_pending(now_ms, member_id, effects)
                member_id = NO_MEMBER_ID
            effects.deliver(reply, join_failed(error.code, member_id))
        return effects

    def _join(self, now_ms: int, joining: _Joining, effects: Effects) -> None:
        """Raises BrokerError before anything was changed."""
        request, roster = joining.request, self.roster
        member_id, instance_id = request.member_id, request.group_instance_id
        self._check_alive()
        self._check_size(roster.static.get(instance_id or "", member_id))
        self._check_protocols(request.protocol_type, joining.protocols)
        if member_id and member_id not in roster.pending:
            member = roster.check(member_id, instance_id)
            self._check_weight(weight_of(joining.protocols) - weight_of(member.protocols))
            self._rejoin(now_ms, member, joining, effects)
            return
        if member_id and instance_id is not None:
            # Only dynamic members are given an id before they join.
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._check_weight(weight_of(joining.protocols))
        if member_id:
            self._add(now_ms, member_id, joining, effects)
        elif instance_id in roster.static:
            self._return(now_ms, roster.members[roster.static[instance_id]], joining, effects)
        elif instance_id is None and joining.caller.version >= _MEMBER_ID_REQUIRED_SINCE:
            self._expect(now_ms, joining, effects)
        else:
            self._add(now_ms, self._new_member_id(joining), joining, effects)

    def _check_size(self, member_id: str) -> None:
        """Members of a running rebalance count when they join, so that the last to come are
        turned away if the limit was lowered; those of a complete generation are in."""
        roster, most = self.roster, self._settings.group_size_max
        if self.state is _PREPARING:
            member = roster.members.get(member_id)
            is_in = member is not None and member.awaiting_join is not None
            count = roster.awaiting_join_count
        else:
            is_in = member_id in roster
            count = len(roster)
        if not is_in and count >= most:
            raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _check_protocols(self, protocol_type: str, protocols: Protocols) -> None:
        if self.roster.members:
            fits = protocol_type == self.protocol_type and self.roster.supports(protocols)
        else:
            fits = bool(protocol_type) and bool(protocols)
        if not fits:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _check_weight(self, more: int) -> None:
        """Subscriptions may fill half of the record; the rest is for assignments."""
        if more > 0 and self.roster.weight + more > self._settings.record_bytes_max // 2:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _new_member_id(self, joining: _Joining) -> str:
        prefix = joining.request.group_instance_id or joining.caller.client_id
        suffix = uuid.UUID(int=self._random.getrandbits(128), version=4)
        return f"{prefix[:_CLIENT_ID_CHARACTERS_MAX]}-{suffix}"

    def _expect(self, now_ms: int, joining: _Joining, effects: Effects) -> None:
        """Give out an id; its owner has to come back with it."""
        member_id = self._new_member_id(joining)
        forgotten = self.roster.add_pending(member_id)
        if forgotten is not None:
            effects.cancel_timer(("session", forgotten))
        due_ms = now_ms + joining.request.session_timeout_ms
        effects.set_timer(("session", member_id), due_ms)
        effects.deliver(joining.reply, join_failed(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(self, now_ms: int, member_id: str, joining: _Joining, effects: Effects) -> None:
        request, caller = joining.request, joining.caller
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            protocols=joining.protocols,
            awaiting_join=joining.reply,
            is_new=True,
        )
        self.roster.add(member)
        self._has_newcomer = True
        due_ms = now_ms + self._settings.new_member_join_timeout_ms
        effects.set_timer(("session", member_id), due_ms)
        self._rebalance(now_ms, effects)

    def _rejoin(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """A member that we know joins again."""
        is_leader = self.roster.leader_id == member.member_id
        # A leader that joins a stable group knows something that calls for a rebalance, such as
        # more partitions. Others may just have missed our answer.
        is_repetition = self.state is _COMPLETING or (self.state is _STABLE and not is_leader)
        if is_repetition and member.protocols == joining.protocols:
            self._watch_session(now_ms, member, effects)
            effects.deliver(joining.reply, self._joined(member, show_members=is_leader))
            return
        self._await_join(member, joining, effects)
        self._rebalance(now_ms, effects)

    def _await_join(self, member: ClassicMember, joining: _Joining, effects: Effects) -> None:
        self.roster.set_protocols(member, joining.protocols)
        member.session_timeout_ms = joining.request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout_ms(joining.request)
        earlier = self.roster.await_join(member, joining.reply)
        if earlier is not None:
            effects.deliver(earlier, join_failed(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _return(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """A static member came back, or was started twice. It takes its place, without a
        rebalance if nothing else changed."""
        old_id = member.member_id
        topics_before = subscribed_topics([member.metadata(self.protocol_name)])
        self._replace(now_ms, member, joining, effects)
        self._await_join(member, joining, effects)
        if (
            self.state is not _STABLE
            or self.roster.selected_protocol() != self.protocol_name
            or subscribed_topics([member.metadata(self.protocol_name)]) != topics_before
        ):
            self._rebalance(now_ms, effects)
            return
        self.roster.pop_join(member)
        self._persist(effects)
        joined = self._joined(member, show_members=False)
        if joined.leader == member.member_id:
            if joining.caller.version >= _SKIP_ASSIGNMENT_SINCE:
                joined.members = self._members_for_leader()
                joined.skip_assignment = True
            else:
                # It must not take itself for the leader: it would assign, and nobody would listen.
                joined.leader = old_id
        effects.deliver(joining.reply, joined)

    def _replace(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """Give a static member a new id, and fence who used the old one."""
        old_id = member.member_id
        code = ErrorCode.FENCED_INSTANCE_ID
        if (reply := self.roster.pop_join(member)) is not None:
            effects.deliver(reply, join_failed(code, old_id))
        self._answer_sync(member, SyncGroupResponse(error_code=code), effects)
        effects.cancel_timer(("session", old_id))
        self._pending_sync.discard(old_id)
        self.roster.rename(member, self._new_member_id(joining))
        member.client_id, member.client_host = joining.caller.client_id, joining.caller.client_host
        member.is_new = False
        self._watch_session(now_ms, member, effects)

    def _forget_pending(self, now_ms: int, member_id: str, effects: Effects) -> None:
        if member_id in self.roster.pending:
            self.roster.remove(member_id)
            effects.cancel_timer(("session", member_id))
            if self.state is _PREPARING:
                self._rebalance(now_ms, effects)


def join_failed(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has none of its own."""
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms

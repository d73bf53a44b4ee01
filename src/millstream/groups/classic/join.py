"""JoinGroup in a classic group.

member that joins                  group state              result
an unknown dynamic member          any                      gets a member id to join with
one with an assigned id, or
an unknown static member           any                      is added: rebalance
a known static member, without id  STABLE, nothing changed  replaces its old id: no rebalance
                                   any other                replaces its old id: rebalance
a member                           PREPARING_REBALANCE      has joined
a member, unchanged                COMPLETING_REBALANCE     gets the generation again
a member, unchanged, not leading   STABLE                   gets the generation again
a member, otherwise                                         rebalance
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from millstream.coordination.effects import Effects
from millstream.env.random import Random
from millstream.groups.classic.classic_member import (
    ClassicMember,
    Protocols,
    session_timer,
    weight_of,
)
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.groups.classic.generation import ClassicGeneration, join_error, sync_error
from millstream.groups.classic.rebalance import ClassicRebalance
from millstream.groups.group import Caller
from millstream.groups.subscription.subscribed_topics import subscribed_topics
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

#: From this version on a dynamic member gets its id before it is added (KIP-394). So a client that
#: gives up waiting leaves no member behind.
_MEMBER_ID_REQUIRED_SINCE: Final = 4
#: From this version on the response can tell a leader to skip the assignment (KIP-814).
_SKIP_ASSIGNMENT_SINCE: Final = 9
NO_MEMBER_ID: Final = ""
#: Characters of the client id that become part of a member id.
_CLIENT_ID_CHARACTERS_MAX: Final = 255

_PREPARING, _COMPLETING = ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE
_STABLE = ClassicState.STABLE


class _Joining(NamedTuple):
    """One JoinGroup request, its sender and its reply."""

    request: JoinGroupRequest
    protocols: Protocols
    caller: Caller
    reply: Reply[JoinGroupResponse]


class ClassicJoin:
    """Handles JoinGroup for one group."""

    __slots__ = ("_generation", "_random", "_rebalance", "_settings")

    def __init__(
        self,
        generation: ClassicGeneration,
        rebalance: ClassicRebalance,
        settings: ClassicGroupSettings,
        random: Random,
    ) -> None:
        self._generation = generation
        self._rebalance = rebalance
        self._settings = settings
        self._random = random

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        """Handle JoinGroup. The reply waits for the generation, or gets an error at once."""
        effects = Effects()
        protocols = tuple((each.name, each.metadata) for each in request.protocols)
        try:
            self._join(now_ms, _Joining(request, protocols, caller, reply), effects)
        except BrokerError as error:
            member_id = request.member_id
            if error.code == ErrorCode.GROUP_MAX_SIZE_REACHED:
                # The client does not retry with this id.
                self.drop_pending(now_ms, member_id, effects)
                member_id = NO_MEMBER_ID
            effects.deliver(reply, join_error(error.code, member_id))
        return effects

    def drop_pending(self, now_ms: int, member_id: str, effects: Effects) -> None:
        """Forget an assigned member id that no member has joined with."""
        roster = self._generation.roster
        if member_id in roster.pending:
            roster.remove(member_id)
            effects.cancel_timer(session_timer(member_id))
            if self._generation.state is _PREPARING:
                self._rebalance.update(now_ms, effects)

    def _join(self, now_ms: int, joining: _Joining, effects: Effects) -> None:
        """Raises BrokerError before anything changes."""
        request, roster = joining.request, self._generation.roster
        member_id, instance_id = request.member_id, request.group_instance_id
        self._generation.check_alive()
        self._check_size(roster.static.get(instance_id or "", member_id))
        self._check_protocols(request.protocol_type, joining.protocols)
        if member_id and member_id not in roster.pending:
            member = roster.check(member_id, instance_id)
            self._check_weight(weight_of(joining.protocols) - weight_of(member.protocols))
            self._rejoin(now_ms, member, joining, effects)
            return
        if member_id and instance_id is not None:
            # Only dynamic members get an id before they join.
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._check_weight(weight_of(joining.protocols))
        if member_id:
            self._add(now_ms, member_id, joining, effects)
        elif instance_id in roster.static:
            member = roster.members[roster.static[instance_id]]
            self._rejoin_static(now_ms, member, joining, effects)
        elif instance_id is None and joining.caller.version >= _MEMBER_ID_REQUIRED_SINCE:
            self._assign_member_id(now_ms, joining, effects)
        else:
            self._add(now_ms, self._new_member_id(joining), joining, effects)

    # Checks

    def _check_size(self, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group has no room for this member.

        During a rebalance only members that have joined count. So if the limit was lowered, the
        last members to join are rejected."""
        roster, most = self._generation.roster, self._settings.group_size_max
        if self._generation.state is _PREPARING:
            member = roster.members.get(member_id)
            is_in = member is not None and member.awaiting_join is not None
            count = roster.awaiting_join_count
        else:
            is_in = member_id in roster
            count = len(roster)
        if not is_in and count >= most:
            raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _check_protocols(self, protocol_type: str, protocols: Protocols) -> None:
        roster = self._generation.roster
        if roster.members:
            is_same_type = protocol_type == self._generation.protocol_type
            fits = is_same_type and roster.supports(protocols)
        else:
            fits = bool(protocol_type) and bool(protocols)
        if not fits:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _check_weight(self, more: int) -> None:
        """Subscriptions may fill half of the record; the other half is for assignments."""
        weight = self._generation.roster.weight
        if more > 0 and weight + more > self._settings.record_bytes_max // 2:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)

    # New members

    def _new_member_id(self, joining: _Joining) -> str:
        prefix = joining.request.group_instance_id or joining.caller.client_id
        suffix = uuid.UUID(int=self._random.getrandbits(128), version=4)
        return f"{prefix[:_CLIENT_ID_CHARACTERS_MAX]}-{suffix}"

    def _assign_member_id(self, now_ms: int, joining: _Joining, effects: Effects) -> None:
        """Assign a member id; the client has to join again with it."""
        member_id = self._new_member_id(joining)
        dropped = self._generation.roster.add_pending(member_id)
        if dropped is not None:
            effects.cancel_timer(session_timer(dropped))
        due_ms = now_ms + joining.request.session_timeout_ms
        effects.set_timer(session_timer(member_id), due_ms)
        effects.deliver(joining.reply, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(self, now_ms: int, member_id: str, joining: _Joining, effects: Effects) -> None:
        request, caller = joining.request, joining.caller
        if not self._generation.roster.members:
            self._generation.protocol_type = request.protocol_type
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
        self._generation.roster.add(member)
        self._rebalance.add_new_member()
        due_ms = now_ms + self._settings.new_member_join_timeout_ms
        effects.set_timer(session_timer(member_id), due_ms)
        self._rebalance.update(now_ms, effects)

    # Known members

    def _rejoin(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """Handle the JoinGroup of a known member id."""
        generation = self._generation
        is_leader = generation.roster.leader_id == member.member_id
        # A leader that joins a stable group asks for a rebalance, for example because a topic got
        # more partitions. Other members may only have missed the response.
        is_repetition = generation.state is _COMPLETING or (
            generation.state is _STABLE and not is_leader
        )
        if is_repetition and member.protocols == joining.protocols:
            member.restart_session(now_ms, effects)
            response = generation.join_response(member, show_members=is_leader)
            effects.deliver(joining.reply, response)
            return
        self._await_join(member, joining, effects)
        self._rebalance.update(now_ms, effects)

    def _await_join(self, member: ClassicMember, joining: _Joining, effects: Effects) -> None:
        roster = self._generation.roster
        roster.set_protocols(member, joining.protocols)
        member.session_timeout_ms = joining.request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout_ms(joining.request)
        earlier = roster.await_join(member, joining.reply)
        if earlier is not None:
            effects.deliver(earlier, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _rejoin_static(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """Handle the JoinGroup of a static member that restarted, or was started twice.

        The member keeps its assignment under a new id. There is no rebalance if nothing else
        changed."""
        generation, roster = self._generation, self._generation.roster
        old_id = member.member_id
        topics_before = subscribed_topics([member.metadata(generation.protocol_name)])
        self._replace(now_ms, member, joining, effects)
        self._await_join(member, joining, effects)
        if (
            generation.state is not _STABLE
            or roster.selected_protocol() != generation.protocol_name
            or subscribed_topics([member.metadata(generation.protocol_name)]) != topics_before
        ):
            self._rebalance.update(now_ms, effects)
            return
        roster.pop_join(member)
        generation.append_record(effects)
        response = generation.join_response(member, show_members=False)
        if response.leader == member.member_id:
            if joining.caller.version >= _SKIP_ASSIGNMENT_SINCE:
                response.members = generation.members_for_leader()
                response.skip_assignment = True
            else:
                # If the client saw itself as the leader, it would send an assignment that the
                # stable group ignores.
                response.leader = old_id
        effects.deliver(joining.reply, response)

    def _replace(
        self, now_ms: int, member: ClassicMember, joining: _Joining, effects: Effects
    ) -> None:
        """Give a static member a new id, and fence the client that used the old one."""
        roster, old_id = self._generation.roster, member.member_id
        code = ErrorCode.FENCED_INSTANCE_ID
        if (reply := roster.pop_join(member)) is not None:
            effects.deliver(reply, join_error(code, old_id))
        member.complete_sync(sync_error(code), effects)
        effects.cancel_timer(session_timer(old_id))
        self._rebalance.drop_unsynced(old_id)
        roster.rename(member, self._new_member_id(joining))
        member.client_id, member.client_host = joining.caller.client_id, joining.caller.client_host
        member.is_new = False
        member.restart_session(now_ms, effects)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has no rebalance timeout: the session timeout serves as both."""
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms

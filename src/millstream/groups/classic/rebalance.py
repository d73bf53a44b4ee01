"""A classic group: members join, the leader among them assigns, everybody gets its part.

The broker does not know what is assigned. It gathers the members of a generation, hands all of them
to one, the leader, and passes on what the leader decides.

    state                 what it waits for                      ends with
    EMPTY                 a first member
    PREPARING_REBALANCE   every member to (re)join               all have, or a timeout
    COMPLETING_REBALANCE  the leader's assignment                its SyncGroup
    STABLE                nothing
    DEAD                  nothing: the group was deleted, and whoever still refers to it looks anew

    EMPTY                 -> PREPARING_REBALANCE    a member joins
    PREPARING_REBALANCE   -> COMPLETING_REBALANCE   everybody joined, or time is up: new generation
                          -> EMPTY                  nobody is left: new generation
    COMPLETING_REBALANCE  -> STABLE                 the leader's SyncGroup
                          -> PREPARING_REBALANCE    a member comes, goes, fails or changes
    STABLE                -> PREPARING_REBALANCE    the same, or the leader asks for it
    any                   -> DEAD                   the group is deleted

Timers: ("session", member id) the member's silence; ("join", "") the end of PREPARING_REBALANCE;
("sync", "") members that joined but never fetched their assignment.

A record is written when a generation gets its assignment, when the group becomes empty, and when a
static member changes its id. Heartbeats, and a rebalance that goes on, are not: after a restart the
members of the last stable generation are expected back within their session timeouts.

Static members (KIP-345) keep their place through a restart: one that comes back under its instance
id within the session timeout gets a new member id and the same assignment, and whoever still uses
the old id is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from millstream.coordination.effects import Effects, TimerKey
from millstream.env.random import Random
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_member import ClassicMember
from millstream.groups.classic.roster import ClassicRoster
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE
from millstream.groups.subscription.subscribed_topics import subscribed_topics
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT32_MAX
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

JOIN_TIMER: Final[TimerKey] = ("join", "")
SYNC_TIMER: Final[TimerKey] = ("sync", "")


class ClassicState(StrEnum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE
_DEAD = ClassicState.DEAD

#: Where each state may lead.
TRANSITIONS: Final[dict[ClassicState, frozenset[ClassicState]]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_STABLE, _PREPARING, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ClassicGroupSettings:
    """What is the same for all classic groups of a broker."""

    initial_rebalance_delay_ms: int = 3000
    group_size_max: int = INT32_MAX
    #: For a new member's JoinGroup, which may have been given up by its sender.
    new_member_join_timeout_ms: int = 300_000
    #: Bytes that a group's record may take, as the log would refuse a larger one.
    record_bytes_max: int = 900_000


class ClassicRebalance:
    """The states of a group and the way through them. `ClassicGroup` adds the events."""

    __slots__ = (
        "_has_newcomer",
        "_initial_left_ms",
        "_pending_sync",
        "_random",
        "_settings",
        "_subscribed",
        "generation",
        "group_id",
        "protocol_name",
        "protocol_type",
        "roster",
        "state",
        "state_since_ms",
    )

    def __init__(self, group_id: str, settings: ClassicGroupSettings, random: Random) -> None:
        self.group_id = group_id
        self._settings = settings
        self._random = random
        self.state = ClassicState.EMPTY
        #: When it got into its state; -1 if that is not known.
        self.state_since_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None
        #: Set from the end of a join to the end of the next.
        self.protocol_name: str | None = None
        self.roster = ClassicRoster()
        #: Topics of all members; None if they can't be told. Of the current generation.
        self._subscribed: frozenset[str] | None = None
        #: Members of this generation that have not asked for their assignment yet.
        self._pending_sync: set[str] = set()
        #: While the first rebalance of an empty group is held back for more members to come: by
        #: how much it may still be prolonged. None otherwise.
        self._initial_left_ms: int | None = None
        self._has_newcomer = False

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # From one generation to the next

    def _rebalance(self, now_ms: int, effects: Effects) -> None:
        """Something about the members changed: begin a rebalance, or see if it is complete."""
        if self.state is not _PREPARING:
            self._begin_rebalance(now_ms, effects)
            return
        # A first rebalance is held back until its timer, unless all have left again.
        is_held_back = self._initial_left_ms is not None and bool(self.roster.members)
        if self.roster.have_all_joined and not is_held_back:
            self._complete_join(now_ms, effects)

    def _begin_rebalance(self, now_ms: int, effects: Effects) -> None:
        if self.state is _COMPLETING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
            for member in self.roster:
                self.roster.assign(member, b"")
                if self._answer_sync(member, SyncGroupResponse(error_code=code), effects):
                    self._watch_session(now_ms, member, effects)
        self._pending_sync.clear()
        effects.cancel_timer(SYNC_TIMER)
        timeout_ms = self.roster.rebalance_timeout_ms
        if self.state is _EMPTY:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(timeout_ms - delay_ms, 0)
            self._has_newcomer = False
            self._enter(_PREPARING, now_ms)
            effects.set_timer(JOIN_TIMER, now_ms + delay_ms)
            return
        self._enter(_PREPARING, now_ms)
        if self.roster.have_all_joined:
            self._complete_join(now_ms, effects)
        else:
            effects.set_timer(JOIN_TIMER, now_ms + timeout_ms)

    def _end_of_join(self, now_ms: int, effects: Effects) -> None:
        """The join timer is over."""
        if self.state is not _PREPARING:
            return
        if self._initial_left_ms and self._has_newcomer:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._has_newcomer = False
            effects.set_timer(JOIN_TIMER, now_ms + delay_ms)
            return
        self._complete_join(now_ms, effects)

    def _complete_join(self, now_ms: int, effects: Effects) -> None:
        """Close the door: whoever has joined is in the next generation."""
        roster = self.roster
        effects.cancel_timer(JOIN_TIMER)
        self._initial_left_ms = None
        missing = [each for each in roster if each.awaiting_join is None]
        for member in missing:
            # A static member has until its session timeout to come back.
            if member.instance_id is None:
                roster.remove(member.member_id)
                effects.cancel_timer(("session", member.member_id))
        if not roster.members:
            self._become_empty(now_ms, effects)
        elif roster.elect_joined_leader():
            self._begin_generation(now_ms, effects)
        else:
            effects.set_timer(JOIN_TIMER, now_ms + roster.rebalance_timeout_ms)

    def _become_empty(self, now_ms: int, effects: Effects) -> None:
        self.generation = _after(self.generation)
        self.protocol_name = None
        self._subscribed = frozenset() if self.is_of_consumers else None
        self._enter(_EMPTY, now_ms)
        self._persist(effects)

    def _begin_generation(self, now_ms: int, effects: Effects) -> None:
        self.generation = _after(self.generation)
        self.protocol_name = self.roster.selected_protocol()
        self._subscribed = self._topics_of_members()
        self._enter(_COMPLETING, now_ms)
        for member in self.roster:
            self._pending_sync.add(member.member_id)
            reply = self.roster.pop_join(member)
            if reply is None:
                continue
            is_leader = member.member_id == self.roster.leader_id
            effects.deliver(reply, self._joined(member, show_members=is_leader))
            member.is_new = False
            self._watch_session(now_ms, member, effects)
        effects.set_timer(SYNC_TIMER, now_ms + self.roster.rebalance_timeout_ms)

    def _topics_of_members(self) -> frozenset[str] | None:
        if not self.is_of_consumers:
            return None
        return subscribed_topics([member.metadata(self.protocol_name) for member in self.roster])

    # What the steps share

    def _check_alive(self) -> None:
        if self.state is _DEAD:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _joined(self, member: ClassicMember, *, show_members: bool) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader_id or "",
            member_id=member.member_id,
            members=self._members_for_leader() if show_members else [],
        )

    def _members_for_leader(self) -> list[JoinGroupResponse.Member]:
        return [
            JoinGroupResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.roster
        ]

    def _answer_sync(
        self, member: ClassicMember, response: SyncGroupResponse, effects: Effects
    ) -> bool:
        reply, member.awaiting_sync = member.awaiting_sync, None
        if reply is not None:
            effects.deliver(reply, response)
        return reply is not None

    def _watch_session(self, now_ms: int, member: ClassicMember, effects: Effects) -> None:
        effects.set_timer(("session", member.member_id), now_ms + member.session_timeout_ms)

    def _persist(self, effects: Effects) -> None:
        effects.records.append(
            classic_record.encode(
                self.group_id,
                classic_record.StoredGeneration(
                    protocol_type=self.protocol_type,
                    generation=self.generation,
                    protocol_name=self.protocol_name,
                    leader=self.roster.leader_id,
                    state_since_ms=self.state_since_ms,
                    members=list(self.roster),
                ),
            )
        )

    def _enter(self, state: ClassicState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} does not lead to {state}"
        self.state = state
        self.state_since_ms = now_ms


def _after(generation: int) -> int:
    return generation + 1 if generation < INT32_MAX else 1

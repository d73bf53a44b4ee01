"""The current generation of a classic group: its number, state, protocol and members.

Owns the data that joining, rebalancing and syncing share, the record that stores it, and the
responses made of it. Does not decide when a generation begins: `rebalance` does.

A record is written when a generation gets its assignment, when the group becomes empty, and when a
static member changes its id. Heartbeats and rebalances in progress are not recorded: after a
restart the members of the last stable generation have their session timeouts to come back.
"""

from __future__ import annotations

from millstream.coordination.effects import Effects
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_member import ClassicMember
from millstream.groups.classic.classic_state import TRANSITIONS, ClassicState
from millstream.groups.classic.roster import ClassicRoster
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE
from millstream.groups.subscription.subscribed_topics import subscribed_topics
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT32_MAX, NO_TIMESTAMP
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse


class ClassicGeneration:
    """The generation of one group. Pure data with checked state transitions."""

    __slots__ = (
        "group_id",
        "number",
        "protocol_name",
        "protocol_type",
        "roster",
        "state",
        "state_since_ms",
        "subscribed",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        #: When the group entered its state; NO_TIMESTAMP if unknown.
        self.state_since_ms = NO_TIMESTAMP
        self.number = 0
        self.protocol_type: str | None = None
        #: Set from the end of one join phase to the end of the next.
        self.protocol_name: str | None = None
        self.roster = ClassicRoster()
        #: The topics of all members of this generation; None if they are unknown.
        self.subscribed: frozenset[str] | None = None

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def check_alive(self) -> None:
        """Raise COORDINATOR_NOT_AVAILABLE if the group was deleted."""
        if self.state is ClassicState.DEAD:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def check_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicMember:
        """Return the member with this id, or raise the error code for a stale request."""
        self.check_alive()
        member = self.roster.check(member_id, instance_id)
        if generation != self.number:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # Transitions

    def enter(self, state: ClassicState, now_ms: int) -> None:
        """Change the state; the transition must be one of `TRANSITIONS`."""
        assert state in TRANSITIONS[self.state], f"{self.state} does not lead to {state}"
        self.state = state
        self.state_since_ms = now_ms

    def begin(self, now_ms: int) -> None:
        """Begin the next generation with the members of the roster."""
        self._increment()
        self.protocol_name = self.roster.selected_protocol()
        self.subscribed = self._topics_of_members()
        self.enter(ClassicState.COMPLETING_REBALANCE, now_ms)

    def become_empty(self, now_ms: int) -> None:
        """Begin the next generation, which has no members."""
        self._increment()
        self.protocol_name = None
        self.subscribed = frozenset() if self.is_of_consumers else None
        self.enter(ClassicState.EMPTY, now_ms)

    def _increment(self) -> None:
        self.number = self.number + 1 if self.number < INT32_MAX else 1

    def _topics_of_members(self) -> frozenset[str] | None:
        if not self.is_of_consumers:
            return None
        return subscribed_topics([member.metadata(self.protocol_name) for member in self.roster])

    # Records

    def append_record(self, effects: Effects) -> None:
        """Append the record that stores this generation."""
        effects.records.append(
            classic_record.encode(
                self.group_id,
                classic_record.StoredGeneration(
                    protocol_type=self.protocol_type,
                    generation=self.number,
                    protocol_name=self.protocol_name,
                    leader=self.roster.leader_id,
                    state_since_ms=self.state_since_ms,
                    members=list(self.roster),
                ),
            )
        )

    def restore(self, stored: classic_record.StoredGeneration) -> None:
        """Replace everything with the contents of a record."""
        self.roster = ClassicRoster()
        for member in stored.members:
            self.roster.add(member)
        if stored.leader in self.roster:
            self.roster.leader_id = stored.leader
        self.number = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        self.state = ClassicState.STABLE if self.roster.members else ClassicState.EMPTY
        self.state_since_ms = stored.state_since_ms
        self.subscribed = self._topics_of_members()

    # Responses

    def join_response(self, member: ClassicMember, *, show_members: bool) -> JoinGroupResponse:
        """Return the response to a member that is part of this generation."""
        return JoinGroupResponse(
            generation_id=self.number,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader_id or "",
            member_id=member.member_id,
            members=self.members_for_leader() if show_members else [],
        )

    def members_for_leader(self) -> list[JoinGroupResponse.Member]:
        """Return all members with their metadata, from which the leader makes the assignment."""
        return [
            JoinGroupResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.roster
        ]

    def sync_response(self, member: ClassicMember) -> SyncGroupResponse:
        """Return the response with the member's assignment."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """Return the response to a JoinGroup that failed."""
    return JoinGroupResponse(error_code=code, member_id=member_id)


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    """Return the response to a SyncGroup that failed."""
    return SyncGroupResponse(error_code=code)

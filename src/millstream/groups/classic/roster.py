"""The members of a classic group, its leader, and totals over the members.

Owns the members by id, in the order in which they joined; static members by instance id; pending
ids, which were assigned and not used yet; the leader; and running totals that would otherwise need
an iteration over all members. A group with members always has a leader, which is a member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.groups.classic.classic_member import (
    ClassicMember,
    Protocols,
    select_protocol,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupResponse

#: The number of pending ids per group. Beyond it the oldest id is dropped, and a client that joins
#: with it has to request a new one.
PENDING_MAX = 1000


class ClassicRoster:
    """The members of one group. Only the roster adds, removes and renames members."""

    __slots__ = (
        "_support",
        "awaiting_join_count",
        "leader_id",
        "members",
        "pending",
        "static",
        "weight",
    )

    def __init__(self) -> None:
        self.members: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        #: A dict used as an ordered set.
        self.pending: dict[str, None] = {}
        self.leader_id: str | None = None
        self.awaiting_join_count = 0
        #: An upper bound for the bytes of all members in the group's record.
        self.weight = 0
        #: The number of members that support each protocol.
        self._support: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self.members

    def check(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member with this id, or raise UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is not None and current != member_id:
                raise BrokerError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"another consumer joined as {instance_id[:249]!r}",
                )
            if current is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def have_all_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports(self, protocols: Protocols) -> bool:
        """Whether all members support at least one of these protocols."""
        count = len(self.members)
        return any(self._support[name] == count for name, _ in protocols)

    def selected_protocol(self) -> str:
        return select_protocol(self)

    # Changes

    def add_pending(self, member_id: str) -> str | None:
        """Add an assigned id; return the oldest pending id if it is dropped for it."""
        self.pending[member_id] = None
        if len(self.pending) <= PENDING_MAX:
            return None
        oldest = next(iter(self.pending))
        del self.pending[oldest]
        return oldest

    def add(self, member: ClassicMember) -> None:
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, 1)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id; the first remaining member replaces a leader."""
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Change the id of a static member that joined again."""
        assert member.instance_id is not None
        # The member keeps its position: client-side assignors may depend on the order.
        self.members = {(member_id if each is member else each.member_id): each for each in self}
        self.static[member.instance_id] = member_id
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        self.weight += len(member_id) - len(member.member_id)
        member.member_id = member_id

    def set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        self.weight += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def await_join(
        self, member: ClassicMember, reply: Reply[JoinGroupResponse]
    ) -> Reply[JoinGroupResponse] | None:
        """Store the reply to the member's JoinGroup; return the reply that it replaces, if any."""
        earlier, member.awaiting_join = member.awaiting_join, reply
        if earlier is None:
            self.awaiting_join_count += 1
        return earlier

    def pop_join(self, member: ClassicMember) -> Reply[JoinGroupResponse] | None:
        """Remove and return the reply to the member's JoinGroup; None if none waits."""
        reply, member.awaiting_join = member.awaiting_join, None
        if reply is not None:
            self.awaiting_join_count -= 1
        return reply

    def elect_joined_leader(self) -> bool:
        """Elect a leader among the members that have joined; return False if none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.awaiting_join is None:
            joined = (each.member_id for each in self if each.awaiting_join is not None)
            self.leader_id = next(joined, self.leader_id)
            return self.awaiting_join_count > 0
        return True

    def _count(self, member: ClassicMember, step: int) -> None:
        self._count_protocols(member, step)
        if member.awaiting_join is not None:
            self.awaiting_join_count += step

    def _count_protocols(self, member: ClassicMember, step: int) -> None:
        self.weight += step * member.weight
        for name in {name for name, _ in member.protocols}:
            self._support[name] += step
            if not self._support[name]:
                del self._support[name]

"""The members of a classic group, and what follows from who they are.

Owns: members by id in the order they came, static members by instance id, ids that were given out
but not used yet (pending), the leader, and running totals that would cost a pass over all members
otherwise. The leader is always a member, and there is one whenever there are members.
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

#: Ids given out and not used yet that one group keeps; the oldest are forgotten beyond that, and
#: who comes back with one is told to ask again.
PENDING_MAX = 1000


class ClassicRoster:
    """See the module's text. Members are changed through here only."""

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
        #: A dict for its order; the values mean nothing.
        self.pending: dict[str, None] = {}
        self.leader_id: str | None = None
        self.awaiting_join_count = 0
        #: About what all members take in the group's record.
        self.weight = 0
        #: How many members can use each protocol.
        self._support: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self.members

    def check(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member who says to be this one; raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
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
        """The longest that any member asks for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports(self, protocols: Protocols) -> bool:
        """Whether one who can use these has a protocol in common with all members."""
        count = len(self.members)
        return any(self._support[name] == count for name, _ in protocols)

    def selected_protocol(self) -> str:
        return select_protocol(self)

    # Changes

    def add_pending(self, member_id: str) -> str | None:
        """Note an id that was given out; returns one that is forgotten for it, if any."""
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
        """Forget a member or a pending id; another member leads if it was the leader."""
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
        """A static member came back: the same member under a new id."""
        assert member.instance_id is not None
        # Rebuilt so that it keeps its place: assignors of clients may go by the order.
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
        """Let its JoinGroup wait; returns an earlier one that waited until now."""
        earlier, member.awaiting_join = member.awaiting_join, reply
        if earlier is None:
            self.awaiting_join_count += 1
        return earlier

    def pop_join(self, member: ClassicMember) -> Reply[JoinGroupResponse] | None:
        """The JoinGroup that is to be answered now."""
        reply, member.awaiting_join = member.awaiting_join, None
        if reply is not None:
            self.awaiting_join_count -= 1
        return reply

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who has joined; False if nobody has."""
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

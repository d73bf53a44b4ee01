"""A member of a classic group: who it is, which assignors it can use, what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

#: What a member costs in the group's record besides its variable parts.
_OVERHEAD_BYTES = 64

#: Assignors that a member can use, the one it likes best first, each with the member's metadata.
Protocols = Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class ClassicMember:
    """Mutable; owned by its group."""

    member_id: str
    #: Set for a static member: the name under which it comes back after a restart.
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    #: The JoinGroup or SyncGroup that waits for an answer. A member never waits for both.
    awaiting_join: Reply[JoinGroupResponse] | None = None
    awaiting_sync: Reply[SyncGroupResponse] | None = None
    #: Until its first JoinGroup is answered it can't send heartbeats, as it may not know its id.
    is_new: bool = False

    @property
    def is_silent_for_good_reason(self) -> bool:
        """Whether it waits for us, so that a session timeout means nothing."""
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )

    @property
    def weight(self) -> int:
        """About what it takes in the group's record, at most."""
        names = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return weight_of(self.protocols) + len(self.assignment) + names + _OVERHEAD_BYTES

    def metadata(self, protocol: str | None) -> bytes:
        """What it said for one protocol; empty if it said nothing."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The candidate that it likes best; it supports every one of them."""
        return next(name for name, _ in self.protocols if name in candidates)


def weight_of(protocols: Protocols) -> int:
    return max((len(data) for _, data in protocols), default=0)


def supported_by_all(members: Iterable[ClassicMember]) -> list[str]:
    """The protocols that every member can use, in the first member's order."""
    common: dict[str, None] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        if common is None:
            common = dict.fromkeys(name for name, _ in member.protocols)
        else:
            common = {name: None for name in common if name in names}
    return list(common or ())


def select_protocol(members: Iterable[ClassicMember]) -> str:
    """The one protocol for all, each member having one vote; the earliest voters win a tie."""
    members = list(members)
    candidates = frozenset(supported_by_all(members))
    votes: dict[str, int] = {}
    for member in members:
        vote = member.vote(candidates)
        votes[vote] = votes.get(vote, 0) + 1
    return max(votes, key=votes.__getitem__)

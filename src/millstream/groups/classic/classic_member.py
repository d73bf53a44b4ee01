"""A member of a classic group: its identity, its protocols, and its request that waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.coordination.effects import Effects, TimerKey
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

#: Bytes that a member takes in the group's record besides its variable fields.
_OVERHEAD_BYTES = 64

#: The protocols (client-side assignors) of a member, most preferred first, each with the member's
#: metadata.
Protocols = Sequence[tuple[str, bytes]]


def session_timer(member_id: str) -> TimerKey:
    """Return the key of the timer that expires with the member's session."""
    return "session", member_id


@dataclass(slots=True)
class ClassicMember:
    """A member. It is mutable and belongs to one roster."""

    member_id: str
    #: Set for a static member, which keeps this name across restarts.
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    #: The JoinGroup or SyncGroup that waits for a response. A member never waits for both.
    awaiting_join: Reply[JoinGroupResponse] | None = None
    awaiting_sync: Reply[SyncGroupResponse] | None = None
    #: True until the first response to JoinGroup. Before that the client may not know its member
    #: id, so it cannot send heartbeats.
    is_new: bool = False

    @property
    def is_awaiting_response(self) -> bool:
        """Whether the member waits for the broker, so that its session must not expire."""
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )

    @property
    def weight(self) -> int:
        """An upper bound for the bytes that the member takes in the group's record."""
        names = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return weight_of(self.protocols) + len(self.assignment) + names + _OVERHEAD_BYTES

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for one protocol; empty if it does not support it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """Return the member's preferred candidate. The member supports all candidates."""
        return next(name for name, _ in self.protocols if name in candidates)

    def restart_session(self, now_ms: int, effects: Effects) -> None:
        """Set the session timer to a full session timeout from now."""
        effects.set_timer(session_timer(self.member_id), now_ms + self.session_timeout_ms)

    def complete_sync(self, response: SyncGroupResponse, effects: Effects) -> bool:
        """Respond to the SyncGroup that waits; return whether there was one."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            effects.deliver(reply, response)
        return reply is not None


def weight_of(protocols: Protocols) -> int:
    """Return the bytes of the largest metadata: the record holds that of one protocol."""
    return max((len(data) for _, data in protocols), default=0)


def supported_by_all(members: Iterable[ClassicMember]) -> list[str]:
    """Return the protocols that every member supports, in the first member's order."""
    common: dict[str, None] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        if common is None:
            common = dict.fromkeys(name for name, _ in member.protocols)
        else:
            common = {name: None for name in common if name in names}
    return list(common or ())


def select_protocol(members: Iterable[ClassicMember]) -> str:
    """Return the protocol with the most votes, one per member; the first voters win a tie."""
    members = list(members)
    candidates = frozenset(supported_by_all(members))
    votes: dict[str, int] = {}
    for member in members:
        vote = member.vote(candidates)
        votes[vote] = votes.get(vote, 0) + 1
    return max(votes, key=votes.__getitem__)

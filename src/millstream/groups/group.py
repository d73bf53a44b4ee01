"""What the coordinator asks of every group, whichever protocol its members speak."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.model.error import ErrorCode
from millstream.model.topic import TopicId

#: The protocol type of groups whose members are consumers; others (Connect) are opaque to us.
CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupKind(StrEnum):
    """The type of a group, as ListGroups shows it and filters by it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Caller(NamedTuple):
    """Who sent a request, as far as a group cares."""

    client_id: str
    client_host: str
    #: Of the request's API.
    version: int


class Group(Protocol):
    """One group. Pure: see `effects` for what its events return."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    @property
    def state_name(self) -> str:
        """The state as clients are told it."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """None of a group that only ever had offsets committed."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, so that it may be deleted and its offsets may expire."""
        ...

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
        """A member commits offsets of `partitions`. `generation` is the member epoch in a
        consumer group. Raises BrokerError where it may not commit now.

        Inside a transaction a group with members takes commits also of whoever does not say
        who it is, and in the middle of a rebalance."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise BrokerError if whoever says to be this member may not fetch offsets."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether offsets of the topic may neither be deleted nor expire. True when in doubt."""
        ...

    def offset_idle_since(self, commit_ms: int) -> int | None:
        """From when an offset that was committed at `commit_ms` counts as unused, given that its
        topic is not subscribed; None while it may not expire."""
        ...

    def tombstones(self) -> list[LogRecord]:
        """Erases all records of the group itself; offsets are not among them."""
        ...

    def loaded(self, now_ms: int) -> Effects:
        """All its records were replayed, and its members may come back now."""
        ...

    def abandon(self, code: ErrorCode) -> Effects:
        """The group moves away: answer everybody who waits here with `code`."""
        ...

    def expire(self, now_ms: int, key: TimerKey) -> Effects: ...

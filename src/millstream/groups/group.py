"""The interface of a group, whichever protocol its members speak."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.groups.group_settings import GroupSettings

#: The protocol type of groups whose members are consumers. The broker cannot read the metadata of
#: other types, such as Connect's.
CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupKind(StrEnum):
    """The type of a group, as ListGroups shows it and filters by it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Caller(NamedTuple):
    """The client that sent a request."""

    client_id: str
    client_host: str
    #: The version of the request.
    version: int


class Group(Protocol):
    """One group: a pure state machine whose events return `Effects`."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    @property
    def state_name(self) -> str:
        """The state by the name that clients see."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """The protocol type; None for a group with offsets that never had members."""
        ...

    @property
    def member_ids(self) -> Sequence[str]: ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, so that it may be deleted and its offsets expire."""
        ...

    @property
    def is_blank(self) -> bool:
        """Whether the group can be dropped without a record: it never had members, and no client
        is about to join."""
        ...

    @property
    def has_pending_members(self) -> bool:
        """Whether clients got a member id and have not joined with it yet."""
        ...

    @property
    def is_joinable(self) -> bool:
        """Whether a member of the classic protocol can join. If not, a classic group replaces
        this group."""
        ...

    # The classic protocol

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        """Handle JoinGroup."""
        ...

    def sync(
        self,
        now_ms: int,
        request: SyncGroupRequest,
        topics: TopicView,
        reply: Reply[SyncGroupResponse],
    ) -> Effects:
        """Handle SyncGroup."""
        ...

    def heartbeat(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
    ) -> ErrorCode:
        """Handle Heartbeat; return the error code of the response, which depends on no record."""
        ...

    def leave(
        self,
        now_ms: int,
        members: Sequence[LeaveGroupRequest.Member],
        reply: Reply[LeaveGroupResponse],
    ) -> Effects:
        """Handle LeaveGroup. A static member may be named by its instance id alone."""
        ...

    # Offsets

    def commit(self, now_ms: int, commit: OffsetCommit) -> Effects:
        """Check a commit; raise BrokerError if the member may not commit now.

        In a transaction a group with members also accepts anonymous commits, and commits during a
        rebalance."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise BrokerError if the member may not fetch offsets."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether offsets of the topic may be neither deleted nor expired. True when unknown."""
        ...

    def offset_idle_since(self, commit_ms: int) -> int | None:
        """Return when an offset that was committed at `commit_ms` became unused, if its topic is
        not subscribed; None while the offset may not expire."""
        ...

    # Lifetime

    def expire(self, now_ms: int, key: TimerKey) -> Effects:
        """Handle a timer of this group that is due."""
        ...

    def configure(self, settings: GroupSettings) -> None:
        """Use new settings from now on."""
        ...

    def tombstones(self) -> list[LogRecord]:
        """Return the records that delete the group from the log, without its offsets."""
        ...

    def delete(self) -> None:
        """Mark the group as deleted: nothing may use this object any more."""
        ...

    def loaded(self, now_ms: int) -> Effects:
        """Start the members' sessions after all records were replayed."""
        ...

    def fail_waiting(self, code: ErrorCode) -> Effects:
        """Fail every waiting request with `code`, because the group moves to another broker."""
        ...

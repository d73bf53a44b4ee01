"""Validation of ConsumerGroupHeartbeat requests, and the member metadata that they change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from millstream.groups.consumer.consumer_state import ConsumerMember, ConsumerState, MemberMetadata
from millstream.groups.consumer.reconciliation import (
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    MemberState,
    OwnedPartitions,
)
from millstream.groups.group import Caller
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
#: From this version on members generate their own ids (KIP-1082).
_OWN_MEMBER_ID_SINCE: Final = 1
_UNCHANGED_TIMEOUT: Final = -1
#: Limits for one member, so that its records always fit into a batch.
MEMBER_ID_BYTES_MAX: Final = 1_000
METADATA_BYTES_MAX: Final = 256 * 1024


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]
) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a request that no group accepts."""
    epoch = request.member_epoch
    for value, name in (
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        _require(value is None or value.strip() != "", f"{name} is empty")
    _require(epoch >= STATIC_LEAVE_EPOCH, f"MemberEpoch {epoch} is not valid")
    may_lack_id = epoch == JOIN_EPOCH and version < _OWN_MEMBER_ID_SINCE
    _require(may_lack_id or request.member_id.strip() != "", "MemberId is empty")
    names = [request.instance_id or "", request.rack_id or ""]
    check_size(request.member_id, *names, *(request.subscribed_topic_names or ()))
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "InstanceId is missing in a static leave")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor[:80]!r} is not one of {', '.join(assignors)}",
        )


def check_size(member_id: str, *values: str | bytes) -> None:
    """Raise INVALID_REQUEST if the member id or the member's other data is too long."""
    _require(len(member_id.encode()) <= MEMBER_ID_BYTES_MAX, "MemberId is too long")
    size = sum(len(each.encode() if isinstance(each, str) else each) for each in values)
    _require(
        size <= METADATA_BYTES_MAX,
        f"the member's data has {size} bytes; the limit is {METADATA_BYTES_MAX}",
    )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    _require(request.rebalance_timeout_ms >= 0, "RebalanceTimeoutMs is missing in a first request")
    _require(request.topic_partitions == [], "TopicPartitions must be empty in a first request")
    _require(
        request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None,
        "SubscribedTopicNames and SubscribedTopicRegex are both missing in a first request",
    )


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BrokerError(ErrorCode.INVALID_REQUEST, otherwise)


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request sets all fields, so that the response must include the assignment.
    Members send such requests when they join, and when they may have missed a response."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != _UNCHANGED_TIMEOUT
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> OwnedPartitions | None:
    """Return the partitions that the member reports to own; None if the field is missing."""
    if request.topic_partitions is None:
        return None
    owned: dict[TopicId, set[int]] = {}
    for row in request.topic_partitions:
        owned.setdefault(row.topic_id, set()).update(row.partitions)
    return owned


def updated_metadata(
    metadata: MemberMetadata, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> MemberMetadata:
    """Return the member's metadata after a request, in which None means unchanged."""
    changes: dict[str, object] = {
        "client_id": caller.client_id,
        "client_host": caller.client_host,
        # The sender speaks the consumer protocol from now on.
        "classic_member_metadata": None,
    }
    for name in ("instance_id", "rack_id", "server_assignor"):
        if (value := getattr(request, name)) is not None:
            changes[name] = value
    if request.rebalance_timeout_ms != _UNCHANGED_TIMEOUT:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.subscribed_topic_names is not None:
        changes["subscribed_topic_names"] = sorted(set(request.subscribed_topic_names))
    if request.subscribed_topic_regex is not None:
        changes["subscribed_topic_regex"] = request.subscribed_topic_regex or None
    return replace(metadata, **changes)  # type: ignore[arg-type]


# Member identity and epochs


def find_member(state: ConsumerState, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return the member with this id, or raise UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = state.members.get(member_id)
    else:
        member = state.static_member(instance_id)
        if member is not None and member.member_id != member_id:
            raise BrokerError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"another member joined as instance {instance_id[:80]!r}",
            )
    if member is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"group {state.group_id[:80]!r} has no such member"
        )
    return member


def find_joining(
    state: ConsumerState, member_id: str, instance_id: str | None
) -> ConsumerMember | None:
    """Return the member that joins again or is replaced; None for a new member.

    A static member can be replaced once it left temporarily, or if it speaks the classic protocol,
    where the newest instance wins. Raises UNRELEASED_INSTANCE_ID otherwise.
    """
    if instance_id is None:
        return state.members.get(member_id)
    member = state.static_member(instance_id)
    if member is None or member.member_id == member_id:
        return member or state.members.get(member_id)
    if member.current.epoch != STATIC_LEAVE_EPOCH and member.classic is None:
        raise BrokerError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"instance {instance_id[:80]!r} is still in use by another member",
        )
    return member


def check_epoch(current: CurrentAssignment, epoch: int, owned: OwnedPartitions | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member may be in this epoch.

    The member may be in its previous epoch if it owns only assigned partitions: the response with
    the new epoch was lost then.
    """
    if current.state is MemberState.UNKNOWN and (owned is None or any(owned.values())):
        raise _fenced("this broker does not know the member's state")
    if epoch == current.epoch:
        return
    if epoch == current.previous_epoch and epoch < current.epoch and current.covers(owned):
        return
    raise _fenced(f"it sent epoch {epoch}, but its epoch is {current.epoch}")


def check_member_epoch(member: ConsumerMember, epoch: int) -> None:
    """Raise STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member, if it is not its
    epoch."""
    if epoch == member.current.epoch:
        return
    is_classic = member.classic is not None
    code = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    raise BrokerError(code, f"the member is in epoch {member.current.epoch}, not in {epoch}")


def _fenced(reason: str) -> BrokerError:
    return BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member must revoke its partitions and join again: {reason}",
    )

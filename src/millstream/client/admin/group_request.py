"""Requests for consumer groups: list, describe, delete, and read or change their offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    TopicPartition,
)

from millstream.client.admin.group_result import (
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupState,
    GroupType,
    IncompleteListing,
)
from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.result import Outcome
from millstream.client.admin.topic_request import node_of
from millstream.client.error import BrokerError, UsageError, from_kafka
from millstream.client.next_step import next_step
from millstream.client.record import OffsetAndMetadata, Partition, row_of

#: librdkafka's names that differ from Kafka's in more than case.
_LIBRARY_STATES: Final = {
    "PREPARING_REBALANCING": GroupState.PREPARING_REBALANCE,
    "COMPLETING_REBALANCING": GroupState.COMPLETING_REBALANCE,
}
#: States of the consumer protocol, all of which librdkafka calls Unknown.
_NAMELESS_STATES: Final = frozenset({GroupState.ASSIGNING, GroupState.RECONCILING})


def list_groups(
    handle: AdminHandle,
    states: Collection[GroupState],
    types: Collection[GroupType],
    timeout: float,
) -> list[GroupListing]:
    wanted = set(states)
    names = {ours: theirs for theirs, ours in _LIBRARY_STATES.items()}
    # librdkafka cannot filter by a state that it does not know, so it lists all groups then.
    asked = set() if wanted & _NAMELESS_STATES else wanted
    future = handle.client.list_consumer_groups(
        states={ConsumerGroupState[names.get(each, each.name)] for each in asked},
        types={ConsumerGroupType[each.name] for each in types},
        request_timeout=timeout,
    )
    what = "Listing groups"
    result = handle.result(future, what, timeout)
    listed = _with_states(handle, _listings(result.valid), timeout)
    found = [group for group in listed if not wanted or group.state in wanted]
    if result.errors:
        error = from_kafka(result.errors[0], what)
        if isinstance(error, BrokerError):
            raise IncompleteListing(error, found)
        raise error
    return found


def _listings(rows: Iterable[Any]) -> list[GroupListing]:
    return sorted(
        GroupListing(str(row.group_id), _library_state(row.state), _type(row.type)) for row in rows
    )


def _with_states(
    handle: AdminHandle, groups: list[GroupListing], timeout: float
) -> list[GroupListing]:
    """Return the groups with the states that librdkafka's listing does not have."""
    nameless = [
        group.group_id
        for group in groups
        if group.state is GroupState.UNKNOWN and group.type is GroupType.CONSUMER
    ]
    described = describe_groups(handle, nameless, timeout)
    found = []
    for group in groups:
        better = described.get(group.group_id)
        if isinstance(better, GroupDescription):
            found.append(group._replace(state=better.state))
        elif not is_missing_group(better):
            found.append(group)
    return found


def describe_groups(
    handle: AdminHandle, groups: Sequence[str], timeout: float
) -> dict[str, Outcome[GroupDescription]]:
    if not groups:
        return {}
    check_names(groups)
    futures = handle.client.describe_consumer_groups(list(groups), request_timeout=timeout)
    found = handle.outcomes(futures, lambda name: f"Describing group {name!r}", timeout, _group)
    # Brokers describe a group that does not exist as dead.
    return {
        name: missing_group(name, "Describing")
        if isinstance(group, GroupDescription) and group.state is GroupState.DEAD
        else group
        for name, group in found.items()
    }


def delete_groups(
    handle: AdminHandle, groups: Sequence[str], timeout: float
) -> dict[str, Outcome[None]]:
    if not groups:
        return {}
    check_names(groups)
    futures = handle.client.delete_consumer_groups(list(groups), request_timeout=timeout)
    return handle.outcomes(
        futures, lambda name: f"Deleting group {name!r}", timeout, lambda _: None
    )


# Offsets


def list_group_offsets(
    handle: AdminHandle, group: str, timeout: float
) -> dict[Partition, OffsetAndMetadata]:
    check_names([group])
    what = f"Reading the offsets of group {group!r}"
    futures = handle.client.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=timeout
    )
    rows = handle.result(futures[group], what, timeout).topic_partitions
    for row in rows:
        if row.error is not None:
            raise from_kafka(row.error, f"{what} for {row.topic}-{row.partition}")
    return {
        Partition(row.topic, row.partition): OffsetAndMetadata(row.offset, row.metadata or "")
        for row in rows
        if row.offset >= 0
    }


def alter_group_offsets(
    handle: AdminHandle, group: str, offsets: Mapping[Partition, int], timeout: float
) -> dict[Partition, Outcome[None]]:
    check_names([group])
    if not offsets:
        return {}
    what = f"Changing the offsets of group {group!r}"
    rows = [row_of(partition, offset) for partition, offset in offsets.items()]
    futures = handle.client.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, rows)], request_timeout=timeout
    )
    found: dict[Partition, Outcome[None]] = {}
    for row in handle.result(futures[group], what, timeout).topic_partitions:
        if row.error is not None and row.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
            raise active_group(group, what)
        found[Partition(row.topic, row.partition)] = _row_outcome(row, what)
    return found


def _row_outcome(row: TopicPartition, what: str) -> Outcome[None]:
    if row.error is None:
        return None
    return from_kafka(row.error, f"{what} for {row.topic}-{row.partition}")


# Errors


def missing_group(group: str, doing: str) -> BrokerError:
    """Return the error for a group that does not exist."""
    return BrokerError(
        f"{doing} group {group!r}: the group does not exist (GROUP_ID_NOT_FOUND). "
        f"{next_step(KafkaError.GROUP_ID_NOT_FOUND)}",
        "GROUP_ID_NOT_FOUND",
        KafkaError.GROUP_ID_NOT_FOUND,
    )


def is_missing_group(error: object) -> bool:
    """Whether the error says that the group does not exist."""
    return isinstance(error, BrokerError) and error.code == KafkaError.GROUP_ID_NOT_FOUND


def active_group(group: str, what: str) -> BrokerError:
    """Return the error for a group whose members prevent a change."""
    return BrokerError(
        f"{what}: group {group!r} has members, which would overwrite the offsets. Stop them first"
        " (NON_EMPTY_GROUP).",
        "NON_EMPTY_GROUP",
        KafkaError.NON_EMPTY_GROUP,
    )


def check_names(groups: Iterable[str]) -> None:
    """Raise UsageError for an empty name."""
    if isinstance(groups, str) or not all(groups):
        raise UsageError("A group's name cannot be empty.")


# Descriptions


def _group(found: Any) -> GroupDescription:
    kind = _type(found.type)
    members = tuple(
        sorted((_member(each) for each in found.members), key=lambda each: each.member_id)
    )
    state = _library_state(found.state)
    if state is GroupState.UNKNOWN and kind is GroupType.CONSUMER:
        state = _consumer_state(members)
    return GroupDescription(
        group_id=found.group_id,
        state=state,
        type=kind,
        assignor=found.partition_assignor or None,
        coordinator=node_of(found.coordinator),
        members=members,
    )


def _member(found: Any) -> GroupMember:
    target = found.target_assignment
    return GroupMember(
        member_id=str(found.member_id),
        instance_id=found.group_instance_id,
        client_id=found.client_id,
        host=found.host.removeprefix("/"),
        assignment=_partitions(found.assignment),
        target_assignment=None if target is None else _partitions(target),
    )


def _partitions(assignment: Any) -> tuple[Partition, ...]:
    rows = assignment.topic_partitions if assignment else ()
    return tuple(sorted(Partition(row.topic, row.partition) for row in rows))


def _consumer_state(members: Iterable[GroupMember]) -> GroupState:
    """Return a state that librdkafka does not know, which follows from the members.

    A group reconciles while a member's assignment differs from its target. Otherwise it computes an
    assignment."""
    if all(each.target_assignment in (None, each.assignment) for each in members):
        return GroupState.ASSIGNING
    return GroupState.RECONCILING


def _library_state(state: Any) -> GroupState:
    return _LIBRARY_STATES.get(state.name) or GroupState(state.name.capitalize())


def _type(kind: Any) -> GroupType:
    return GroupType(kind.name.capitalize())

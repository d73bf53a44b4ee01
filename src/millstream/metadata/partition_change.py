"""Changes of partition records by compare-and-swap. The only owner of that rule.

A partition's record changes only if the stored record is still the one that the change was decided
on. `swap` builds that comparison and raises the partition epoch by one. There are three ways to
use it:

    replace_partition   one record, decided on a known partition epoch (a leader's ISR change)
    alter_partition     one record; decides again if the record has changed meanwhile
    update_partitions   many records, as many to a transaction as fit (the controller)

Also owns the controller's key, because the controller's changes compare it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.store.port import Compare, Condition, LeaseId, Put, ValueIs
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.topic import TopicId, format_topic_id

#: Returns the record to store, or None to keep the present one; may raise BrokerError.
Decide: TypeAlias = Callable[[PartitionRecord], PartitionRecord | None]

_ATTEMPTS_MAX: Final = 16
_NO_BROKERS: Final[Mapping[int, int]] = Map()


class PartitionChange(NamedTuple):
    """A partition's present record and the record that should replace it."""

    topic_id: TopicId
    partition: int
    before: PartitionRecord
    after: PartitionRecord


class PartitionUpdate(NamedTuple):
    """A new record for the partition as it is at `expected_epoch`."""

    topic_id: TopicId
    partition: int
    record: PartitionRecord
    expected_epoch: int
    #: Broker epochs of brokers that must still be registered and must not be shutting down.
    registered: Mapping[int, int] = _NO_BROKERS


class Swap(NamedTuple):
    """One compare-and-swap of a partition, as a part of a transaction."""

    condition: ValueIs
    put: Put
    #: The record that `put` stores.
    record: PartitionRecord


def swap(key: str, stored: bytes, after: PartitionRecord, epoch: int) -> Swap:
    """Replace the value `stored`, a record at partition epoch `epoch`, with `after`.

    The new record has the next partition epoch, whatever `after` says."""
    record = msgspec.structs.replace(after, partition_epoch=epoch + 1)
    return Swap(ValueIs(key, stored), Put(key, records.encode_partition(record)), record)


def registration_conditions(registered: Mapping[int, int]) -> list[Compare]:
    """Hold while every broker is registered under its epoch and is not shutting down."""
    return [
        condition
        for node_id, epoch in registered.items()
        for condition in (
            Compare(records.broker_key(node_id), epoch),
            Compare(records.leaving_key(node_id), 0),
        )
    ]


async def replace_partition(catalog: Catalog, update: PartitionUpdate) -> PartitionRecord:
    """Replace a partition's record if its epoch is still the expected one; return what is stored.

    INVALID_UPDATE_VERSION if the partition has changed. INELIGIBLE_REPLICA if the partition has not
    changed, but a broker in `registered` is shutting down or has lost that registration.
    UNKNOWN_TOPIC_OR_PARTITION if there is no such partition.
    """
    topic_id, partition, record, expected_epoch, registered = update
    key = records.partition_key(topic_id, partition)
    found = await catalog.store.get(key)
    if found is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {partition} of topic id {format_topic_id(topic_id)}",
        )
    if records.decode_partition(found.value).partition_epoch == expected_epoch:
        change = swap(key, found.value, record, expected_epoch)
        conditions: list[Condition] = [change.condition, *registration_conditions(registered)]
        if await catalog.transact(conditions, [change.put]):
            return change.record
        again = await catalog.store.get(key)
        if again is not None and again.revision == found.revision:
            raise BrokerError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"one of brokers {list(registered)} is no longer registered, or is shutting down",
            )
    raise BrokerError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"{key} is no longer at partition epoch {expected_epoch}",
    )


async def alter_partition(
    catalog: Catalog, topic: str, partition: int, decide: Decide
) -> PartitionRecord | None:
    """Change one partition as `decide` says; return its result, None if nothing is to change.

    Decides again if the record has changed meanwhile. UNKNOWN_TOPIC_OR_PARTITION if there is no
    such partition.
    """
    for _ in range(_ATTEMPTS_MAX):
        found = catalog.image.topic(topic)
        before = catalog.image.partition(topic, partition)
        if found is None or before is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        after = decide(before)
        if after is None:
            return None
        change = PartitionChange(found.topic_id, partition, before, after)
        if (await update_partitions(catalog, [change]))[0]:
            return after
    raise BrokerError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"other changes of {topic}-{partition} came first {_ATTEMPTS_MAX} times; try again",
    )


async def update_partitions(
    catalog: Catalog, changes: Sequence[PartitionChange], guard: Compare | None = None
) -> list[bool]:
    """Store many changes, as many to a transaction as fit; return which of them were stored.

    If a transaction fails, its changes are stored one by one: a record that has changed meanwhile
    fails alone. Nothing is stored once `guard` no longer holds.
    """
    size = catalog.changes_max - 1
    groups = [range(at, min(at + size, len(changes))) for at in range(0, len(changes), size)]
    stored = [False] * len(changes)

    async def store(group: Sequence[int]) -> None:
        if await _update(catalog, [changes[index] for index in group], guard):
            for index in group:
                stored[index] = True
        elif len(group) > 1:
            await asyncio.gather(*(store([index]) for index in group))

    await asyncio.gather(*(store(group) for group in groups))
    return stored


async def _update(
    catalog: Catalog, changes: Sequence[PartitionChange], guard: Compare | None
) -> bool:
    conditions: list[Condition] = [] if guard is None else [guard]
    puts: list[Put] = []
    for topic_id, partition, before, after in changes:
        key = records.partition_key(topic_id, partition)
        change = swap(key, records.encode_partition(before), after, before.partition_epoch)
        conditions.append(change.condition)
        puts.append(change.put)
    return await catalog.transact(conditions, puts) is not None


async def become_controller(catalog: Catalog, broker_id: int, lease: LeaseId) -> Compare | None:
    """Become the controller for as long as `lease` lives; None if another broker is.

    Returns a condition that holds while this broker stays the controller."""
    key = records.CONTROLLER_KEY
    put = Put(key, records.encode_controller(broker_id), lease)
    outcome = await catalog.transact([Compare(key, 0)], [put])
    return None if outcome is None else Compare(key, outcome.revision)

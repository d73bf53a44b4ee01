"""Changes of partition records, by compare-and-swap: one after a decision, or many at once.

Whoever changes a partition compares with the record it decided on, byte for byte, so that nobody's
change is lost.

Also the controller's key, which many changes are guarded by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.store.port import Compare, LeaseId, Put, ValueIs
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicId

#: Gives the record to store, or None to leave it as it is; may raise BrokerError.
Decide: TypeAlias = Callable[[PartitionRecord], PartitionRecord | None]

_ATTEMPTS_MAX: Final = 16


class PartitionChange(NamedTuple):
    """A partition's record and what should replace it."""

    topic_id: TopicId
    partition: int
    before: PartitionRecord
    after: PartitionRecord


async def alter_partition(
    catalog: Catalog, topic: str, partition: int, decide: Decide
) -> PartitionRecord | None:
    """Change one partition as `decide` says; what was stored, or None if nothing was to change.

    Decides again if the record was changed meanwhile. UNKNOWN_TOPIC_OR_PARTITION if there is none.
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
        ErrorCode.REQUEST_TIMED_OUT, f"{topic}-{partition} kept being changed by others; try again"
    )


async def update_partitions(
    catalog: Catalog, changes: Sequence[PartitionChange], guard: Compare | None = None
) -> list[bool]:
    """Make many changes, as many to a transaction as fit; which of them were made.

    One that was overtaken does not keep the others of its transaction from being made. With a
    guard that no longer holds, none is made.
    """
    size = catalog.changes_max - 1
    stretches = [range(at, min(at + size, len(changes))) for at in range(0, len(changes), size)]
    made = [False] * len(changes)

    async def run(stretch: Sequence[int]) -> None:
        if await _update(catalog, [changes[index] for index in stretch], guard):
            for index in stretch:
                made[index] = True
        elif len(stretch) > 1:
            await asyncio.gather(*(run([index]) for index in stretch))

    await asyncio.gather(*(run(stretch) for stretch in stretches))
    return made


async def _update(
    catalog: Catalog, changes: Sequence[PartitionChange], guard: Compare | None
) -> bool:
    compares: list[Compare | ValueIs] = [] if guard is None else [guard]
    puts: list[Put] = []
    for change in changes:
        key = records.partition_key(change.topic_id, change.partition)
        compares.append(ValueIs(key, records.encode_partition(change.before)))
        after = msgspec.structs.replace(
            change.after, partition_epoch=change.before.partition_epoch + 1
        )
        puts.append(Put(key, records.encode_partition(after)))
    return await catalog.transact(compares, puts) is not None


async def become_controller(catalog: Catalog, broker_id: int, lease: LeaseId) -> Compare | None:
    """Be the controller while `lease` lives, if nobody is; returns a guard that holds as long."""
    key = records.CONTROLLER_KEY
    put = Put(key, records.encode_controller(broker_id), lease)
    outcome = await catalog.transact([Compare(key, 0)], [put])
    return None if outcome is None else Compare(key, outcome.revision)

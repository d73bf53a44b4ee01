"""Creates and deletes topics that are too large for one transaction of the store.

Owns the order of the pieces, so that no broker ever sees half a topic, and the removal of what an
interrupted change left. `topic_change` decides about topics.

The key `pending/<topic-id>`, the marker, exists while pieces are stored. Every piece compares it. A
broker that puts the marker again takes the change over: no further piece of the old one succeeds.
    creation   put the marker; put partitions in pieces; put the topic and delete the marker
    deletion   delete the topic and put the marker; delete partitions in pieces; delete the marker
So a marker means that the topic does not exist, and that its partitions must be deleted. A broker
that opens the catalog does that (`sweep`). If it interrupts a creation at another broker, that
broker plans the creation again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from millstream.metadata import cluster_record as records
from millstream.metadata.store.port import (
    Change,
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    MetadataStoreError,
    Put,
    TransactResult,
)
from millstream.metadata.topic_change import NewPartitions, Plan
from millstream.model.topic import format_topic_id

_logger = logging.getLogger(__name__)

PENDING: Final = "pending/"


def growth(new: NewPartitions, changes_max: int) -> list[NewPartitions]:
    """Split an addition of partitions into additions that fit into one transaction each.

    If the change is interrupted, the topic has some of the new partitions."""
    size = changes_max - 1
    present = new.count - len(new.assignment)
    return [
        NewPartitions(new.name, present + min(start + size, len(new.assignment)), piece)
        for start in range(0, len(new.assignment), size)
        if (piece := new.assignment[start : start + size])
    ]


async def make(store: MetadataStore, plan: Plan) -> TransactResult:
    """Create or delete a topic with more changes than fit into one transaction."""
    topic_key = records.topic_key(plan.topic.name)
    topic = next(change for change in plan.changes if change.key == topic_key)
    partitions = [change for change in plan.changes if change is not topic]
    marker = PENDING + format_topic_id(plan.topic.topic_id)
    mark = Put(marker, topic_key.encode())
    if isinstance(topic, Put):
        return await _create(store, plan.compares, topic, partitions, mark)
    return await _delete(store, plan.compares, topic, partitions, mark)


async def sweep(store: MetadataStore) -> int:
    """Delete the remains of interrupted changes; return how many changes there were."""
    found = (await store.range(PENDING)).items
    for marker in found:
        await _clear(store, marker)
    return len(found)


async def _create(
    store: MetadataStore,
    compares: Sequence[Compare],
    topic: Put,
    partitions: Sequence[Change],
    mark: Put,
) -> TransactResult:
    begun = await store.transact([*compares, Compare(mark.key, 0)], [mark])
    if not begun.succeeded:
        return begun
    held = [Compare(mark.key, begun.revision), *compares]
    outcome = await _make_pieces(store, held, partitions, [topic, Delete(mark.key)])
    if not outcome.succeeded:
        await _clear(store, KeyValue(mark.key, mark.value, begun.revision))
    return outcome


async def _delete(
    store: MetadataStore,
    compares: Sequence[Compare],
    topic: Delete,
    partitions: Sequence[Change],
    mark: Put,
) -> TransactResult:
    begun = await store.transact(compares, [topic, mark])
    if begun.succeeded:
        held = [Compare(mark.key, begun.revision)]
        try:
            await _make_pieces(store, held, partitions, [Delete(mark.key)])
        except MetadataStoreError as error:
            # The topic is deleted, so the remaining partitions are invisible.
            _logger.warning("partitions of deleted topic are left for the next start: %s", error)
    return begun


async def _clear(store: MetadataStore, marker: KeyValue) -> None:
    """Take an interrupted change over, unless another broker has, and delete its partitions."""
    held = Compare(marker.key, marker.revision)
    taken = await store.transact([held], [Put(marker.key, marker.value)])
    if taken.succeeded:
        topic_id = marker.key.removeprefix(PENDING)
        left = (await store.range(f"{records.PARTITIONS}{topic_id}/")).items
        deletes = [Delete(item.key) for item in left]
        held = Compare(marker.key, taken.revision)
        await _make_pieces(store, [held], deletes, [Delete(marker.key)])


async def _make_pieces(
    store: MetadataStore,
    compares: Sequence[Compare],
    changes: Sequence[Change],
    last: Sequence[Change],
) -> TransactResult:
    """Store `changes` in as many pieces as needed, and `last` with the last piece."""
    size = store.changes_max - len(last)
    pieces = [changes[start : start + size] for start in range(0, len(changes), size)] or [[]]
    for piece in pieces[:-1]:
        outcome = await store.transact(compares, piece)
        if not outcome.succeeded:
            return outcome
    return await store.transact(compares, [*pieces[-1], *last])

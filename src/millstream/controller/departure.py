"""Changes of a broker's own partitions before it shuts down, and before it registers.

The broker makes them itself: every broker may change a partition's record by compare-and-swap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from millstream.controller import election
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata import replica_set
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.min_isr import configured_min_isr, effective_min_isr
from millstream.metadata.partition_change import PartitionChange, update_partitions
from millstream.metadata.store.port import UncertainError
from millstream.model.topic import TopicPartition

_logger = logging.getLogger(__name__)

#: Decides about partition `number` of a topic, given the effective `min.insync.replicas`.
_Decide: TypeAlias = Callable[[TopicRecord, int, int], PartitionRecord | None]
#: Attempts at partitions whose records other brokers change meanwhile.
_ROUNDS: Final = 5


async def hand_over(catalog: Catalog, broker_id: int) -> int:
    """Hand over leaderships before a shutdown; return the number of changed partitions."""

    def decide(topic: TopicRecord, number: int, min_isr: int) -> PartitionRecord | None:
        record = topic.partitions[number]
        return election.hand_over(record, broker_id, catalog.image.eligible, min_isr)

    return (await _change_all(catalog, decide))[0]


async def distrust(catalog: Catalog, broker_id: int, directory: str = "") -> int:
    """Leave every ISR and ELR with another member after an unclean stop; return their number.

    Called before the broker registers, because it can be elected from then on."""

    def decide(topic: TopicRecord, number: int, min_isr: int) -> PartitionRecord | None:
        return election.distrust(topic.partitions[number], broker_id, min_isr, directory)

    count, _ = await _change_all(catalog, decide)
    if count:
        _logger.info("left %d ISRs after an unclean stop, to catch up", count)
    return count


def has_lost(catalog: Catalog, broker_id: int, folder: LogDirectory) -> bool:
    """Whether `leave_lost` would change a partition."""
    return bool(_changes(catalog, _disk_decision(broker_id, folder)))


async def leave_lost(catalog: Catalog, broker_id: int, folder: LogDirectory) -> int:
    """Leave every ISR, even as the last member, whose log the data directory lacks.

    Returns the number of changed records. Also sets the directory id of replicas that have none in
    the metadata yet. Called before the broker registers, while no other process of this broker is
    registered. Raises UncertainError if other brokers keep changing the same partitions."""

    count, is_done = await _change_all(catalog, _disk_decision(broker_id, folder))
    if not is_done:
        raise UncertainError("other brokers kept changing partitions of this broker")
    if count:
        _logger.warning("%d partition records were changed to match the data directory", count)
    return count


def _disk_decision(broker_id: int, folder: LogDirectory) -> _Decide:
    def decide(topic: TopicRecord, number: int, min_isr: int) -> PartitionRecord | None:
        return match_directory(topic, number, min_isr, broker_id, folder)

    return decide


def match_directory(
    topic: TopicRecord, number: int, min_isr: int, broker_id: int, folder: LogDirectory
) -> PartitionRecord | None:
    """Return the record that matches the broker's data directory, or None if nothing changes.

    A directory without a directory id is new, and has no log."""
    record = topic.partitions[number]
    if broker_id not in record.isr and broker_id not in record.elr:
        return None
    recorded = record.directory(broker_id)
    topic_partition = TopicPartition(topic.name, number)
    if recorded == replica_set.LOST and folder.has_found(topic_partition):
        return replica_set.with_directory(record, broker_id, folder.directory_id)
    if recorded and recorded != folder.directory_id:
        return election.lose_directory(record, broker_id, min_isr)
    if not folder.directory_id or folder.has_lost(topic_partition, topic.topic_id):
        return election.lose_log(record, broker_id, min_isr)
    if not recorded:
        return replica_set.with_directory(record, broker_id, folder.directory_id)
    return None


async def _change_all(catalog: Catalog, decide: _Decide) -> tuple[int, bool]:
    """Change all partitions as `decide` says; return how many changed, and whether all are done."""
    count = 0
    for _ in range(_ROUNDS):
        changes = _changes(catalog, decide)
        if not changes:
            return count, True
        for change in changes:
            if change.before.isr and not change.after.isr:
                _logger.error(
                    "partition %d of %s has no in-sync replica left: it waits for its disk to"
                    " return, or for an unclean election (millstream cluster elect --unclean)",
                    change.partition,
                    catalog.image.topic_names.get(change.topic_id),
                )
        count += sum(await update_partitions(catalog, changes))
    return count, False


def _changes(catalog: Catalog, decide: _Decide) -> list[PartitionChange]:
    changes = []
    for topic in catalog.image.topics.values():
        configured = configured_min_isr(topic, catalog.topic_defaults)
        for number, record in enumerate(topic.partitions):
            after = decide(topic, number, effective_min_isr(configured, record))
            if after is not None:
                changes.append(PartitionChange(topic.topic_id, number, record, after))
    return changes

"""New leader epochs after an unclean stop.

A power cut loses records that were not on disk. Consumers that had read such records detect the
loss by the epoch (KIP-320). Without a new epoch they would continue in the middle of the records
that took over the lost offsets.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.partition_change import alter_partition
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition

#: Leader epochs raised concurrently.
CONCURRENT_UPDATES_MAX: Final = 256


async def raise_leader_epochs(node_id: int, directory: LogDirectory, catalog: Catalog) -> None:
    """Begin a new leader epoch in every partition led here whose log may have lost its tail."""
    affected = [
        (topic.name, number)
        for topic in catalog.image.topics.values()
        for number in range(len(topic.partitions))
        if (log := directory.get(TopicPartition(topic.name, number))) is not None
        and log.log_end_offset > 0
    ]
    for start in range(0, len(affected), CONCURRENT_UPDATES_MAX):
        await asyncio.gather(
            *(
                _raise_leader_epoch(node_id, catalog, topic, number)
                for topic, number in affected[start : start + CONCURRENT_UPDATES_MAX]
            )
        )


async def _raise_leader_epoch(node_id: int, catalog: Catalog, name: str, number: int) -> None:
    """Raise one epoch, unless another broker leads the partition or the topic is deleted by now."""

    def decide(record: PartitionRecord) -> PartitionRecord | None:
        if record.leader != node_id:
            return None
        return msgspec.structs.replace(record, leader_epoch=record.leader_epoch + 1)

    try:
        await alter_partition(catalog, name, number, decide)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise

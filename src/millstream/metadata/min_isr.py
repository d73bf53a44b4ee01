"""The number of in-sync replicas that a partition needs. Pure.

The only place in the broker that compares an ISR with `min.insync.replicas`. The leader (acks=all,
the high watermark), the controller and the metrics call it, so they can't disagree.

While a partition is reassigned, the replicas that are being added do not count towards its number
of replicas: the minimum changes when the reassignment completes. A topic that grows from one
replica to three can be written while the new replicas catch up. Apache Kafka counts the added
replicas at once, and rejects acks=all meanwhile. In-sync replicas count even if they are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.model import durability
from millstream.model.config import TopicConfig

MIN_ISR: Final = "min.insync.replicas"


def replica_count(record: PartitionRecord) -> int:
    """Return the replication factor, without replicas that a reassignment is adding."""
    return len(record.replicas) - len(record.adding)


def configured_min_isr(topic: TopicRecord, defaults: TopicConfig) -> int | None:
    """Return the topic's `min.insync.replicas`, or None if it is not set.

    It is cheap, because the controller calls it for every topic."""
    text = topic.configs.get(MIN_ISR)
    return defaults.min_insync_replicas if text is None else int(text)


def effective_min_isr(configured: int | None, record: PartitionRecord) -> int:
    """Return the number of in-sync replicas that a partition needs."""
    return durability.effective_min_isr(configured, replica_count(record))


def min_isr(record: PartitionRecord, config: TopicConfig) -> int:
    """Return the number of in-sync replicas below which acks=all is rejected."""
    return effective_min_isr(config.min_insync_replicas, record)


def default_min_isr(topic: TopicRecord) -> int:
    """Return the default `min.insync.replicas` of a topic, from its first partition.

    Partitions may differ while they are reassigned."""
    replicas = replica_count(topic.partitions[0]) if topic.partitions else 0
    return durability.default_min_isr(replicas)


def is_enough(isr: Sequence[int], minimum: int) -> bool:
    """Return whether an ISR reaches a minimum, so that new records can be committed."""
    return len(isr) >= minimum


def is_under_min_isr(record: PartitionRecord, config: TopicConfig) -> bool:
    """Return whether too few replicas are in sync for anything new to be committed."""
    # Called for every Produce, mostly with a full ISR, which no minimum can exceed.
    if len(record.isr) >= len(record.replicas):
        return False
    return not is_enough(record.isr, min_isr(record, config))


def is_at_min_isr(record: PartitionRecord, config: TopicConfig) -> bool:
    """Return whether the loss of one more in-sync replica would stop producers with acks=all."""
    return len(record.isr) == min_isr(record, config)

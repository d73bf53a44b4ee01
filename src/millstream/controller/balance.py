"""Which partitions should go back to their preferred leaders. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.controller import election
from millstream.metadata.image import ClusterImage
from millstream.metadata.partition_change import PartitionChange


def imbalance(image: ClusterImage) -> dict[int, float]:
    """Of each broker: which share of the partitions that it should lead is led by others."""
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for topic in image.topics.values():
        for record in topic.partitions:
            first = record.replicas[0]
            preferred[first] += 1
            elsewhere[first] += record.leader != first
    return {broker: elsewhere[broker] / count for broker, count in preferred.items()}


def to_preferred(image: ClusterImage, share_max: float) -> Iterator[PartitionChange]:
    """Elections that bring every broker with more than `share_max` of imbalance back to balance."""
    shares = imbalance(image)
    for topic in image.topics.values():
        for number, record in enumerate(topic.partitions):
            if shares[record.replicas[0]] <= share_max:
                continue
            after = election.prefer(record, image.brokers)
            if after is not None:
                yield PartitionChange(topic.topic_id, number, record, after)

"""Requests for topics and the cluster: create, delete, grow, list and describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions
from confluent_kafka.admin import NewTopic as RdKafkaNewTopic

from millstream.client.admin.config_request import check_texts
from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.result import (
    BrokerNode,
    ClusterDescription,
    NewTopic,
    Outcome,
    PartitionDescription,
    TopicDescription,
)
from millstream.client.record import Partition

#: Brokers name their own topics so.
_INTERNAL_PREFIX: Final = "__"


def create_topics(
    handle: AdminHandle, topics: Sequence[NewTopic], timeout: float, *, validate_only: bool
) -> dict[str, Outcome[None]]:
    for each in topics:
        check_texts(each.config)
    rows = [
        RdKafkaNewTopic(
            each.name, each.partitions, each.replication_factor, config=dict(each.config)
        )
        for each in topics
    ]
    if not rows:
        return {}
    futures = handle.client.create_topics(
        rows, operation_timeout=timeout, request_timeout=timeout, validate_only=validate_only
    )
    return handle.outcomes(futures, lambda name: f"Creating topic {name!r}", timeout, _nothing)


def delete_topics(
    handle: AdminHandle, names: Sequence[str], timeout: float
) -> dict[str, Outcome[None]]:
    if not names:
        return {}
    futures = handle.client.delete_topics(
        list(names), operation_timeout=timeout, request_timeout=timeout
    )
    return handle.outcomes(futures, lambda name: f"Deleting topic {name!r}", timeout, _nothing)


def create_partitions(
    handle: AdminHandle, topic: str, total: int, timeout: float, *, validate_only: bool
) -> None:
    futures = handle.client.create_partitions(
        [NewPartitions(topic, total)],
        operation_timeout=timeout,
        request_timeout=timeout,
        validate_only=validate_only,
    )
    handle.result(futures[topic], f"Adding partitions to topic {topic!r}", timeout)


def list_topics(handle: AdminHandle, timeout: float, *, internal: bool) -> list[str]:
    with handle.translating("Listing topics"):
        found = handle.client.list_topics(timeout=timeout).topics
    return sorted(name for name in found if internal or not name.startswith(_INTERNAL_PREFIX))


def describe_cluster(handle: AdminHandle, timeout: float) -> ClusterDescription:
    future = handle.client.describe_cluster(request_timeout=timeout)
    found = handle.result(future, "Describing the cluster", timeout)
    return ClusterDescription(
        str(found.cluster_id),
        node_of(found.controller),
        tuple(sorted(node for each in found.nodes if (node := node_of(each)) is not None)),
    )


def node_of(node: Any) -> BrokerNode | None:
    """Return librdkafka's node, or None if it stands for no broker."""
    if node is None or node.id < 0:
        return None
    return BrokerNode(node.id, node.host, node.port, node.rack or None)


def partitions_of(
    handle: AdminHandle, topics: Iterable[str], timeout: float
) -> dict[str, list[Partition]]:
    """Return the partitions of each topic. Raises the error of the first that has one."""
    found = describe_topics(handle, list(dict.fromkeys(topics)), timeout, elr=False)
    partitions: dict[str, list[Partition]] = {}
    for name, topic in found.items():
        if not isinstance(topic, TopicDescription):
            raise topic
        partitions[name] = [Partition(name, each.partition) for each in topic.partitions]
    return partitions


def describe_topics(
    handle: AdminHandle, names: Sequence[str], timeout: float, *, elr: bool
) -> dict[str, Outcome[TopicDescription]]:
    if not names:
        return {}
    futures = handle.client.describe_topics(TopicCollection(list(names)), request_timeout=timeout)
    found = handle.outcomes(futures, lambda name: f"Describing topic {name!r}", timeout, _topic)
    known = [name for name, topic in found.items() if isinstance(topic, TopicDescription)]
    if not elr or not known:
        return found
    from millstream.client.admin.protocol_request import eligible_leaders

    eligible = eligible_leaders(handle, known, timeout)
    return {
        name: _with_elr(topic, eligible) if isinstance(topic, TopicDescription) else topic
        for name, topic in found.items()
    }


def _topic(found: Any) -> TopicDescription:
    return TopicDescription(
        name=found.name,
        # librdkafka writes ids in plain base64, Kafka's tools in URL-safe base64.
        topic_id=str(found.topic_id).replace("+", "-").replace("/", "_"),
        is_internal=found.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition=each.id,
                leader=each.leader.id if each.leader and each.leader.id >= 0 else None,
                replicas=tuple(node.id for node in each.replicas),
                isr=tuple(node.id for node in each.isr),
            )
            for each in sorted(found.partitions, key=lambda each: each.id)
        ),
    )


def _with_elr(
    topic: TopicDescription, eligible: dict[Partition, tuple[int, ...] | None]
) -> TopicDescription:
    partitions = tuple(
        dataclasses.replace(each, elr=eligible.get(Partition(topic.name, each.partition)))
        for each in topic.partitions
    )
    return dataclasses.replace(topic, partitions=partitions)


def delete_records(
    handle: AdminHandle, offsets: dict[Partition, int], timeout: float
) -> dict[Partition, Outcome[int]]:
    rows = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
    if not rows:
        return {}
    futures = handle.client.delete_records(rows, operation_timeout=timeout, request_timeout=timeout)
    by_partition = {Partition(row.topic, row.partition): each for row, each in futures.items()}
    return handle.outcomes(
        by_partition,
        lambda each: f"Deleting records of {each.topic}-{each.partition}",
        timeout,
        lambda found: int(found.low_watermark),
    )


def _nothing(_: object) -> None:
    return None

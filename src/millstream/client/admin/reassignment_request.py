"""Requests that move partitions to other brokers. librdkafka does not have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream.client.admin.handle import AdminHandle, rejection
from millstream.client.admin.result import Outcome, Reassignment
from millstream.client.record import Partition
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def alter_reassignments(
    handle: AdminHandle,
    targets: Mapping[Partition, Sequence[int] | None],
    timeout: float,
) -> dict[Partition, Outcome[None]]:
    """Move each partition to these brokers. None cancels its reassignment."""
    if not targets:
        return {}
    what = "Reassigning partitions"
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=int(timeout * 1000), topics=_alter_rows(targets)
    )
    with handle.cluster(what, timeout) as cluster:
        response = cluster.attempt(
            "reassign partitions",
            lambda: cluster.any_connection().call(request, AlterPartitionReassignmentsResponse),
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    return {
        Partition(topic.name, row.partition_index): rejection(
            row.error_code, f"Reassigning {topic.name}-{row.partition_index}", row.error_message
        )
        if row.error_code
        else None
        for topic in response.responses
        for row in topic.partitions
    }


def list_reassignments(
    handle: AdminHandle, topics: Iterable[str] | None, timeout: float
) -> dict[Partition, Reassignment]:
    """Return the partitions that are moving, of these topics or of all."""
    what = "Listing reassignments"
    request = ListPartitionReassignmentsRequest(timeout_ms=int(timeout * 1000), topics=None)
    with handle.cluster(what, timeout) as cluster:
        response = cluster.attempt(
            "list reassignments",
            lambda: cluster.any_connection().call(request, ListPartitionReassignmentsResponse),
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    names = None if topics is None else set(topics)
    return {
        Partition(topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in response.topics
        if names is None or topic.name in names
        for row in topic.partitions
    }


def _alter_rows(
    targets: Mapping[Partition, Sequence[int] | None],
) -> list[AlterPartitionReassignmentsRequest.Topic]:
    shape = AlterPartitionReassignmentsRequest.Topic
    rows: dict[str, AlterPartitionReassignmentsRequest.Topic] = {}
    for (topic, number), brokers in targets.items():
        row = rows.setdefault(topic, shape(name=topic, partitions=[]))
        replicas = None if brokers is None else list(brokers)
        row.partitions.append(shape.Partition(partition_index=number, replicas=replicas))
    return list(rows.values())

"""DescribeLogDirs: versions 1 to 5. The data directory, and the size of each log in it."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import CLUSTER_NAME, Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.replication.partition import Partition
from millstream.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_Topic = DescribeLogDirsResponse.Result.Topic


def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    if not context.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        # Up to version 2 the response has no error code, and is empty.
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    replicas = context.services.replicas
    if request.topics is None:
        chosen = list(replicas)
    else:
        chosen = [
            partition
            for topic in request.topics
            for number in topic.partitions
            if (partition := replicas.get(topic.topic, number)) is not None
        ]
    by_topic: dict[str, list[_Topic.Partition]] = defaultdict(list)
    for partition in chosen:
        by_topic[partition.topic_partition.topic].append(_describe(partition))
    storage = context.services.directory.storage
    total_bytes, usable_bytes = storage.disk.space(storage.path)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResponse.Result(
                log_dir=str(storage.path.resolve()),
                topics=[
                    _Topic(name=name, partitions=partitions)
                    for name, partitions in by_topic.items()
                ],
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
            )
        ]
    )


API: Final = ApiEntry(
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    versions=(1, 5),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)


def _describe(partition: Partition) -> _Topic.Partition:
    return _Topic.Partition(
        partition_index=partition.topic_partition.partition,
        partition_size=partition.log.size_bytes,
    )

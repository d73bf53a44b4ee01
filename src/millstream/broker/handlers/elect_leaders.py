"""ElectLeaders: versions 0 to 2. Any broker executes it, by compare-and-swap.

Type 0 elects the preferred replica if it is in sync. Type 1, only for partitions without a leader,
elects a live replica that may lack acknowledged records. For a request for all partitions the
response leaves out partitions that need no election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import failure_message
from millstream.controller import election
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.image import ClusterImage
from millstream.metadata.min_isr import configured_min_isr, effective_min_isr
from millstream.metadata.partition_change import alter_partition
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

_Topic = ElectLeadersResponse.Topic
_Row = _Topic.Partition
_ERROR_SINCE = 1


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


async def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    context.require_cluster(Operation.ALTER)
    response = ElectLeadersResponse()
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        response.error_code = ErrorCode.INVALID_REQUEST
        return response
    wanted = list(_wanted(request, context))
    rows = await asyncio.gather(*(_elect(topic, number, kind, context) for topic, number in wanted))
    topics: dict[str, ElectLeadersResponse.Topic] = {}
    for (topic, _), row in zip(wanted, rows, strict=True):
        if request.topic_partitions is None and row.error_code == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        found = topics.setdefault(topic, ElectLeadersResponse.Topic(topic=topic))
        found.partition_result.append(row)
    response.replica_election_results = list(topics.values())
    return response


def _error_response(
    request: ElectLeadersRequest, context: Context, code: ErrorCode
) -> ElectLeadersResponse | None:
    if (
        context.version < _ERROR_SINCE
        and request.topic_partitions is None
        and code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    ):
        # A request for all partitions: the response would have to name them.
        return None
    response = ElectLeadersResponse()
    if context.version >= _ERROR_SINCE:
        response.error_code = code
    for topic in request.topic_partitions or ():
        rows = [
            _Row(partition_id=number, error_code=code, error_message=failure_message(code))
            for number in topic.partitions
        ]
        response.replica_election_results.append(_Topic(topic=topic.topic, partition_result=rows))
    return response


API: Final = ApiEntry(
    ElectLeadersRequest,
    ElectLeadersResponse,
    versions=(0, 2),
    handle=handle,
    audit=change.leaders_elected,
    error_response=_error_response,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)


def _wanted(request: ElectLeadersRequest, context: Context) -> Iterator[tuple[str, int]]:
    if request.topic_partitions is not None:
        for topic in request.topic_partitions:
            for number in topic.partitions:
                yield topic.topic, number
    else:
        for record in context.services.catalog.image.topics.values():
            for number in range(len(record.partitions)):
                yield record.name, number


async def _elect(topic: str, number: int, kind: ElectionType, context: Context) -> _Row:
    catalog = context.services.catalog

    def decide(record: PartitionRecord) -> PartitionRecord | None:
        image = catalog.image
        if kind is ElectionType.PREFERRED:
            return _preferred(record, election.prefer(record, image.eligible))
        return elect_uncleanly(record, image, _min_isr(topic, record, catalog))

    row = _Row(partition_id=number)
    try:
        if await alter_partition(catalog, topic, number, decide) is None:
            raise BrokerError(ErrorCode.ELECTION_NOT_NEEDED, "the right replica leads already")
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
    return row


def elect_uncleanly(
    record: PartitionRecord, image: ClusterImage, min_isr: int
) -> PartitionRecord | None:
    """Elect a leader that may lack records, or return None if the leader is alive.

    The controller may not have removed a dead leader from the record yet."""
    if record.leader in image.brokers:
        return None
    after = election.elect(
        record,
        image.brokers,
        unclean=True,
        leaving=image.leaving,
        min_isr=min_isr,
        directories=image.directories,
    )
    if after is None or after.leader == NO_LEADER:
        raise BrokerError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica of the partition is alive"
        )
    return after


def _min_isr(topic: str, record: PartitionRecord, catalog: Catalog) -> int:
    found = catalog.image.topics[topic]
    return effective_min_isr(configured_min_isr(found, catalog.topic_defaults), record)


def _preferred(record: PartitionRecord, after: PartitionRecord | None) -> PartitionRecord | None:
    if after is None and record.leader != record.replicas[0]:
        raise BrokerError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {record.replicas[0]} is not in sync or not alive",
        )
    return after

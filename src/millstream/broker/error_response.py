"""Error responses for requests whose handler failed.

Most responses have one error code for all. Those that have one for each item (a topic, a resource)
get a row for each item of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from millstream.broker.context import Context
from millstream.broker.dispatch import Api
from millstream.broker.handlers import metadata
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.field import specs_of
from millstream.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.describe_backlog import (
    DescribeBacklogRequest,
    DescribeBacklogResponse,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

_MESSAGE: Final = "the broker failed; see its log"
_COORDINATORS_SINCE: Final = 4
_METADATA_NO_NAME_SINCE: Final = 12
_METADATA_ERROR_SINCE: Final = 13
_TOPIC_STATES_SINCE: Final = 6
_ELECTION_ERROR_SINCE: Final = 1


def error_response(api: Api, request: Any, context: Context, code: ErrorCode) -> Any:
    """Return the response that rejects all of a request, or None if the API has none here."""
    make = _BY_ITEM.get(api.key)
    if make is not None:
        return make(request, context, code)
    for name, spec in specs_of(api.response):
        if name == "error_code" and spec.is_in(context.version):
            return api.response(error_code=code)
    return None


def _metadata(
    request: MetadataRequest, context: Context, code: ErrorCode
) -> MetadataResponse | None:
    if request.topics is None and context.version < _METADATA_ERROR_SINCE:
        # An error would have no place: the client would take it for a cluster without topics.
        return None
    rows = [
        MetadataResponse.Topic(
            error_code=code,
            name=topic.name if context.version >= _METADATA_NO_NAME_SINCE else topic.name or "",
            topic_id=topic.topic_id,
        )
        for topic in request.topics or ()
    ]
    # With the brokers: clients forget those that they are not told of.
    response = metadata.respond(context, rows)
    response.error_code = code
    return response


def _create_topics(
    request: CreateTopicsRequest, context: Context, code: ErrorCode
) -> CreateTopicsResponse:
    row = CreateTopicsResponse.Topic
    return CreateTopicsResponse(
        topics=[
            row(name=topic.name, error_code=code, error_message=_MESSAGE)
            for topic in request.topics
        ]
    )


def _delete_topics(
    request: DeleteTopicsRequest, context: Context, code: ErrorCode
) -> DeleteTopicsResponse:
    row = DeleteTopicsResponse.Topic
    if context.version >= _TOPIC_STATES_SINCE:
        rows = [
            row(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        ]
    else:
        rows = [row(name=name, error_code=code) for name in request.topic_names]
    return DeleteTopicsResponse(responses=rows)


def _delete_records(
    request: DeleteRecordsRequest, context: Context, code: ErrorCode
) -> DeleteRecordsResponse:
    row = DeleteRecordsResponse.Topic
    return DeleteRecordsResponse(
        topics=[
            row(
                name=topic.name,
                partitions=[
                    row.Partition(
                        partition_index=each.partition_index, low_watermark=-1, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_partitions(
    request: CreatePartitionsRequest, context: Context, code: ErrorCode
) -> CreatePartitionsResponse:
    row = CreatePartitionsResponse.Topic
    return CreatePartitionsResponse(
        results=[
            row(name=topic.name, error_code=code, error_message=_MESSAGE)
            for topic in request.topics
        ]
    )


def _find_coordinator(
    request: FindCoordinatorRequest, context: Context, code: ErrorCode
) -> FindCoordinatorResponse:
    if context.version < _COORDINATORS_SINCE:
        return FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)
    row = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        coordinators=[
            row(key=key, node_id=-1, port=-1, error_code=code) for key in request.coordinator_keys
        ]
    )


def _alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, context: Context, code: ErrorCode
) -> AlterConfigsResponse | IncrementalAlterConfigsResponse:
    is_incremental = isinstance(request, IncrementalAlterConfigsRequest)
    response: Any = IncrementalAlterConfigsResponse if is_incremental else AlterConfigsResponse
    row = response.Resource
    return cast(
        "AlterConfigsResponse | IncrementalAlterConfigsResponse",
        response(
            responses=[
                row(
                    error_code=code,
                    error_message=_MESSAGE,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        ),
    )


def _elect_leaders(
    request: ElectLeadersRequest, context: Context, code: ErrorCode
) -> ElectLeadersResponse | None:
    if context.version >= _ELECTION_ERROR_SINCE:
        return ElectLeadersResponse(error_code=code)
    if request.topic_partitions is None:
        # All partitions: the response can't name them.
        return None
    row = ElectLeadersResponse.Topic
    return ElectLeadersResponse(
        replica_election_results=[
            row(
                topic=topic.topic,
                partition_result=[
                    row.Partition(partition_id=number, error_code=code, error_message=_MESSAGE)
                    for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions
        ]
    )


def _describe_backlog(
    request: DescribeBacklogRequest, context: Context, code: ErrorCode
) -> DescribeBacklogResponse:
    row = DescribeBacklogResponse.Topic
    return DescribeBacklogResponse(
        topics=[
            row(
                topic_id=topic.topic_id,
                positions=[
                    row.Position(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        error_code=code,
                    )
                    for each in topic.positions
                ],
            )
            for topic in request.topics
        ]
    )


_BY_ITEM: Final[dict[ApiKey, Callable[[Any, Context, ErrorCode], Any]]] = {
    ApiKey.METADATA: _metadata,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.DESCRIBE_BACKLOG: _describe_backlog,
}

"""OffsetDelete: version 0. Offsets of topics that members subscribe to are not deleted."""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

_Row = OffsetDeleteResponse.Topic.Partition


def handle(request: OffsetDeleteRequest, context: Context) -> Reply[list[ErrorCode]]:
    context.require(Operation.DELETE, ResourceType.GROUP, request.group_id)
    image = context.services.catalog.image
    response = OffsetDeleteResponse()
    places: list[tuple[str, int]] = []
    found: list[_Row] = []
    for topic in request.topics:
        rows: list[_Row] = []
        response.topics.append(OffsetDeleteResponse.Topic(name=topic.name, partitions=rows))
        is_allowed = context.allows(Operation.READ, ResourceType.TOPIC, topic.name)
        for partition in topic.partitions:
            row = _Row(partition_index=partition.partition_index)
            rows.append(row)
            if not is_allowed:
                row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(topic.name, partition.partition_index) is None:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                places.append((topic.name, partition.partition_index))
                found.append(row)

    def respond(codes: list[ErrorCode]) -> OffsetDeleteResponse:
        for row, code in zip(found, codes, strict=True):
            row.error_code = code
        return response

    return start_reply(
        ReplyKind.OFFSET_DELETE,
        context,
        lambda reply: context.services.groups.delete_offsets(request.group_id, places, reply),
        _reject,
        respond,
    )


API: Final = ApiEntry(
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    versions=(0, 0),
    handle=handle,
    audit=change.offsets_deleted,
    access=(
        Right(Operation.DELETE, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)


def _reject(code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)

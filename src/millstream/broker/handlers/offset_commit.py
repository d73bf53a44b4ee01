"""OffsetCommit: versions 2 to 10.

Partitions that do not exist and metadata that is too long are rejected one by one. The group
accepts or rejects the other offsets as a whole. From version 10 topics have ids. Up to version 4 a
client may set the retention time of an offset.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.group_record import NO_EXPIRY
from millstream.groups.offset_commit import OffsetCommit
from millstream.metadata.cluster_record import TopicRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

_Row = OffsetCommitResponse.Topic.Partition
_TOPIC_IDS_SINCE = 10


def handle(request: OffsetCommitRequest, context: Context) -> OffsetCommitResponse | Reply[None]:
    if not context.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return _reject_all(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = OffsetCommitResponse()
    accepted: list[_Row] = []
    has_denied = False
    offsets: list[tuple[str, int, CommittedOffset]] = []
    for topic in request.topics:
        found = _find(topic, context)
        name = topic.name if found is None else found.name
        denied = bool(name) and not context.allows(Operation.READ, ResourceType.TOPIC, name)
        has_denied = has_denied or denied
        rows: list[_Row] = []
        response.topics.append(
            OffsetCommitResponse.Topic(name=topic.name, topic_id=topic.topic_id, partitions=rows)
        )
        for partition in topic.partitions:
            row = _Row(partition_index=partition.partition_index)
            row.error_code = _rejection(partition, found, context, is_denied=denied)
            rows.append(row)
            if found is not None and not row.error_code:
                accepted.append(row)
                committed = _committed(partition, found, request, context)
                offsets.append((found.name, partition.partition_index, committed))
    if has_denied and not accepted:
        return response
    commit = OffsetCommit(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=context.version,
        offsets=offsets,
    )

    def reject(code: ErrorCode) -> OffsetCommitResponse:
        for row in accepted:
            row.error_code = code
        return response

    return start_reply(
        ReplyKind.OFFSET_COMMIT,
        context,
        lambda reply: context.services.groups.commit(commit, reply),
        reject,
        lambda _: response,
    )


API: Final = ApiEntry(
    OffsetCommitRequest,
    OffsetCommitResponse,
    versions=(2, 10),
    handle=handle,
    audit=change.offsets_committed,
    access=(
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)


def _reject_all(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _Row(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _find(topic: OffsetCommitRequest.Topic, context: Context) -> TopicRecord | None:
    image = context.services.catalog.image
    if context.version >= _TOPIC_IDS_SINCE:
        return image.topic_by_id(topic.topic_id)
    return image.topic(topic.name)


def _rejection(
    partition: OffsetCommitRequest.Topic.Partition,
    topic: TopicRecord | None,
    context: Context,
    *,
    is_denied: bool,
) -> ErrorCode:
    if topic is None and context.version >= _TOPIC_IDS_SINCE:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if is_denied:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    length_max = context.services.config.groups.offset_metadata_max_bytes
    if _java_length(partition.committed_metadata or "") > length_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _java_length(text: str) -> int:
    """Return the length in UTF-16 code units, which Kafka compares with the limit in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _committed(
    partition: OffsetCommitRequest.Topic.Partition,
    topic: TopicRecord,
    request: OffsetCommitRequest,
    context: Context,
) -> CommittedOffset:
    now_ms = context.services.clock.wall_ms()
    expire_ms = NO_EXPIRY
    if request.retention_time_ms >= 0:
        expire_ms = now_ms + request.retention_time_ms
    return CommittedOffset(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        now_ms,
        expire_ms,
        topic.topic_id,
    )

"""OffsetFetch: versions 1 to 10.

One group up to version 7, any number from version 8; topic ids from version 10. A request without
topics returns all committed offsets of the group. A partition without a committed offset has offset
-1, as do all partitions of an unknown group. If an open transaction is about to change an offset,
the response has the offset before it, with UNSTABLE_OFFSET_COMMIT for clients that require stable
offsets (version 7). Kafka returns -1 then; librdkafka 2.16, in a group that rebalances, would take
that for no offset at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import CombinedReply
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.offset import GroupOffsets
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.sentinel import NO_OFFSET
from millstream.model.topic import TopicId
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

_Group = OffsetFetchResponse.Group
_BATCHED_SINCE = 8
_TOPIC_IDS_SINCE = 10
_ERROR_FIELD_SINCE = 2


def handle(request: OffsetFetchRequest, context: Context) -> Reply[Any]:
    if context.version < _BATCHED_SINCE:
        return _handle_one(request, context)
    response = OffsetFetchResponse()
    combined = CombinedReply(ReplyKind.OFFSET_FETCH, context, response)
    for wanted in request.groups:
        row = _Group(group_id=wanted.group_id)
        response.groups.append(row)
        _fetch(wanted, row, request.require_stable, combined)
    return combined.finish()


API: Final = ApiEntry(
    OffsetFetchRequest,
    OffsetFetchResponse,
    versions=(1, 10),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)


def _handle_one(request: OffsetFetchRequest, context: Context) -> Reply[Any]:
    """Handle a request for one group, with the response of the versions before batching."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequest.Group.Topic(
                name=topic.name, partition_indexes=topic.partition_indexes
            )
            for topic in request.topics
        ]
    wanted = OffsetFetchRequest.Group(group_id=request.group_id, topics=topics)
    row = _Group(group_id=request.group_id)
    response = OffsetFetchResponse()
    combined = CombinedReply(ReplyKind.OFFSET_FETCH, context, response)
    _fetch(
        wanted,
        row,
        request.require_stable,
        combined,
        lambda: _flatten(row, wanted, response, context),
    )
    return combined.finish()


def _fetch(
    wanted: OffsetFetchRequest.Group,
    row: _Group,
    require_stable: bool,
    combined: CombinedReply,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Fill the row of one group, once the offsets that it shows are committed."""
    context = combined.context
    if not context.allows(Operation.DESCRIBE, ResourceType.GROUP, wanted.group_id):
        row.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        after()
        return

    def deliver(_: object) -> None:
        after()

    def reject(code: ErrorCode) -> None:
        row.error_code, row.topics = code, []
        after()

    reply = combined.part(deliver, reject)
    groups = context.services.groups
    try:
        offsets = groups.offsets(wanted.group_id, wanted.member_id, wanted.member_epoch)
    except BrokerError as error:
        reply.fail(error.code)
        return
    row.topics = _topics(wanted.topics, offsets, context)
    if require_stable and offsets.has_pending:
        _mark_unstable(row.topics, offsets, context)
    groups.respond(wanted.group_id, reply, row)


def _mark_unstable(topics: list[_Group.Topic], offsets: GroupOffsets, context: Context) -> None:
    image = context.services.catalog.image
    for topic in topics:
        name = topic.name
        if context.version >= _TOPIC_IDS_SINCE:
            known = image.topic_by_id(topic.topic_id)
            name = known.name if known is not None else ""
        for each in topic.partitions:
            if offsets.is_unstable(name, each.partition_index):
                each.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT


def _topics(
    wanted: Sequence[OffsetFetchRequest.Group.Topic] | None,
    offsets: GroupOffsets,
    context: Context,
) -> list[_Group.Topic]:
    image = context.services.catalog.image
    by_id = context.version >= _TOPIC_IDS_SINCE
    rows: list[_Group.Topic] = []
    if wanted is None:
        for name in offsets.topics:
            topic = image.topic(name)
            if not context.shows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                continue
            # A topic that no longer exists has no id.
            if topic is not None or not by_id:
                topic_id = topic.topic_id if topic is not None else None
                rows.append(_topic(name, topic_id, offsets.partitions(name), offsets))
        return rows
    for each in wanted:
        topic = image.topic_by_id(each.topic_id) if by_id else image.topic(each.name)
        if topic is None and by_id:
            rows.append(_unknown(each, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        name = topic.name if topic is not None else each.name
        if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            rows.append(_unknown(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        topic_id = topic.topic_id if topic is not None else None
        rows.append(_topic(name, topic_id, each.partition_indexes, offsets))
    return rows


def _topic(
    name: str, topic_id: TopicId | None, numbers: Iterable[int], offsets: GroupOffsets
) -> _Group.Topic:
    row = _Group.Topic(name=name)
    if topic_id is not None:
        row.topic_id = topic_id
    row.partitions = [_partition(number, offsets.get(name, number, topic_id)) for number in numbers]
    return row


def _partition(number: int, committed: CommittedOffset | None) -> _Group.Topic.Partition:
    if committed is None:
        return _Group.Topic.Partition(
            partition_index=number, committed_offset=NO_OFFSET, metadata=""
        )
    return _Group.Topic.Partition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _unknown(wanted: OffsetFetchRequest.Group.Topic, code: ErrorCode) -> _Group.Topic:
    return _Group.Topic(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            _Group.Topic.Partition(
                partition_index=number,
                committed_offset=NO_OFFSET,
                metadata="",
                error_code=code,
            )
            for number in wanted.partition_indexes
        ],
    )


def _flatten(
    row: _Group,
    wanted: OffsetFetchRequest.Group,
    response: OffsetFetchResponse,
    context: Context,
) -> None:
    if row.error_code and context.version < _ERROR_FIELD_SINCE:
        # These versions have no field for the group's error: each partition has it.
        row.topics = [
            _topic(topic.name, None, topic.partition_indexes, GroupOffsets(""))
            for topic in wanted.topics or ()
        ]
        for topic in row.topics:
            for each in topic.partitions:
                each.error_code = row.error_code
    elif row.error_code:
        response.error_code = row.error_code
    response.topics = [
        OffsetFetchResponse.Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.Topic.Partition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in row.topics
    ]

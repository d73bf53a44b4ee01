"""TxnOffsetCommit: versions 0 to 5.

Stores offsets of a group that take effect when the transaction is committed. As with Produce, the
transaction coordinator admits the first offsets of a transaction
(`broker/transaction/admission.py`). Up to version 4 the producer adds the group itself
(AddOffsetsToTxn); version 5 does that as well. From version 3 the request may name the member,
which then must exist.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.broker.transaction.admission import UNDECIDED, Admission
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.cluster_record import TopicRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_Wanted = TxnOffsetCommitRequest.Topic.Partition
_Row = TxnOffsetCommitResponse.Topic.Partition
_LOADING_SINCE = 2
_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5


def handle(
    request: TxnOffsetCommitRequest, context: Context
) -> TxnOffsetCommitResponse | Reply[None]:
    if not context.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return _reject_all(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return _reject_all(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = TxnOffsetCommitResponse()
    accepted, offsets = _accept(request, response, context)
    if not accepted:
        return response
    commit = OffsetCommit(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        version=context.version,
        offsets=offsets,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
    )

    def reject(code: ErrorCode) -> TxnOffsetCommitResponse:
        for row in accepted:
            row.error_code = _client_code(code, context)
        return response

    return start_reply(
        ReplyKind.TXN_OFFSET_COMMIT,
        context,
        lambda reply: _begin(request, commit, reply, context),
        reject,
        lambda _: response,
    )


API: Final = ApiEntry(
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    versions=(0, 5),
    handle=handle,
    access=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)


def _reject_all(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.Topic(
                name=topic.name,
                partitions=[
                    _Row(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _accept(
    request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse, context: Context
) -> tuple[list[_Row], list[tuple[str, int, CommittedOffset]]]:
    """Add a row for each partition to the response; return the rows and offsets to commit."""
    accepted: list[_Row] = []
    offsets: list[tuple[str, int, CommittedOffset]] = []
    for topic in request.topics:
        found = context.services.catalog.image.topic(topic.name)
        is_allowed = context.allows(Operation.READ, ResourceType.TOPIC, topic.name)
        rows: list[_Row] = []
        response.topics.append(TxnOffsetCommitResponse.Topic(name=topic.name, partitions=rows))
        for partition in topic.partitions:
            row = _Row(partition_index=partition.partition_index)
            row.error_code = (
                _rejection(partition, found, context)
                if is_allowed
                else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            rows.append(row)
            if found is not None and not row.error_code:
                accepted.append(row)
                committed = _committed(partition, found, context)
                offsets.append((found.name, partition.partition_index, committed))
    return accepted, offsets


def _begin(
    request: TxnOffsetCommitRequest, commit: OffsetCommit, reply: Reply[None], context: Context
) -> None:
    """Add the group's partition to the transaction if this version does that, then commit."""
    services = context.services
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    admission = Admission(
        services.transaction_coordinators.find, request.transactional_id, services.failures
    )
    try:
        # A group that is not served here adds nothing to the transaction.
        index = services.groups.shards.of(request.group_id).index
        partition = services.replicas.find(OFFSETS_TOPIC, index)
    except BrokerError as error:
        reply.fail(error.code)
        return

    def then() -> None:
        try:
            admission.check(partition, producer)
        except BrokerError as error:
            reply.fail(_admission_code(error.code, context))
            return
        services.groups.commit(commit, reply)

    adds = context.version >= _ADDS_SINCE
    if partition.log.producer_state.has_open_transaction(*producer):
        then()
    else:
        admission.request(producer, [partition], then, adds=adds)


def _admission_code(code: ErrorCode, context: Context) -> ErrorCode:
    """Return the error for the producer for an error of the transaction coordinator."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and context.version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    is_early = context.version < _ADDS_SINCE
    if code in UNDECIDED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and is_early):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code


def _client_code(code: ErrorCode, context: Context) -> ErrorCode:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < _LOADING_SINCE:
        # Producers of these versions treat the error itself as fatal.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _rejection(partition: _Wanted, topic: TopicRecord | None, context: Context) -> ErrorCode:
    if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if (
        len(partition.committed_metadata or "")
        > context.services.config.groups.offset_metadata_max_bytes
    ):
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(partition: _Wanted, topic: TopicRecord, context: Context) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        context.services.clock.wall_ms(),
        topic_id=topic.topic_id,
    )

"""Produce: versions 3 to 13.

The batch of each partition is checked, stamped in the request's own buffer and appended. The
response is sent when every partition fulfils `acks`: 0 is nothing (there is no response, and a
failure closes the connection), 1 is this broker, -1 is every in-sync replica. The response to a
duplicate of a recent batch of an idempotent producer has the first offset of that batch. Topics
have names up to version 12 and ids from version 13.

Transactional batches are appended once the transaction coordinator has admitted them
(`broker/transaction/admission.py`). Up to version 11 the producer adds the partition to the
transaction itself; from version 12 this handler adds it. The requests of a producer keep their
order while one of them waits for the coordinator (`broker/transaction/transaction_queue.py`).

A batch with bad records is rejected as a whole. From version 8 the response names the bad records
(KIP-467), up to a limit for the whole response.

Batches for topics whose `compression.type` is not `producer` are recompressed. Batches for internal
topics are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from millstream.broker.acknowledgement import (
    ACKS_ALL,
    Acknowledgement,
    Appended,
    unacknowledged,
)
from millstream.broker.config.part_options import DECOMPRESSED_BYTES_MAX
from millstream.broker.context import CloseConnectionError, Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE
from millstream.broker.topic import INTERNAL_TOPICS
from millstream.broker.transaction.admission import UNDECIDED, Admission, is_verified
from millstream.broker.transaction.transaction_queue import QueueKey
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.acl import Operation, ResourceType
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    check_produced,
    is_transactional,
    read_header,
)
from millstream.records.compression import CompressionType
from millstream.records.recompression import recompress
from millstream.records.validation import RecordsRejected
from millstream.replication.partition import Partition
from millstream.security.audit_event import AUDIT_TOPIC
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse

ACKS_NONE = 0
_ZSTD_SINCE = 7
_RECORD_ERRORS_SINCE = 8
_LEADER_HINT_SINCE = 10
_ABORTABLE_SINCE = 11
#: From this version the broker adds partitions to transactions (transaction version 2).
_ADDS_SINCE = 12
#: Like Kafka, the response to these errors has the log start offset.
_INVALID = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)
#: As in Kafka, the client id of tools that may write to internal topics, except the audit trail.
_INTERNAL_CLIENT_ID = "__admin_client"

_Row = ProduceResponse.Topic.Partition


def handle(
    request: ProduceRequest, context: Context
) -> ProduceResponse | Reply[ProduceResponse] | None:
    acks = request.acks
    if acks not in (-1, 0, 1):
        return reject_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1")
    if context.services.authorizer is not None and not _may_use_transaction(request, context):
        return reject_all(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, DENIAL_MESSAGE)
    if request.transactional_id is not None:
        return _handle_transactional(request, request.transactional_id, context)
    return _append_all(request, None, context)


# Like Kafka, ApiVersions lists Produce from version 0, though versions 0 to 2 are rejected: many
# releases of librdkafka do not compress for a broker that does not list version 0.
API: Final = ApiEntry(
    ProduceRequest,
    ProduceResponse,
    versions=(3, 13),
    handle=handle,
    listed_from=0,
    access=(
        Right(Operation.WRITE, ResourceType.TOPIC),
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "for batches of a transaction"),
    ),
)


def _append_all(
    request: ProduceRequest,
    admission: Admission | None,
    context: Context,
    reply: Reply[ProduceResponse] | None = None,
) -> ProduceResponse | Reply[ProduceResponse] | None:
    """Append the batches. `reply` is set if the request has waited for a coordinator."""
    acks = request.acks
    is_open = context.services.authorizer is None
    response = ProduceResponse()
    appended: list[Appended] = []
    failure = ""
    for topic in request.topic_data:
        name: str | None = topic.name
        if not name:
            name = context.services.replicas.topic_name(topic.topic_id)
        is_allowed = (
            is_open or name is None or context.allows(Operation.WRITE, ResourceType.TOPIC, name)
        )
        rows: list[_Row] = []
        for data in topic.partition_data:
            row = _Row(index=data.index)
            rows.append(row)
            try:
                if name is None:
                    raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
                if not is_allowed:
                    raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, DENIAL_MESSAGE)
                appended.append(_append(name, data.records, row, acks, admission, context))
            except BrokerError as error:
                failure = failure or f"{name}-{data.index}: {error.code.name} {error.message or ''}"
                _describe_failure(row, error, name, context)
        response.responses.append(
            ProduceResponse.Topic(
                name=topic.name, topic_id=topic.topic_id, partition_responses=rows
            )
        )
    if acks == ACKS_NONE:
        if failure:
            # A producer that expects no response notices nothing else.
            raise CloseConnectionError(f"acks=0 and {failure}")
        return None
    elapsed_s = context.services.clock.monotonic() - context.received_at
    waiting = unacknowledged(appended, elapsed_s, acks_all=acks == ACKS_ALL)
    if not waiting:
        return response
    return Acknowledgement(response, waiting, request, context, reply).reply


def _append(
    topic: str,
    records: memoryview | bytes | bytearray | None,
    row: _Row,
    acks: int,
    admission: Admission | None,
    context: Context,
) -> Appended:
    """Append the batch of one partition and fill its row."""
    if topic in INTERNAL_TOPICS and (
        context.client_id != _INTERNAL_CLIENT_ID or topic == AUDIT_TOPIC
    ):
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is for the broker to write")
    partition = context.services.replicas.find(topic, row.index)
    header = check_produced(records)
    batch = memoryview(records)  # type: ignore[arg-type]  # check_produced rejects None
    if header.attributes:
        if header.is_transactional:
            _check_admission(partition, header, admission, context)
        if header.codec == CompressionType.ZSTD and context.version < _ZSTD_SINCE:
            raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    config = partition.log.config
    if config.compression_type != "producer":
        batch, header = _recompress(batch, header, config)
    appended = partition.append(batch, header, acks_all=acks == ACKS_ALL)
    row.base_offset = appended.base_offset
    row.log_append_time_ms = appended.append_time_ms
    row.log_start_offset = appended.log_start_offset
    if not appended.duplicate:
        counters = partition.counters
        counters.bytes_in += header.size
        counters.messages_in += header.count
    return Appended(partition, row, appended.last_offset + 1)


def _check_admission(
    partition: Partition, header: BatchHeader, admission: Admission | None, context: Context
) -> None:
    if admission is None:
        raise BrokerError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a batch of a transaction came without a transactional id",
        )
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    try:
        partition.check_leader()
        admission.check(partition, producer)
    except BrokerError as error:
        code = _producer_code(error.code, context.version)
        partition.rejected(header, code, by_coordinator=True)
        raise BrokerError(code, error.message) from error
    if context.version >= _ADDS_SINCE and not partition.log.producer_state.has_open_transaction(
        *producer
    ):
        partition.check_first_batch(header)


def _recompress(
    batch: memoryview, header: BatchHeader, config: TopicConfig
) -> tuple[memoryview, BatchHeader]:
    name = config.compression_type
    wanted = CompressionType.NONE if name == "uncompressed" else CompressionType[name.upper()]
    if header.codec == wanted:
        return batch, header
    level = config.compression_level
    rebuilt = memoryview(recompress(batch, header, wanted, DECOMPRESSED_BYTES_MAX, level))
    return rebuilt, read_header(rebuilt)


def _describe_failure(row: _Row, error: BrokerError, topic: str | None, context: Context) -> None:
    row.error_code = error.code
    row.error_message = error.message
    row.base_offset = -1
    if isinstance(error, RecordsRejected) and context.version >= _RECORD_ERRORS_SINCE:
        _name_records(row, error, context)
    services = context.services
    services.metrics.api("Produce").errors[error.code] += 1
    if topic is None:
        return
    partition = services.replicas.get(topic, row.index)
    if partition is None:
        return
    partition.counters.failed_produces += 1
    if error.code in _INVALID:
        row.log_start_offset = partition.log.log_start_offset
    if context.version >= _LEADER_HINT_SINCE and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        row.current_leader = _Row.Leader(
            leader_id=partition.state.leader, leader_epoch=partition.leader_epoch
        )


def _name_records(row: _Row, error: RecordsRejected, context: Context) -> None:
    named = error.record_errors[: context.record_errors_left]
    context.record_errors_left -= len(named)
    row.record_errors = [
        _Row.RecordError(batch_index=index, batch_index_error_message=message)
        for index, message in named
    ]


def _may_use_transaction(request: ProduceRequest, context: Context) -> bool:
    """Return whether the client may use the transaction of the request's batches. Other batches
    need no right on the transactional id, as in Kafka."""
    has_transaction = any(
        data.records is not None and is_transactional(data.records)
        for topic in request.topic_data
        for data in topic.partition_data
    )
    transactional_id = request.transactional_id
    return not has_transaction or (
        transactional_id is not None
        and context.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    )


def _handle_transactional(
    request: ProduceRequest, transactional_id: str, context: Context
) -> ProduceResponse | Reply[ProduceResponse] | None:
    """Append a transactional request, once its coordinator has admitted it and the producer's
    earlier requests are appended."""
    if request.acks == ACKS_NONE:
        raise CloseConnectionError("transactions need acknowledgements")
    services = context.services
    admission = Admission(
        services.transaction_coordinators.find, transactional_id, services.failures
    )
    if context.version < _ADDS_SINCE and not is_verified(context):
        admission.waive()
        return _append_all(request, admission, context)
    producers, unadmitted = _scan(request, context)
    if len(producers) > 1:
        return reject_all(
            request,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "a request has batches of one producer's transaction only",
        )
    queues = services.transaction_queues
    producer = next(iter(producers), None)
    if producer is None:
        return _append_all(request, admission, context)
    key = QueueKey(transactional_id, producer)
    if not unadmitted and key not in queues:
        return _append_all(request, admission, context)
    waiting = _TransactionalProduce(request, producer, admission, context)
    if not queues.has_room(waiting.size):
        return _reject_for_room(request, context)
    if queues.may_append(key, waiting):
        return _append_all(request, admission, context)
    return waiting.reply


def _transactional_batches(
    request: ProduceRequest, context: Context
) -> Iterator[tuple[Partition | None, BatchHeader]]:
    """Yield the headers of transactional batches, with their partitions if this broker has them.

    Incomplete headers, and topics that the client may not write to, are skipped: the append
    rejects them."""
    replicas = context.services.replicas
    for topic in request.topic_data:
        name = topic.name or replicas.topic_name(topic.topic_id) or ""
        if not context.shows(Operation.WRITE, ResourceType.TOPIC, name):
            continue
        for data in topic.partition_data:
            if data.records is not None and len(data.records) >= HEADER_BYTES:
                header = read_header(data.records)
                if header.is_transactional:
                    yield replicas.get(name, data.index), header


def _scan(
    request: ProduceRequest, context: Context
) -> tuple[dict[ProducerIdAndEpoch, None], list[Partition]]:
    """Return the producers of a request's transactional batches, and the partitions led here in
    which the request begins a transaction."""
    producers: dict[ProducerIdAndEpoch, None] = {}
    partitions: list[Partition] = []
    for partition, header in _transactional_batches(request, context):
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        producers[producer] = None
        if (
            partition is not None
            and partition.is_leader
            and not partition.log.producer_state.has_open_transaction(*producer)
        ):
            partitions.append(partition)
    return producers, partitions


def _reject_for_room(request: ProduceRequest, context: Context) -> ProduceResponse | None:
    """Return a response that makes the client retry, if no more requests may wait."""
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    for partition, header in _transactional_batches(request, context):
        if partition is not None:
            partition.rejected(header, code)
    return reject_all(
        request, code, "too many requests wait for transaction coordinators; retry later"
    )


class _TransactionalProduce:
    """A transactional request, which may wait (a `transaction_queue.TransactionalRequest`)."""

    __slots__ = (
        "_admission",
        "_context",
        "_producer",
        "_request",
        "reply",
        "size",
    )

    def __init__(
        self,
        request: ProduceRequest,
        producer: ProducerIdAndEpoch,
        admission: Admission,
        context: Context,
    ) -> None:
        self._request = request
        self._producer = producer
        self._admission = admission
        self._context = context
        self.reply: Reply[ProduceResponse] = Reply(
            ReplyKind.TRANSACTIONAL_PRODUCE, context.receiver, self._reject
        )
        rows = (data for topic in request.topic_data for data in topic.partition_data)
        self.size = sum(len(data.records or b"") for data in rows)

    def request_admission(self, decided: Callable[[], None]) -> None:
        try:
            _, partitions = _scan(self._request, self._context)
            if not partitions:
                decided()
                return
            adds = self._context.version >= _ADDS_SINCE
            self._admission.request(self._producer, partitions, decided, adds=adds)
        except Exception as error:  # noqa: BLE001  # logged and counted
            # Later requests of the producer must not wait for this one forever.
            failures = self._context.services.failures
            failures.note(ReplyKind.TRANSACTIONAL_PRODUCE, error, self._producer)
            self._admission.reject_all(ErrorCode.UNKNOWN_SERVER_ERROR)
            decided()

    def copy_batches(self, leave: Callable[[], None]) -> None:
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                if data.records is not None:
                    data.records = bytearray(data.records)
        self.reply.on_end = leave

    def finish(self) -> None:
        self.reply.run(self._append)

    def _append(self) -> None:
        reply = self.reply
        outcome = _append_all(self._request, self._admission, self._context, reply)
        if isinstance(outcome, ProduceResponse):
            reply.deliver(outcome)

    def _reject(self, code: ErrorCode) -> ProduceResponse | None:
        return reject_all(self._request, code, "see the broker's log")


def _producer_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error for the producer for an error of the transaction coordinator."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code in UNDECIDED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_SINCE):
        # Every producer retries on this error, without a metadata request.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def reject_all(request: ProduceRequest, code: ErrorCode, message: str) -> ProduceResponse | None:
    """Return a response with the same error for every partition."""
    if request.acks == ACKS_NONE:
        raise CloseConnectionError(f"acks=0 and {code.name}: {message}")
    return ProduceResponse(
        responses=[
            ProduceResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _Row(index=data.index, error_code=code, base_offset=-1, error_message=message)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )

"""One task of a write: sends its rows in its own transaction and prepares the transaction.

A transactional id consists of a prefix that names the query, the task's partition, and a slot. A
task acquires the first slot without an open transaction, unless another task acquires it first. No
task therefore aborts a transaction that another one has prepared: another attempt of the same task,
a task of another driver with the same checkpoint, or a task of a decided batch that is not yet
committed. The number of ids is at most partitions times concurrent attempts.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.spark.error import ProtocolError, UnknownTopic
from millstream.spark.sink import transaction_request
from millstream.spark.sink.batch_encoder import BatchEncoder
from millstream.spark.sink.decision_log import DecisionLog
from millstream.spark.sink.input_column import ColumnPlan
from millstream.spark.sink.sink_options import DeliveryGuarantee, SinkOptions
from millstream.spark.sink.task_producer import TaskProducer
from millstream.spark.sink.transaction_request import ProducerIdentity
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

#: Attempts of one task that can have an open transaction at the same time.
_SLOTS_MAX: Final = 64
#: Pauses while brokers create a topic.
_CREATION_PAUSES_S: Final = (0.1, 0.4, 1.0)
_FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class TaskTransaction(NamedTuple):
    """A transaction with all rows of a task."""

    #: The identity that may end it.
    holder: ProducerIdentity
    #: Whether it is prepared on the brokers, so that no timeout aborts it.
    never_expires: bool


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """The result of a task for the driver."""

    #: The query or job of the task.
    owner: str
    rows: int
    #: None if the task had no rows, or wrote them without a transaction.
    prepared: TaskTransaction | None = None
    #: Whether the task wrote nothing because its batch was already decided.
    is_decided: bool = False


def transactional_id_prefix(owner: str) -> str:
    """Return the prefix of the transactional ids of a query or job."""
    return f"spark-sink-{owner}"


class WriteTask:
    """Writes the rows of one task."""

    def __init__(
        self, options: SinkOptions, columns: ColumnPlan, owner: str, batch: int | None
    ) -> None:
        """`batch` is None if the batch is never retried by another driver."""
        self._options = options
        self._columns = columns
        self._owner = owner
        self._batch = batch

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a Spark partition. Spark retries the task if this raises."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return TaskMessage(self._owner, 0)
        rows = itertools.chain([first], filled)
        with ClusterClient(self._options.connection) as cluster:
            if self._options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
                count = self._send(cluster, transaction_request.init_idempotent(cluster), rows)
                return TaskMessage(self._owner, count)
            if self._is_decided(cluster):
                return TaskMessage(self._owner, 0, is_decided=True)
            prefix = f"{transactional_id_prefix(self._owner)}-{partition}"
            writer = acquire_slot(cluster, prefix, self._options.transaction_timeout_ms)
            try:
                count = self._send(cluster, writer, rows)
                holder = transaction_request.prepare(cluster, writer)
            except BaseException:
                _abort(cluster, writer)
                raise
        prepared = TaskTransaction(holder or writer, never_expires=holder is not None)
        return TaskMessage(self._owner, count, prepared)

    def _is_decided(self, cluster: ClusterClient) -> bool:
        """Return whether the batch is decided; the driver then completes it.

        After False, another driver may still decide the batch."""
        if self._batch is None:
            return False
        decision = DecisionLog(cluster, self._options.commit_topic, self._owner).last()
        return decision is not None and decision.batch >= self._batch

    def _send(
        self, cluster: ClusterClient, writer: ProducerIdentity, batches: Iterator[pa.RecordBatch]
    ) -> int:
        options = self._options
        encoder = BatchEncoder(
            writer,
            options.codec,
            options.batch_bytes,
            lambda topic: partition_count(cluster, topic),
        )
        producer = TaskProducer(cluster, writer)
        rows = 0
        try:
            for batch in batches:
                producer.send(encoder.encode(self._columns.rows(batch), options.topic))
                rows += batch.num_rows
            producer.send(encoder.flush())
            producer.flush()
        finally:
            producer.close()
        return rows


def acquire_slot(cluster: ClusterClient, prefix: str, timeout_ms: int) -> ProducerIdentity:
    """Initialize a producer of the first slot without an open transaction."""
    for slot in range(_SLOTS_MAX):
        transactional_id = f"{prefix}-{slot}"
        found = transaction_request.describe(cluster, transactional_id)
        if found is not None and found.is_open:
            continue
        expected = None if found is None else found.identity
        try:
            return transaction_request.init_producer(
                cluster, transactional_id, timeout_ms, expected
            )
        except BrokerError as error:
            if error.code not in _FENCED:
                raise
    raise ProtocolError(
        f"{_SLOTS_MAX} transactions of {prefix} are open: list them with `millstream txn list"
        f" --pattern '{prefix}-.*'`, and abort the ones that no query uses"
    )


def partition_count(cluster: ClusterClient, topic: str) -> int:
    """Return the number of partitions of a topic. Brokers may create the topic."""
    try:
        return len(cluster.topic(topic).leaders)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    for pause_s in _CREATION_PAUSES_S:
        try:
            return _create_and_count(cluster, topic)
        except UnknownTopic:
            # Kafka also returns this error while it creates the topic.
            time.sleep(pause_s)
    return _create_and_count(cluster, topic)


def _create_and_count(cluster: ClusterClient, topic: str) -> int:
    """Return the number of partitions, and let brokers create the topic. Raises UnknownTopic."""
    asked = MetadataRequest(
        topics=[MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=True
    )

    def attempt() -> int:
        (row,) = cluster.any_connection().call(asked, MetadataResponse).topics
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(
                f"topic {topic} does not exist, and brokers do not create it: create it first"
            )
        if row.error_code:
            raise BrokerError(ErrorCode(row.error_code), f"topic {topic}")
        return len(row.partitions)

    return cluster.attempt(f"find topic {topic}", attempt)


def _abort(cluster: ClusterClient, writer: ProducerIdentity) -> None:
    """Abort the transaction so that consumers need not wait for its timeout.

    Errors are suppressed: the caller raises the original error, and the timeout aborts the
    transaction if this does not."""
    with contextlib.suppress(ProtocolError, BrokerError):
        transaction_request.TransactionEnder(cluster, is_commit=False).end([writer])

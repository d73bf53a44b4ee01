"""What one task does: writes its rows in a transaction of its own, prepares it, and says so.

A transactional id is a prefix (which names the query), the task's partition, and a slot. A task
takes the first slot whose transaction is not open, and only if nobody took it in the meantime: so
no task ever aborts what another one has prepared, be it an attempt of the same task, a task of
another driver with the same checkpoint, or one of a batch that was decided and not yet carried out.
The number of ids is that of partitions times that of attempts at one time, whatever happens.
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

#: Attempts at one task that can have a transaction open at a time.
_SLOTS_MAX: Final = 64
#: A topic that is being made is there after these.
_CREATION_PAUSES_S: Final = (0.1, 0.4, 1.0)
_TAKEN: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class PreparedTransaction(NamedTuple):
    """A transaction that has all rows of a task."""

    #: Who may end it.
    holder: ProducerIdentity
    #: Whether the brokers keep it until then.
    never_expires: bool


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """From a task to the driver."""

    #: The query or job that the task is of.
    owner: str
    rows: int
    #: None if there was nothing to write, or nothing that needs to be committed.
    prepared: PreparedTransaction | None = None
    #: Whether the task wrote nothing because its batch had been decided.
    is_decided: bool = False


def transactional_id_prefix(owner: str) -> str:
    """What the ids of a query's or job's transactions begin with."""
    return f"spark-sink-{owner}"


class WriteTask:
    """Writes the rows of one task."""

    def __init__(
        self, options: SinkOptions, columns: ColumnPlan, owner: str, batch: int | None
    ) -> None:
        """A task of a batch of `owner`; of None if nobody will ever write the batch again."""
        self._options = options
        self._columns = columns
        self._owner = owner
        self._batch = batch

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Raises what makes Spark try the task again."""
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
        prepared = PreparedTransaction(holder or writer, never_expires=holder is not None)
        return TaskMessage(self._owner, count, prepared)

    def _is_decided(self, cluster: ClusterClient) -> bool:
        """Whether the batch was decided before: then it is for the driver to finish it. Not
        certain if the answer is no, as another driver may be about to decide."""
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
    """A producer whose transaction nobody else has open."""
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
            if error.code not in _TAKEN:
                raise
    raise ProtocolError(
        f"{_SLOTS_MAX} transactions of {prefix} are open: look at them with `millstream txn list"
        f" --pattern '{prefix}-.*'`, and abort those that nobody needs"
    )


def partition_count(cluster: ClusterClient, topic: str) -> int:
    """Of a topic, which brokers make if they are allowed to."""
    try:
        return len(cluster.topic(topic).leaders)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    for pause_s in _CREATION_PAUSES_S:
        try:
            return _made(cluster, topic)
        except UnknownTopic:
            # Kafka says so of a topic that it has just begun to make, too.
            time.sleep(pause_s)
    return _made(cluster, topic)


def _made(cluster: ClusterClient, topic: str) -> int:
    """The partitions of a topic that brokers may make. Raises UnknownTopic."""
    asked = MetadataRequest(
        topics=[MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=True
    )

    def ask() -> int:
        (row,) = cluster.any_connection().call(asked, MetadataResponse).topics
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(
                f"topic {topic} does not exist, and brokers do not make it: create it first"
            )
        if row.error_code:
            raise BrokerError(ErrorCode(row.error_code), f"topic {topic}")
        return len(row.partitions)

    return cluster.attempt(f"find topic {topic}", ask)


def _abort(cluster: ClusterClient, writer: ProducerIdentity) -> None:
    """Abort, so that readers need not wait for a timeout. What happened is raised already, and if
    this fails as well, the timeout will do it."""
    with contextlib.suppress(ProtocolError, BrokerError):
        transaction_request.TransactionEnder(cluster, is_commit=False).end([writer])

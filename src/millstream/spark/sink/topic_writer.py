"""The classes that Spark calls: `write` in tasks, `commit` and `abort` for the driver.

Spark creates them in other processes, for each batch and for its commit, so they hold only options.
A streaming query is identified by its id, which tasks read from Spark's local properties and send
to the driver. A batch write is identified by its `txnAppId`, or by a random id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.protocol.cluster_client import ClusterClient
from millstream.spark.error import OptionError, ProtocolError
from millstream.spark.sink.batch_committer import BatchCommitter, adopt, roll_forward
from millstream.spark.sink.decision import Decision
from millstream.spark.sink.input_column import ColumnPlan
from millstream.spark.sink.sink_options import SinkOptions
from millstream.spark.sink.transaction_request import TransactionEnder
from millstream.spark.sink.write_task import TaskMessage, TaskTransaction, WriteTask

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a streaming query."""

    def __init__(self, options: SinkOptions, columns: ColumnPlan, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "rows can only be appended to a topic: use outputMode append or update"
            )
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task_context()
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch is None:
            raise ProtocolError("Spark did not set the query id and batch id for the task")
        task = WriteTask(self._options, self._columns, query, int(batch))
        return task.write(context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found, prepared = _collect(messages)
        if prepared or any(each.is_decided for each in found):
            with ClusterClient(self._options.connection) as cluster:
                BatchCommitter(cluster, self._options, found[0].owner).commit(batchId, prepared)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found, prepared = _collect(messages)
        if prepared:
            with ClusterClient(self._options.connection) as cluster:
                BatchCommitter(cluster, self._options, found[0].owner).abort(batchId, prepared)


class TopicBatchWriter(DataSourceArrowWriter):
    """Writes one `df.write`."""

    def __init__(self, options: SinkOptions, columns: ColumnPlan, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('rows can only be appended to a topic: use mode("append")')
        self._options = options
        self._columns = columns
        application = options.application
        self._owner = f"job-{uuid.uuid4()}" if application is None else f"app-{application[0]}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        application = self._options.application
        version = None if application is None else application[1]
        task = WriteTask(self._options, self._columns, self._owner, version)
        return task.write(_task_context().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found, prepared = _collect(messages)
        if not prepared and not any(each.is_decided for each in found):
            return
        with ClusterClient(self._options.connection) as cluster:
            application = self._options.application
            if application is not None:
                BatchCommitter(cluster, self._options, self._owner).commit(application[1], prepared)
                return
            decision = Decision(0, adopt(cluster, prepared), never_expires=False)
            roll_forward(cluster, decision, "a batch write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _, prepared = _collect(messages)
        if not prepared:
            return
        with ClusterClient(self._options.connection) as cluster:
            application = self._options.application
            if application is not None:
                BatchCommitter(cluster, self._options, self._owner).abort(application[1], prepared)
            else:
                TransactionEnder(cluster, is_commit=False).end([each.holder for each in prepared])


def _collect(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[list[TaskMessage], list[TaskTransaction]]:
    """Return the messages of the finished tasks, and their prepared transactions."""
    found = [each for each in messages if isinstance(each, TaskMessage)]
    return found, [each.prepared for each in found if each.prepared is not None]


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ProtocolError("rows can be written only in a Spark task")
    return context

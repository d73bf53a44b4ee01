"""Runs the tasks and the driver of a query without Spark, step by step, on a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from millstream.protocol.cluster_client import ClusterClient
from millstream.spark.sink.batch_committer import BatchCommitter, open_transactions
from millstream.spark.sink.input_column import plan_columns
from millstream.spark.sink.sink_options import sink_options
from millstream.spark.sink.write_task import TaskMessage, TaskTransaction, WriteTask

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


class Killed(BaseException):
    """Simulates the death of a process."""


class DirectQuery:
    """One query. Each call acts like a new process."""

    def __init__(self, servers: str, topic: str, query: str, **options: str) -> None:
        self.servers = servers
        self.topic = topic
        self.name = query
        self.options = sink_options({"kafka.bootstrap.servers": servers, "topic": topic} | options)

    def task(
        self, values: Iterable[str], partition: int = 0, batch: int | None = None
    ) -> TaskMessage:
        """Run a task of a batch. Without a batch it does not check whether the batch is decided."""
        task = WriteTask(self.options, plan_columns(SCHEMA, self.topic), self.name, batch)
        return task.write(partition, batches(values))

    def prepared(self, values: Iterable[str], partition: int = 0) -> TaskTransaction:
        found = self.task(values, partition).prepared
        assert found is not None
        return found

    def commit(self, batch: int, *prepared: TaskTransaction) -> None:
        with ClusterClient(self.options.connection) as cluster:
            BatchCommitter(cluster, self.options, self.name).commit(batch, prepared)

    def replay(self, batch: int, *parts: Iterable[str]) -> None:
        """Run the batch with a new driver, one task per part, as Spark does after a restart."""
        messages = [self.task(each, place, batch) for place, each in enumerate(parts)]
        self.commit(batch, *(each.prepared for each in messages if each.prepared is not None))

    def abort(self, batch: int, *prepared: TaskTransaction) -> None:
        with ClusterClient(self.options.connection) as cluster:
            BatchCommitter(cluster, self.options, self.name).abort(batch, prepared)

    def open_ids(self) -> list[str]:
        with ClusterClient(self.options.connection) as cluster:
            found = open_transactions(cluster, self.name)
        return sorted(each.transactional_id for each in found)

    def output(self) -> Counter[str]:
        return committed(self.servers, self.topic)


def batches(values: Iterable[str], size: int = 100) -> Iterator[pa.RecordBatch]:
    listed = list(values)
    for start in range(0, len(listed), size):
        part = listed[start : start + size]
        yield pa.record_batch(
            [pa.array(part, pa.string()), pa.array([each.encode() for each in part], pa.binary())],
            names=["key", "value"],
        )


def committed(servers: str, topic: str) -> Counter[str]:
    """Count the committed values that librdkafka reads. No transaction may be open."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1]
            for number in partitions
        }
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: Counter[str] = Counter()
        while any(
            position.offset < ends[position.partition]
            for position in consumer.position(
                [TopicPartition(topic, number) for number, end in ends.items() if end]
            )
        ):
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                found[value.decode()] += 1
        return found
    finally:
        consumer.close()

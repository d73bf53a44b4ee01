"""Ten million records through Spark, in a batch and in a stream: the same as librdkafka reads."""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as Assignment
from pyspark.sql import DataFrame, SparkSession

from harness.spark_reading import options_for, random_records, raw_client
from millstream.records.builder import build_batch
from millstream.records.codec import Codec
from millstream.testing.broker import LocalBroker

_ROWS = int(os.environ.get("SPARK_ROWS", "10000000"))
_PARTITIONS = 4
_BATCH_ROWS = 1_000

#: By partition: how many records, and the sums of their offsets and of their values' checksums.
Sums = dict[int, tuple[int, int, int]]


def _produce(broker: LocalBroker, topic: str) -> None:
    broker.create_topic(topic, _PARTITIONS)
    chooser = random.Random(10)
    batches = [
        bytes(build_batch(random_records(chooser, _BATCH_ROWS), codec=codec)) for codec in Codec
    ]
    with raw_client(broker) as client:
        for number in range(_ROWS // _BATCH_ROWS):
            row = client.produce(topic, chooser.choice(batches), number % _PARTITIONS)
            assert row.error_code == 0, row


def _spark_sums(frame: DataFrame) -> Sums:
    rows = frame.groupBy("partition").agg({"*": "count", "offset": "sum", "crc": "sum"}).collect()
    return {
        row["partition"]: (row["count(1)"], row["sum(offset)"], row["sum(crc)"]) for row in rows
    }


def _client_sums(broker: LocalBroker, topic: str) -> Sums:
    counts: Counter[int] = Counter()
    offsets: Counter[int] = Counter()
    checksums: Counter[int] = Counter()
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "reference",
        "enable.partition.eof": True,
    }
    consumer = Consumer(config)
    consumer.assign([Assignment(topic, n, OFFSET_BEGINNING) for n in range(_PARTITIONS)])
    ended = 0
    while ended < _PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            partition = message.partition()
            counts[partition] += 1
            offsets[partition] += message.offset()
            checksums[partition] += zlib.crc32(message.value() or b"")
    consumer.close()
    return {n: (counts[n], offsets[n], checksums[n]) for n in range(_PARTITIONS)}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_million_rows(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    _produce(broker, topic_name)
    expected = _client_sums(broker, topic_name)
    assert sum(count for count, _, _ in expected.values()) == _ROWS

    columns = ("partition", "offset", "crc32(coalesce(value, binary(''))) as crc")
    for split in ({}, {"minPartitions": 11}, {"maxRecordsPerPartition": _ROWS // 13}):
        options = options_for(broker, topic_name, **split)
        frame = spark.read.format("millstream").options(**options).load().selectExpr(*columns)
        assert _spark_sums(frame) == expected, split

    options = options_for(
        broker, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=_ROWS // 3 - 1
    )
    stream = spark.readStream.format("millstream").options(**options).load().selectExpr(*columns)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(1200)
    assert _spark_sums(spark.read.parquet(str(tmp_path / "rows"))) == expected

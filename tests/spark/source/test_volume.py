"""Spark reads ten million records, in batches and in streams, as librdkafka does.

A checksum covers each record with its offset and headers. The sums of checksums reveal missing,
duplicate, moved and changed records.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Assignment
from pyspark.sql import DataFrame, SparkSession

from harness.spark_reading import options_for, random_records, raw_client
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.testing.broker import LocalBroker

_ROWS = int(os.environ.get("SPARK_ROWS", "10000000"))
_PARTITIONS = 4
_BATCH_ROWS = 1_000
_TRANSACTIONS = 30
_TRANSACTION_ROWS = 500

#: By partition: the number of records, and the sums of offsets and checksums.
Sums = dict[int, tuple[int, int, int]]

#: The SQL for `_checksum`. Header names contain no comma.
_CHECKSUM = """
crc32(concat(
    binary(concat_ws(',', offset, unix_millis(timestamp), timestampType)),
    binary(','), coalesce(key, binary('-')), binary(','), coalesce(value, binary('-')),
    binary(array_join(transform(coalesce(headers, array()),
        header -> concat(',', header.key, '=', coalesce(hex(header.value), '-'))), ''))
)) as checksum
"""
_COLUMNS = ("partition", "offset", _CHECKSUM)


def _checksum(message: Message) -> int:
    key, value = message.key(), message.value()
    headers = "".join(
        f",{name}={'-' if content is None else content.hex().upper()}"
        for name, content in message.headers() or ()
    )
    place = f"{message.offset()},{message.timestamp()[1]},0,"
    content = (b"-" if key is None else key) + b"," + (b"-" if value is None else value)
    return zlib.crc32(place.encode() + content + headers.encode())


def _produce(broker: LocalBroker, topic: str) -> None:
    """Write plain records in every codec, and transactions of which every other one is aborted."""
    broker.create_topic(topic, _PARTITIONS)
    chooser = random.Random(10)
    batches = [
        bytes(build_batch(random_records(chooser, _BATCH_ROWS), codec=codec))
        for codec in CompressionType
    ]
    writer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"writer-{topic}"}
    )
    writer.init_transactions(60)
    count = _ROWS // _BATCH_ROWS
    step = count // _TRANSACTIONS
    with raw_client(broker) as client:
        for number in range(count):
            if number % step == 0:
                _write_transaction(writer, topic, number // step)
            row = client.produce(topic, chooser.choice(batches), number % _PARTITIONS)
            assert row.error_code == 0, row


def _write_transaction(writer: Producer, topic: str, number: int) -> None:
    is_aborted = bool(number % 2)
    writer.begin_transaction()
    for row in range(_TRANSACTION_ROWS):
        value = f"{'aborted' if is_aborted else 'kept'}-{number}-{row}"
        writer.produce(topic, value, partition=row % _PARTITIONS, timestamp=row + 1)
    assert writer.flush(60) == 0
    if is_aborted:
        writer.abort_transaction(60)
    else:
        writer.commit_transaction(60)


def _spark_sums(frame: DataFrame) -> Sums:
    sums = {"*": "count", "offset": "sum", "checksum": "sum"}
    rows = frame.groupBy("partition").agg(sums).collect()
    return {
        row["partition"]: (row["count(1)"], row["sum(offset)"], row["sum(checksum)"])
        for row in rows
    }


def _client_sums(broker: LocalBroker, topic: str, isolation: str) -> Sums:
    counts: Counter[int] = Counter()
    offsets: Counter[int] = Counter()
    checksums: Counter[int] = Counter()
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "reference",
        "enable.partition.eof": True,
        "isolation.level": isolation,
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
            checksums[partition] += _checksum(message)
    consumer.close()
    return {n: (counts[n], offsets[n], checksums[n]) for n in range(_PARTITIONS)}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_million_rows(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    _produce(broker, topic_name)
    more = {"includeHeaders": "true", "kafka__isolation__level": "read_committed"}
    expected = _client_sums(broker, topic_name, "read_committed")
    everything = _client_sums(broker, topic_name, "read_uncommitted")
    counts = [sum(count for count, _, _ in sums.values()) for sums in (expected, everything)]
    assert _ROWS < counts[0] < counts[1] - _TRANSACTION_ROWS

    for split in ({}, {"minPartitions": 11}, {"maxRecordsPerPartition": _ROWS // 13}):
        options = options_for(broker, topic_name, **more, **split)
        frame = spark.read.format("millstream").options(**options).load().selectExpr(*_COLUMNS)
        assert _spark_sums(frame) == expected, split
    options = options_for(broker, topic_name, includeHeaders="true")
    frame = spark.read.format("millstream").options(**options).load().selectExpr(*_COLUMNS)
    assert _spark_sums(frame) == everything

    for number, split in enumerate(({}, {"minPartitions": 9})):
        folder = tmp_path / str(number)
        options = options_for(
            broker,
            topic_name,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=_ROWS // 3 - 1,
            **more,
            **split,
        )
        assert _stream_sums(spark, options, folder) == expected, split


def _stream_sums(spark: SparkSession, options: dict[str, str], folder: Path) -> Sums:
    stream = spark.readStream.format("millstream").options(**options).load().selectExpr(*_COLUMNS)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(1800)
    return _spark_sums(spark.read.parquet(str(folder / "rows")))

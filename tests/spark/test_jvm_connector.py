"""Spark's own Kafka connector, unmodified, with Millstream: batches, streams and the sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, Row, SparkSession

from millstream.testing.broker import LocalBroker

#: A topic of two partitions with 60 records each: see `_fill`.
COUNT = 120
START_MS = 1_700_000_000_000
STEP_MS = 1000
DEADLINE_S = 120

Read: TypeAlias = Callable[..., DataFrame]

pytestmark = pytest.mark.usefixtures("jvm_connector")


def _fill(servers: str, topic: str, numbers: range = range(COUNT)) -> None:
    """Send records one second apart to partition `n % 2`; every third has no key."""
    producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4"})
    for number in numbers:
        producer.produce(
            topic,
            f"value-{number}",
            None if number % 3 == 0 else f"key-{number}",
            partition=number % 2,
            timestamp=START_MS + number * STEP_MS,
            headers=[("number", str(number).encode()), ("empty", None)],
        )
    assert producer.flush(DEADLINE_S) == 0


@pytest.fixture(scope="module")
def filled(broker: LocalBroker) -> Iterator[str]:
    broker.create_topic("jvm-input", 2, {"retention.ms": -1})
    _fill(broker.bootstrap_servers, "jvm-input")
    yield "jvm-input"
    broker.delete_topic("jvm-input")


@pytest.fixture
def read(spark: SparkSession, broker: LocalBroker) -> Read:
    """Read a batch with these options of the connector."""

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("kafka")
        return (
            reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .options(**options)
            .load()
        )

    return load


def _numbers(frame: DataFrame) -> list[int]:
    rows = frame.selectExpr("cast(substring(cast(value as string), 7) as int) as number").collect()
    return sorted(row.number for row in rows)


def _offsets(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


def test_a_batch_has_all_columns(read: Read, filled: str) -> None:
    rows = read(subscribe=filled, includeHeaders="true").collect()
    by_number = {int(bytes(row.value).partition(b"-")[2]): row for row in rows}
    assert sorted(by_number) == list(range(COUNT))
    assert len(rows) == COUNT
    for number, row in by_number.items():
        assert (row.topic, row.partition, row.offset) == (filled, number % 2, number // 2)
        assert row.key == (None if number % 3 == 0 else b"key-%d" % number)
        assert row.timestamp.timestamp() * 1000 == START_MS + number * STEP_MS
        assert row.timestampType == 0
        assert [(header.key, header.value) for header in row.headers] == [
            ("number", b"%d" % number),
            ("empty", None),
        ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingOffsets": _offsets("jvm-input", 50, -2)},
            {*range(100, 120, 2), *range(1, 120, 2)},
        ),
        ({"endingOffsets": _offsets("jvm-input", 10, 0)}, set(range(0, 20, 2))),
        (
            {
                "startingOffsets": _offsets("jvm-input", 5, 6),
                "endingOffsets": _offsets("jvm-input", -1, 8),
            },
            {*range(10, 120, 2), 13, 15},
        ),
        (
            {
                "startingTimestamp": str(START_MS + 100 * STEP_MS),
                "endingTimestamp": str(START_MS + 110 * STEP_MS),
            },
            set(range(100, 110)),
        ),
        ({"maxRecordsPerPartition": "7"}, set(range(COUNT))),
    ],
    ids=["start", "end", "both", "times", "split"],
)
def test_start_and_end_of_a_batch(
    read: Read, filled: str, options: dict[str, str], expected: set[int]
) -> None:
    assert _numbers(read(subscribe=filled, **options)) == sorted(expected)


def test_topics_by_pattern_and_by_partition(read: Read, filled: str) -> None:
    assert _numbers(read(subscribePattern="jvm-in.*")) == list(range(COUNT))
    assert _numbers(read(assign=json.dumps({filled: [1]}))) == list(range(1, COUNT, 2))


def _copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: Path) -> int:
    """Copy new records. Return their number."""
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50)
        .option("includeHeaders", "true")
        .load()
    )
    query = (
        frame.select("key", "value", "headers", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("includeHeaders", "true")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S), query.status
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _contents(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """Return what librdkafka reads from a topic of two partitions."""
    settings = {"bootstrap.servers": servers, "group.id": "nobody", "enable.partition.eof": "true"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found: list[tuple[Any, ...]] = []
    ends = 0
    while ends < 2:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error():
            ends += 1
            continue
        place = (message.partition(), message.offset())
        found.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    for topic in ("jvm-from", "jvm-to"):
        broker.create_topic(topic, 2, {"retention.ms": -1})
    _fill(servers, "jvm-from")
    assert _copy(spark, servers, "jvm-from", "jvm-to", tmp_path / "checkpoint") == COUNT
    _fill(servers, "jvm-from", range(COUNT, COUNT + 10))
    assert _copy(spark, servers, "jvm-from", "jvm-to", tmp_path / "checkpoint") == 10
    assert _contents(servers, "jvm-to") == _contents(servers, "jvm-from")


def test_a_batch_is_written(spark: SparkSession, broker: LocalBroker, read: Read) -> None:
    broker.create_topic("jvm-written", 2)
    rows = [Row(topic="jvm-written", key=f"k{n}", value=f"v-{n}") for n in range(50)]
    (
        spark.createDataFrame(rows)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .save()
    )
    written = read(subscribe="jvm-written").selectExpr("string(key) key", "string(value) value")
    assert sorted(tuple(row) for row in written.collect()) == sorted(
        (row.key, row.value) for row in rows
    )

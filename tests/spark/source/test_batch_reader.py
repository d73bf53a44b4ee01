"""The source inside Spark: the planning process, tasks, checkpoints and the listener."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import Row as SparkRow

from harness.process.broker_process import wait_until
from harness.spark_reading import Row, options_for, produce_values, read_client
from millstream.spark.progress import commit_progress
from millstream.testing.broker import LocalBroker


def _batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("millstream").options(**options).load()


def _start(
    spark: SparkSession, options: Mapping[str, str], folder: Path, **trigger: Any
) -> StreamingQuery:
    frame = spark.readStream.format("millstream").options(**options).load()
    return (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**trigger)
        .start(str(folder / "rows"))
    )


def _row(row: SparkRow) -> Row:
    return Row(
        row.partition,
        row.offset,
        row.key if row.key is None else bytes(row.key),
        row.value if row.value is None else bytes(row.value),
        int(row.timestamp.timestamp() * 1000),
        row.timestampType,
        [(one.key, bytes(one.value)) for one in row.headers or []],
    )


@pytest.fixture(scope="module")
def orders(broker: LocalBroker) -> str:
    """A topic with two partitions of 50 records, with keys and headers."""
    broker.create_topic("orders", 2)
    for partition in range(2):
        values = [f"value-{partition}-{number}" for number in range(50)]
        produce_values(
            broker, "orders", values, key="key", headers=[("h", b"x")], partition=partition
        )
    return "orders"


def test_batch_equals_librdkafka(spark: SparkSession, broker: LocalBroker, orders: str) -> None:
    rows = _batch(
        spark, options_for(broker, orders, includeHeaders="true", minPartitions=3)
    ).collect()
    found = sorted(map(_row, rows), key=lambda row: (row.partition, row.offset))
    assert found == read_client(broker, orders, 2)


def test_filters_reach_the_plan(spark: SparkSession, broker: LocalBroker, orders: str) -> None:
    frame = _batch(spark, options_for(broker, orders, columns="offset,partition"))
    wanted = frame.where("partition = 1 and offset >= 10 and offset < 20")
    assert wanted.rdd.getNumPartitions() == 1, "the other partition is not even planned"
    assert sorted(wanted.collect()) == [(offset, 1) for offset in range(10, 20)]
    late = _batch(spark, options_for(broker, orders)).where("timestamp > '2001-01-01'")
    assert late.count() == 100
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = _batch(spark, options_for(broker, orders)).where("partition = 1 and offset = 3")
        assert [row.offset for row in frame.collect()] == [3]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_wrong_option_is_named(spark: SparkSession, broker: LocalBroker, orders: str) -> None:
    with pytest.raises(PySparkException, match="startingofset is not an option of the source"):
        _batch(spark, options_for(broker, orders, startingOfset="earliest")).count()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOfset": "earliest"}, "startingofset is not an option of the source"),
        ({"subscribe": "nowhere"}, "subscribe names topic nowhere, which does not exist"),
        ({"startingOffsets": '{"orders": {"0": 99, "1": 0}}'}, "startingOffsets has offset 99"),
    ],
    ids=["option", "topic", "offset"],
)
def test_errors_of_a_stream_are_short(
    spark: SparkSession,
    broker: LocalBroker,
    orders: str,
    tmp_path: Path,
    options: dict[str, str],
    sentence: str,
) -> None:
    query = _start(spark, options_for(broker, orders) | options, tmp_path, availableNow=True)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    lines = str(raised.value).splitlines()
    assert any(sentence in line for line in lines[:12]), lines
    assert not any("During handling" in line for line in lines), "of an error in Spark's own code"


def test_stream_resumes_from_its_checkpoint(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name, 2)
    group = f"group-{topic_name}"
    options = options_for(
        broker,
        topic_name,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
        kafka__group__id=group,
    )
    for part in range(2):
        values = [f"value-{part}-{number}" for number in range(100)]
        produce_values(broker, topic_name, values, partition=part)
        query = _start(spark, options, tmp_path, availableNow=True)
        assert query.awaitTermination(120)
    commit_progress(query, options)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition in range(2) for offset in range(100)
    ]
    assert _committed(broker, group, topic_name) == [100, 100]


def test_latest_stream_with_a_listener(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name, 2)
    produce_values(broker, topic_name, ["before"], partition=0)
    group = f"group-{topic_name}"
    options = options_for(broker, topic_name, kafka__group__id=group)
    query = _start(spark, options, tmp_path, processingTime="0 seconds")
    try:
        commit_progress(query, options)
        wait_until(lambda: _committed(broker, group, topic_name) == [1, 0], "the start", 120)
        produce_values(broker, topic_name, ["after"], partition=1)
        wait_until(lambda: _committed(broker, group, topic_name) == [1, 1], "progress", 120)
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert [bytes(row.value) for row in rows] == [b"after"]


def test_each_source_of_a_query_has_its_own_group(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    frames, options = [], {}
    for number in range(2):
        topic = f"{topic_name}-{number}"
        broker.create_topic(topic, 2)
        produce_values(broker, topic, ["value"] * (3 + number), partition=number)
        options[topic] = options_for(
            broker, topic, startingOffsets="earliest", kafka__group__id=f"group-{topic}"
        )
        frames.append(spark.readStream.format("millstream").options(**options[topic]).load())
    query = (
        frames[0]
        .union(frames[1])
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    for each in options.values():
        commit_progress(query, each)
    first, second = options
    unset = Assignment(first, 0).offset
    assert _committed(broker, f"group-{first}", first) == [3, 0]
    assert _committed(broker, f"group-{first}", second) == [unset, unset]
    assert _committed(broker, f"group-{second}", second) == [0, 4]
    assert _committed(broker, f"group-{second}", first) == [unset, unset]


def _committed(broker: LocalBroker, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        wanted = [Assignment(topic, number) for number in range(2)]
        return [row.offset for row in consumer.committed(wanted, 30)]
    finally:
        consumer.close()

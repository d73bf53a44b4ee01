"""Rows that Spark writes are read by librdkafka."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millstream.testing.broker import LocalBroker
from spark.sink.direct_query import committed

_COLUMNS = (
    "topic string, key string, value binary, headers array<struct<key string, value binary>>, "
    "partition int, timestamp timestamp"
)


def messages(broker: LocalBroker, topic: str, count: int) -> list[Any]:
    """Return the first `count` messages by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Any] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), 1)
        return sorted(found, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()


def write(frame: DataFrame, broker: LocalBroker, **options: object) -> None:
    writer = frame.write.format("millstream").mode("append")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    writer.save()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_every_column_arrives(
    spark: SparkSession, broker: LocalBroker, topic_name: str, delivery: str
) -> None:
    broker.create_topic(topic_name, 3)
    moment = datetime(2026, 11, 15, 12, 30, 45, 678_000, tzinfo=UTC)
    early = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    rows = [
        (topic_name, "a", b"1", [("h", b"x"), ("h", None)], 0, moment),
        (topic_name, None, None, None, 1, early),
        (topic_name, "", b"", [], 2, None),
    ]
    write(spark.createDataFrame(rows, _COLUMNS).coalesce(1), broker, delivery=delivery)
    one, two, three = messages(broker, topic_name, 3)
    assert (one.key(), one.value(), one.headers()) == (b"a", b"1", [("h", b"x"), ("h", None)])
    assert one.timestamp()[1] == int(moment.timestamp() * 1000)
    assert (two.key(), two.value(), two.headers()) == (None, None, None)
    assert two.timestamp()[1] == -1
    assert (three.key(), three.value(), three.headers()) == (b"", b"", None)
    assert three.timestamp()[1] > one.timestamp()[1] - 1


def test_keys_go_where_librdkafka_puts_them(
    spark: SparkSession, broker: LocalBroker, topic_name: str
) -> None:
    for name in (topic_name, f"{topic_name}-b"):
        broker.create_topic(name, 5)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for number in range(200):
        producer.produce(f"{topic_name}-b", b"v", f"key-{number}")
    assert producer.flush(60) == 0
    frame = spark.range(200).select(
        sf.concat(sf.lit("key-"), sf.col("id")).alias("key"), sf.lit("v").alias("value")
    )
    write(frame, broker, topic=topic_name, kafka__compression__type="lz4", kafka__batch__size=2000)

    def places(topic: str) -> set[tuple[bytes, int]]:
        return {(each.key(), each.partition()) for each in messages(broker, topic, 200)}

    assert places(topic_name) == places(f"{topic_name}-b")


def test_missing_columns_are_named(spark: SparkSession, broker: LocalBroker) -> None:
    with pytest.raises(PySparkException, match="topic option required"):
        write(spark.sql("select 'a' as value"), broker)


def test_rows_that_cannot_be_written_fail_the_write(
    spark: SparkSession, broker: LocalBroker, topic_name: str
) -> None:
    broker.create_topic(topic_name, 2)
    for columns, text in (
        ("'a' as value, cast(null as string) as topic", "null topic present"),
        (f"'a' as value, '{topic_name}' as topic, 2 as partition", "partition 2 is not one of 2"),
    ):
        with pytest.raises(PySparkException, match=text):
            write(spark.sql(f"select {columns}"), broker)
    assert committed(broker.bootstrap_servers, topic_name) == Counter()


def test_a_write_with_an_application_and_version_takes_effect_once(
    spark: SparkSession, broker: LocalBroker, topic_name: str
) -> None:
    broker.create_topic(topic_name, 2)
    frame = spark.range(50).selectExpr("cast(id as string) as value")
    for version in (1, 1, 2, 1):
        write(frame, broker, topic=topic_name, txnAppId=topic_name, txnVersion=version)
    expected = Counter({str(number): 2 for number in range(50)})
    assert committed(broker.bootstrap_servers, topic_name) == expected


#: The steps at which processes are killed in one run of the query.
STEPS = (
    ("task-begin", "task-writing"),
    ("task-written", "task-prepared"),
    ("commit-begin", "abort-begin"),
    ("decision-written", "between-aborts"),
    ("decided",),
    ("between-commits",),
    ("committed",),
)
#: Of the query, until all steps that are killed together are reached.
RUNS_MAX = 5


@pytest.mark.timeout(1200)
def test_a_stream_is_written_exactly_once_whatever_is_killed(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path, faults: Path
) -> None:
    """The query is restarted with its checkpoint after each kill."""
    source, total = f"{topic_name}-in", 0
    for name in (source, topic_name):
        broker.create_topic(name, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def feed() -> None:
        nonlocal total
        for number in range(total, total + 60):
            producer.produce(source, str(number), str(number))
        assert producer.flush(60) == 0
        total += 60

    def run() -> Exception | None:
        frame = (
            spark.readStream.format("millstream")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 60)
            .load()
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("millstream")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic_name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(600)
        except PySparkException as error:
            return error
        return None

    for steps in STEPS:
        for step in steps:
            (faults / step).touch()
        # A kill may end the run before the other step is reached: by the next run, or by a task of
        # the failed run that still runs.
        runs = 0
        while any((faults / step).exists() for step in steps):
            assert runs < RUNS_MAX, f"not all of {steps} were reached"
            feed()
            run()
            runs += 1
    feed()
    assert run() is None
    expected = Counter({str(number): 1 for number in range(total)})
    assert committed(broker.bootstrap_servers, topic_name) == expected

"""Batches read through Spark from a real broker."""

from __future__ import annotations

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.testing.broker import LocalBroker


def _produce(broker: LocalBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, f"value-{number}", f"key-{number}", partition=number % 2)
    assert producer.flush(30) == 0


def test_batch(spark: SparkSession, broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 2)
    _produce(broker, topic_name, 100)
    frame = (
        spark.read.format("millstream")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic_name)
        .load()
    )
    rows = frame.collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition in (0, 1) for offset in range(50)
    ]
    assert {bytes(row.value) for row in rows} == {b"value-%d" % n for n in range(100)}


def test_stream(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: object
) -> None:
    broker.create_topic(topic_name, 2)
    _produce(broker, topic_name, 100)
    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic_name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30)
        .load()
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("rows")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    rows = spark.sql("select * from rows").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition in (0, 1) for offset in range(50)
    ]

"""The source and librdkafka read the same records from Apache Kafka and from Millstream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from harness.process.kafka_process import kafka_broker
from harness.raw.raw_client import RawClient
from harness.spark_reading import Row, options_for, random_records, read_client, read_source
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.testing.broker import LocalBroker

_PARTITIONS = 2
_SPLITS: list[dict[str, object]] = [{}, {"minPartitions": 17}, {"kafka__fetch__max__bytes": 1}]


class Address(NamedTuple):
    """The address of a broker, for the harness."""

    bootstrap_servers: str


@pytest.fixture(scope="module")
def kafka() -> Iterator[Any]:
    with kafka_broker() as broker:
        broker.start()
        yield Address(broker.bootstrap)


def _fill(servers: str, topic: str) -> None:
    """Write overlapping transactions of two producers, and plain batches of every codec.

    Every third transaction is aborted; the last one stays open."""
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1, config=config)])[topic].result(60)
    writers = [
        Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}"})
        for name in "ab"
    ]
    for writer in writers:
        writer.init_transactions(60)
        writer.begin_transaction()
    host, _, port = servers.rpartition(":")
    chooser = random.Random(43)
    with RawClient(host, int(port)) as client:
        for number in range(40):
            writer = writers[number % 2]
            value = "aborted" if number % 3 == 1 else f"kept-{number}"
            for row in range(chooser.randrange(1, 20)):
                partition = row % _PARTITIONS
                writer.produce(topic, value, f"{row}", partition, timestamp=1_750_000_000_000 + row)
            assert writer.flush(60) == 0
            batch = build_batch(
                random_records(chooser, 20), codec=list(CompressionType)[number % 5]
            )
            assert client.produce(topic, batch, number % _PARTITIONS).error_code == 0
            if number < 39:
                _end(writer, is_aborted=number % 3 == 1)


def _end(writer: Producer, *, is_aborted: bool) -> None:
    if is_aborted:
        writer.abort_transaction(60)
    else:
        writer.commit_transaction(60)
    writer.begin_transaction()


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.partition, row.offset))


@pytest.mark.soak
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_one_content_on_both_brokers(
    spark: SparkSession, kafka: Any, broker: LocalBroker, topic_name: str, isolation: str
) -> None:
    found = []
    for one in (kafka, Address(broker.bootstrap_servers)):
        _fill(one.bootstrap_servers, topic_name)
        expected = read_client(one, topic_name, _PARTITIONS, isolation)
        for split in _SPLITS:
            options = options_for(one, topic_name, kafka__isolation__level=isolation, **split)
            assert _sorted(read_source(options)) == expected, (one, split)
        frame = spark.read.format("millstream").options(**options).load()
        rows = frame.select("partition", "offset", "value").collect()
        assert sorted((row.partition, row.offset, row.value) for row in rows) == [
            (row.partition, row.offset, row.value) for row in expected
        ]
        found.append(expected)
    # Kafka writes markers after its response, so their offsets vary.
    contents = [[row._replace(offset=0) for row in rows] for rows in found]
    assert contents[0] == contents[1]
    values = {row.value for row in found[0]}
    assert (b"aborted" in values) == (isolation == "read_uncommitted")
    assert len(found[0]) > 700


@pytest.mark.soak
def test_a_stream_of_committed_records(
    spark: SparkSession, kafka: Any, topic_name: str, tmp_path: Path
) -> None:
    _fill(kafka.bootstrap_servers, topic_name)
    options = options_for(
        kafka,
        topic_name,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=150,
        kafka__isolation__level="read_committed",
    )
    query = (
        spark.readStream.format("millstream")
        .options(**options)
        .load()
        .select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(240)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(map(tuple, rows), key=lambda row: row[:2]) == [
        (row.partition, row.offset, row.value)
        for row in read_client(kafka, topic_name, _PARTITIONS, "read_committed")
    ]

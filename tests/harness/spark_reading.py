"""Topics for tests of the Spark source, and two ways to read them.

`read_source` plans and reads in this process as Spark does, without a JVM. `read_client` reads with
librdkafka, the reference.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Producer,
)
from confluent_kafka import TopicPartition as Assignment

from harness.raw.raw_client import RawClient
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.spark.source.batch_reader import BatchReader
from millstream.spark.source.source_schema import source_schema
from millstream.testing.broker import LocalBroker

_READ_SECONDS_MAX = 120.0
_NOW_MS = 1_750_000_000_000


class Row(NamedTuple):
    """A record as both ways of reading return it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: list[tuple[str, bytes | None]]


def raw_client(broker: LocalBroker) -> RawClient:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return RawClient(host, int(port))


def random_records(chooser: random.Random, count: int) -> list[Record]:
    """Return records with nulls, headers and unordered timestamps."""

    def text(size_max: int) -> bytes | None:
        size = chooser.randrange(-1, size_max)
        return None if size < 0 else chooser.randbytes(size)

    return [
        Record(
            offset,
            _NOW_MS + chooser.randrange(-5000, 5000),
            text(12),
            text(200),
            [(f"name-{n}", text(9)) for n in range(chooser.choice([0, 0, 1, 3]))],
        )
        for offset in range(count)
    ]


def produce_random(
    broker: LocalBroker, topic: str, chooser: random.Random, partitions: int, batches: int
) -> None:
    """Produce batches of random records in every codec."""
    with raw_client(broker) as client:
        for number in range(batches):
            codec = list(CompressionType)[number % len(CompressionType)]
            batch = build_batch(random_records(chooser, chooser.randrange(1, 60)), codec=codec)
            row = client.produce(topic, batch, number % partitions)
            assert row.error_code == 0, row


def produce_values(broker: LocalBroker, topic: str, values: Iterable[str], **fields: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, **fields)
        producer.poll(0)
    assert producer.flush(60) == 0


def options_for(broker: LocalBroker, topic: str, **more: object) -> dict[str, str]:
    """Return options of the source; `more` has `__` for the dots of `kafka.*`."""
    given = {name.replace("__", "."): str(value) for name, value in more.items()}
    way = {} if "assign" in given or "subscribePattern" in given else {"subscribe": topic}
    return {"kafka.bootstrap.servers": broker.bootstrap_servers} | way | given


def read_source(options: Mapping[str, str]) -> list[Row]:
    """Return all records that a batch query with these options reads, in order of its ranges."""
    options = {"includeHeaders": "true"} | dict(options)
    reader = BatchReader(options, source_schema(options))
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += _rows(batch)
    return rows


def _rows(batch: pa.RecordBatch) -> list[Row]:
    moments = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Row(
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            moment // 1000,
            row["timestampType"],
            [(one["key"], one["value"]) for one in row["headers"] or []],
        )
        for row, moment in zip(batch.to_pylist(), moments, strict=True)
    ]


def read_client(
    broker: LocalBroker, topic: str, partitions: int, isolation: str = "read_uncommitted"
) -> list[Row]:
    """Return all records that librdkafka reads, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reference",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([Assignment(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    rows: list[Row] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + _READ_SECONDS_MAX
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"read only {len(rows)} records of {topic}"
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                rows.append(_row(message))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def _row(message: Any) -> Row:
    kind, moment = message.timestamp()
    return Row(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        moment,
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.headers() or [],
    )

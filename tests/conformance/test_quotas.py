"""Quotas as unmodified clients see them, on one broker and on three.

The quota is that of a client id. Each test checks that the client sees the throttle time, that it
takes at least as long as the quota demands, and that no record is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import confluent_kafka
import kafka
import pytest

from harness.process.brokers import ONE, THREE, Brokers, started
from millstream.client import Admin, QuotaEntity

#: Bytes per second, and a window of two seconds.
RATE: Final = 200_000
SETTINGS: Final = {"quota.window.num": 3}
RECORDS: Final = 100
RECORD_BYTES: Final = 10_000
#: A million bytes, of which 400,000 pass at once.
SECONDS_MIN: Final = 2.5
PARTITIONS: Final = 1


@pytest.fixture(scope="module", params=[ONE, THREE])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    with started(tmp_path_factory.mktemp("quotas"), request.param, SETTINGS) as running:
        yield running


def set_quota(brokers: Brokers, client_id: str, quotas: Mapping[str, float]) -> None:
    entity = QuotaEntity(client_id=client_id)
    with Admin(brokers.bootstrap) as admin:
        assert admin.alter_quotas({entity: quotas}) == {entity: None}


def fill(brokers: Brokers, topic: str) -> None:
    """Write the records without a quota, in small batches."""
    brokers.create_topic(topic, PARTITIONS)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": brokers.bootstrap, "batch.size": RECORD_BYTES * 5}
    )
    for _ in range(RECORDS):
        producer.produce(topic, bytes(RECORD_BYTES))
    assert producer.flush(60) == 0


def test_the_producer_of_librdkafka(brokers: Brokers) -> None:
    brokers.create_topic("confluent", PARTITIONS)
    set_quota(brokers, "confluent", {"producer_byte_rate": RATE})
    throttles: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": "confluent",
            "batch.size": RECORD_BYTES * 5,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    failed: list[Any] = []
    began = time.monotonic()
    for _ in range(RECORDS):
        producer.produce(
            "confluent",
            bytes(RECORD_BYTES),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failed
    assert time.monotonic() - began >= SECONDS_MIN
    assert max(throttles) > 0


def test_the_consumer_of_librdkafka(brokers: Brokers) -> None:
    fill(brokers, "confluent-read")
    set_quota(brokers, "confluent-reader", {"consumer_byte_rate": RATE})
    throttles: list[float] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": "confluent-reader",
            "group.id": "confluent",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": RECORD_BYTES * 10,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("confluent-read", 0, 0)])
    began = time.monotonic()
    offsets = []
    while len(offsets) < RECORDS and time.monotonic() - began < 60:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            offsets.append(message.offset())
    consumer.close()
    assert offsets == list(range(RECORDS))
    assert time.monotonic() - began >= SECONDS_MIN
    assert max(throttles) > 0


def test_the_producer_of_kafka_python(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    brokers.create_topic("python", PARTITIONS)
    set_quota(brokers, "python", {"producer_byte_rate": RATE})
    producer = kafka.KafkaProducer(
        bootstrap_servers=brokers.bootstrap, client_id="python", batch_size=RECORD_BYTES * 5
    )
    began = time.monotonic()
    futures = [producer.send("python", bytes(RECORD_BYTES)) for _ in range(RECORDS)]
    producer.flush(60)
    assert sorted(future.get(1).offset for future in futures) == list(range(RECORDS))
    assert time.monotonic() - began >= SECONDS_MIN
    producer.close()
    assert "ProduceResponse throttled by broker" in caplog.text


def test_the_consumer_of_kafka_python(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    fill(brokers, "python-read")
    set_quota(brokers, "python-reader", {"consumer_byte_rate": RATE})
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=brokers.bootstrap,
        client_id="python-reader",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=RECORD_BYTES * 10,
        consumer_timeout_ms=30_000,
    )
    consumer.assign([kafka.TopicPartition("python-read", 0)])
    consumer.seek_to_beginning()
    began = time.monotonic()
    offsets = []
    for message in consumer:
        offsets.append(message.offset)
        if len(offsets) == RECORDS:
            break
    assert offsets == list(range(RECORDS))
    assert time.monotonic() - began >= SECONDS_MIN
    consumer.close()
    assert "FetchResponse throttled by broker" in caplog.text


def test_replication_has_no_quota(brokers: Brokers) -> None:
    """The default quota of client ids does not throttle followers. If it did, the records would not
    be acknowledged in time."""
    entity = QuotaEntity(client_id=QuotaEntity.DEFAULT)
    with Admin(brokers.bootstrap) as admin:
        # The internal client ids of brokers have no quota of their own.
        admin.alter_quotas({entity: {"consumer_byte_rate": 1000.0}})
        try:
            fill(brokers, "replicated")
        finally:
            admin.alter_quotas({entity: {"consumer_byte_rate": None}})

"""Producers, consumers and workers with the serdes of a schema registry, on a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

from client.conftest import new_topic
from client.schema_registry.test_registry_format import AVRO_TEXT
from harness import order_schema as order
from harness.fake_registry import FakeRegistry
from millstream.client import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Job,
    Producer,
    RegistryAvroSerde,
    RegistryJsonSerde,
    RegistryUnavailable,
    SchemaRegistry,
    SerializationError,
    Worker,
)

TOPIC_NAMES = {"subject.name.strategy": topic_subject_name_strategy}


def read(bootstrap: str, topic: str, **options: Any) -> Any:
    """Return the first record of a topic."""
    with Consumer(bootstrap, topics=[topic], **options) as consumer:
        return next(iter(consumer))


@pytest.mark.parametrize("place", ["value", "headers"])
def test_a_producer_and_a_consumer(
    bootstrap: str, topic: str, fake_registry: FakeRegistry, place: Any
) -> None:
    values = RegistryAvroSerde(fake_registry.url, order.AVRO, schema_id_in=place)
    keys = RegistryJsonSerde(
        fake_registry.url, {"type": "string", "title": "K"}, schema_id_in=place
    )
    with Producer(bootstrap, key_serializer=keys, value_serializer=values) as producer:
        producer.send(topic, order.VALUE, key="alice", headers={"color": "red"})
        producer.send(topic, None, key="alice")
    with Consumer(
        bootstrap, topics=[topic], key_deserializer=keys, value_deserializer=values
    ) as consumer:
        records = iter(consumer)
        first, second = next(records), next(records)
        assert (first.key, first.value) == ("alice", order.VALUE)
        assert first.header("color") == b"red"
        assert (second.key, second.value) == ("alice", None)
    ids = {"__key_schema_id", "__value_schema_id"} if place == "headers" else set()
    assert {name for name, _ in first.headers} == ids | {"color"}


def test_records_of_confluent_kafka_and_back(
    bootstrap: str, topic: str, fake_registry: FakeRegistry
) -> None:
    client = SchemaRegistryClient({"url": fake_registry.url})
    serializer = AvroSerializer(client, AVRO_TEXT, conf=TOPIC_NAMES)
    theirs = SerializingProducer({"bootstrap.servers": bootstrap, "value.serializer": serializer})
    theirs.produce(topic, value=order.VALUE)
    assert theirs.flush(30) == 0
    serde = RegistryAvroSerde(fake_registry.url, order.AVRO)
    with Producer(bootstrap, value_serializer=serde) as producer:
        producer.send(topic, order.VALUE)
    with Consumer(bootstrap, topics=[topic], value_deserializer=serde) as consumer:
        records = iter(consumer)
        first, second = next(records), next(records)
        assert first.value == second.value == order.VALUE
        assert first.raw_value == second.raw_value
    reader = DeserializingConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-theirs",
            "auto.offset.reset": "earliest",
            "value.deserializer": AvroDeserializer(client, conf=TOPIC_NAMES),
        }
    )
    reader.subscribe([topic])
    try:
        found = [reader.poll(30) for _ in range(2)]
        assert [each and each.value() for each in found] == [order.VALUE, order.VALUE]
    finally:
        reader.close()
        client.close()


def test_a_delayed_record_has_the_subject_of_its_topic(
    bootstrap: str, topic: str, fake_registry: FakeRegistry
) -> None:
    serde = RegistryAvroSerde(fake_registry.url, order.AVRO)
    with Producer(bootstrap, value_serializer=serde) as producer:
        producer.send(topic, order.VALUE, delay=0.0)
    assert ("POST", f"/subjects/{topic}-value/versions") in fake_registry.requests


def test_values_that_cannot_be_read(
    bootstrap: str, topic: str, fake_registry: FakeRegistry
) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, b"plain")
    registry = SchemaRegistry(fake_registry.url, config={"max.retries": 0})
    record = read(bootstrap, topic, value_deserializer=RegistryAvroSerde(registry))
    with pytest.raises(SerializationError, match=r"-0 at offset 0 .* no schema id"):
        _ = record.value
    fake_registry.failing = 503
    serde = RegistryAvroSerde(registry, order.AVRO)
    with Producer(bootstrap, value_serializer=serde) as producer:
        with pytest.raises(RegistryUnavailable, match="status 503"):
            producer.send(topic, order.VALUE)
        fake_registry.failing = None
        with pytest.raises(SerializationError, match="cannot be encoded by RegistryAvroSerde"):
            producer.send(topic, {"customer": 7, "apples": "two"})


def watched(fake: FakeRegistry, threads: set[int]) -> SchemaRegistry:
    """Return a registry that notes the threads which send requests to it."""
    registry = SchemaRegistry(fake.url)
    send = registry.client._rest_client.send_request

    def noted(*arguments: Any, **keywords: Any) -> Any:
        threads.add(threading.get_ident())
        return send(*arguments, **keywords)

    registry.client._rest_client.send_request = noted
    return registry


def test_lookups_do_not_block_the_event_loop(
    bootstrap: str, topic: str, fake_registry: FakeRegistry
) -> None:
    threads: set[int] = set()

    def serde() -> RegistryAvroSerde:
        return RegistryAvroSerde(watched(fake_registry, threads), order.AVRO)

    async def main() -> list[Any]:
        async with AsyncProducer(bootstrap, value_serializer=serde()) as producer:
            for _ in range(3):
                await producer.send(topic, order.VALUE)
        async with AsyncConsumer(bootstrap, topics=[topic], value_deserializer=serde()) as consumer:
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 3:
                    break
            return found

    assert asyncio.run(main()) == [order.VALUE] * 3
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker(
    bootstrap: str, name: Callable[[str], str], fake_registry: FakeRegistry, is_async: bool
) -> None:
    topic, output = new_topic(bootstrap, name, 1), new_topic(bootstrap, name, 1)
    serde = RegistryAvroSerde(fake_registry.url, order.AVRO, schema_id_in="headers")
    with Producer(bootstrap, value_serializer=serde) as producer:
        producer.send(topic, order.VALUE)
        # Read again after a failure: the header with the id stays.
        producer.send(topic, {"customer": "bob", "apples": 0})
    with Producer(bootstrap) as producer:
        producer.send(topic, b"plain")

    asking: set[int] = set()
    loops: set[int] = set()
    working = RegistryAvroSerde(watched(fake_registry, asking), order.AVRO, schema_id_in="headers")

    def bill(job: Job) -> None:
        if job.value["apples"] == 0 and job.attempt == 1:
            raise ValueError("retry me")
        job.send(output, {**job.value, "apples": job.attempt})

    async def bill_async(job: Job) -> None:
        loops.add(threading.get_ident())
        bill(job)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=bill_async if is_async else bill,
        order="none",
        backoff=0.01,
        consumer={"value_deserializer": working},
        producer={"value_serializer": working},
    )
    with worker:
        with Consumer(bootstrap, topics=[output], value_deserializer=serde) as consumer:
            records = iter(consumer)
            found = {next(records).value["customer"] for _ in range(2)}
        assert found == {"alice", "bob"}
        letter = read(bootstrap, f"{topic}.dlq")
        assert letter.raw_value == b"plain"
        assert b"no schema id" in (letter.header("millstream.error.message") or b"")
    assert asking
    assert not asking & loops

"""Unmodified clients in transactions: they read, process, write, die and restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.process.broker_process import BrokerProcess

PARTITIONS = 3
SECONDS_MAX = 20
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("transactions")
    with BrokerProcess(folder, {"group.initial.rebalance.delay.ms": 0}) as process:
        yield process


@pytest.fixture
def topics(broker: BrokerProcess) -> tuple[str, str]:
    """Create an input and an output topic."""
    number = next(_numbers)
    names = (f"in-{number}", f"out-{number}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        made.result(SECONDS_MAX)
    return names


def transactional(broker: BrokerProcess, transactional_id: str, **settings: Any) -> Producer:
    given = {
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": transactional_id,
        "log_level": 0,
        **settings,
    }
    producer = Producer(given)
    producer.init_transactions(SECONDS_MAX)
    return producer


def consumer(broker: BrokerProcess, group_id: str, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
            **settings,
        }
    )


def read_all(broker: BrokerProcess, topic: str, isolation: str) -> list[bytes]:
    """Read all messages up to the end offsets of this isolation level."""
    reader = consumer(broker, "reader", **{"isolation.level": isolation})
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values: list[bytes] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = reader.poll(SECONDS_MAX)
        assert message is not None, "the end of a partition was never reached"
        if message.error() is not None:
            ended.add(message.partition())
        else:
            values.append(message.value())
    reader.close()
    return sorted(values)


def test_librdkafka_reads_committed_records(broker: BrokerProcess, topics: tuple[str, str]) -> None:
    producer = transactional(broker, topics[1])
    for number in range(10):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topics[1], b"%d-%d" % (number, partition), partition=partition)
        if number % 2:
            assert producer.flush(SECONDS_MAX) == 0
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
    every = sorted(b"%d-%d" % (n, p) for n in range(10) for p in range(PARTITIONS))
    assert read_all(broker, topics[1], "read_uncommitted") == every
    expected = sorted(b"%d-%d" % (n, p) for n in range(0, 10, 2) for p in range(PARTITIONS))
    assert read_all(broker, topics[1], "read_committed") == expected


def test_librdkafka_commits_offsets_with_its_output(
    broker: BrokerProcess, topics: tuple[str, str]
) -> None:
    source, target = topics
    feed = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(30):
        feed.produce(source, b"%d" % number, partition=number % PARTITIONS)
    assert feed.flush(SECONDS_MAX) == 0
    # The first two rounds are aborted, so their input is read again.
    for round_number in range(4):
        reader = consumer(broker, target)
        reader.subscribe([source])
        producer = transactional(broker, target)
        producer.begin_transaction()
        taken = 0
        while taken < 15:
            message = reader.poll(SECONDS_MAX)
            assert message is not None
            if message.error() is None:
                producer.produce(target, message.value(), partition=message.partition())
                taken += 1
        metadata = reader.consumer_group_metadata()
        positions = [each for each in reader.position(reader.assignment()) if each.offset > 0]
        producer.send_offsets_to_transaction(positions, metadata, SECONDS_MAX)
        if round_number < 2:
            assert producer.flush(SECONDS_MAX) == 0
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
        reader.close()
    expected = sorted(b"%d" % number for number in range(30))
    assert read_all(broker, target, "read_committed") == expected


def test_librdkafka_is_fenced_by_its_successor(
    broker: BrokerProcess, topics: tuple[str, str]
) -> None:
    target = topics[1]
    zombie = transactional(broker, target)
    zombie.begin_transaction()
    zombie.produce(target, b"lost", partition=0)
    assert zombie.flush(SECONDS_MAX) == 0
    successor = transactional(broker, target)
    successor.begin_transaction()
    successor.produce(target, b"kept", partition=0)
    successor.commit_transaction(SECONDS_MAX)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(SECONDS_MAX)
    assert caught.value.args[0].fatal()
    assert read_all(broker, target, "read_committed") == [b"kept"]


def test_librdkafka_continues_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(SECONDS_MAX)
        producer = transactional(broker, "x")
        for number in range(4):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", b"%d" % number, partition=partition)
            if number == 1:
                assert producer.flush(SECONDS_MAX) == 0
            if number in (1, 2):
                broker.kill()
                broker.start()
            producer.commit_transaction(SECONDS_MAX)
        expected = sorted([b"0", b"1", b"2", b"3"] * PARTITIONS)
        assert read_all(broker, "t", "read_committed") == expected


def test_aiokafka_commits_aborts_and_is_fenced(
    broker: BrokerProcess, topics: tuple[str, str]
) -> None:
    target = topics[1]

    async def main() -> None:
        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap, transactional_id=target
            )
            await producer.start()
            return producer

        producer = await start()
        async with producer.transaction():
            await producer.send_and_wait(target, b"kept", partition=0)
            offsets = {aiokafka.TopicPartition(target, 0): 42}
            await producer.send_offsets_to_transaction(offsets, target)
        await producer.begin_transaction()
        await producer.send_and_wait(target, b"dropped", partition=1)
        await producer.abort_transaction()
        successor = await start()
        with pytest.raises(ProducerFenced):
            async with producer.transaction():
                await producer.send_and_wait(target, b"late", partition=0)
        await successor.stop()
        await producer.stop()

    asyncio.run(main())
    assert read_all(broker, target, "read_committed") == [b"kept"]
    reader = consumer(broker, target)
    (found,) = reader.committed([TopicPartition(target, 0)], SECONDS_MAX)
    assert found.offset == 42
    reader.close()

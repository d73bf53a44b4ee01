"""Offsets that are stored in the transaction of the application's write."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.process.broker_process import BrokerProcess, wait_until
from harness.seed import choose_seed
from millstream.client import AsyncConsumer
from millstream.client import Consumer as OwnConsumer
from millstream.client.dedup import StaleMessageError, StoredOffsets
from millstream.client.sql import DatabaseUseError

ACCOUNTANT = Path(__file__).with_name("accountant.py")


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def connect(address: str) -> Callable[[], Any]:
    def make() -> Any:
        if address.startswith("sqlite"):
            return sqlite3.connect(address.removeprefix("sqlite:///"), timeout=60)
        return psycopg.connect(address)

    with closing(make()) as connection:
        connection.execute("CREATE TABLE booking (value TEXT)")
        connection.commit()
    return make


@pytest.fixture
def offsets(connect: Callable[[], Any]) -> StoredOffsets:
    made = StoredOffsets(connect, "accountants")
    made.create_table()
    return made


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


def stored(offsets: StoredOffsets) -> int:
    return int(offsets.load([TopicPartition("t", 0)])[0].offset)


def test_an_offset_advances_once_with_its_transaction(
    offsets: StoredOffsets, connect: Callable[[], Any]
) -> None:
    unknown = TopicPartition("t", 0).offset
    assert stored(offsets) == unknown
    with closing(connect()) as connection:
        offsets.advance(connection, Message(4))
        connection.rollback()
        assert stored(offsets) == unknown
        offsets.advance(connection, Message(4))
        connection.commit()
        assert stored(offsets) == 5
        for late in (3, 4):
            with pytest.raises(StaleMessageError):
                offsets.advance(connection, Message(late))
            connection.rollback()
        # Offsets have gaps, because of compaction and transaction markers.
        offsets.advance(connection, Message(9))
        connection.commit()
    assert stored(offsets) == 10
    assert stored(StoredOffsets(connect, "others")) == unknown


def test_a_handle_without_a_transaction_is_rejected(
    offsets: StoredOffsets, address: str, connect: Callable[[], Any]
) -> None:
    with closing(connect()) as connection:
        if address.startswith("sqlite"):
            connection.isolation_level = None
        else:
            connection.autocommit = True
        with pytest.raises(DatabaseUseError):
            offsets.advance(connection, Message(0))


def fill(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in values:
        producer.produce(topic, str(number), str(number % 7))
    assert producer.flush(120) == 0


def test_a_consumer_resumes_at_the_stored_offset(
    offsets: StoredOffsets, connect: Callable[[], Any], broker: BrokerProcess, topic: str
) -> None:
    fill(broker.bootstrap, topic, range(20))
    properties = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "accountants",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    got: list[int] = []

    def read(count: int) -> None:
        consumer = Consumer(properties)
        offsets.subscribe(consumer, [topic])
        deadline = time.monotonic() + 120
        for _ in range(count):
            message = None
            while message is None or message.error():
                assert time.monotonic() < deadline
                message = consumer.poll(1)
            with closing(connect()) as connection:
                offsets.advance(connection, message)
                connection.commit()
            got.append(int(message.value()))
        consumer.close()

    read(8)
    read(12)
    assert sorted(got) == list(range(20))


def test_the_millstream_consumer_resumes_at_the_stored_offset(
    offsets: StoredOffsets, connect: Callable[[], Any], broker: BrokerProcess, topic: str
) -> None:
    fill(broker.bootstrap, topic, range(20))
    got: list[int] = []
    for count in (8, 12):
        with OwnConsumer(
            broker.bootstrap,
            group_id=topic,
            topics=[topic],
            on_assign=offsets.on_assign,
            commit_interval=0,
        ) as consumer:
            # A message that failed comes again.
            offsets.rewind(consumer, next(iter(consumer)))
            for record in itertools.islice(consumer, count):
                with closing(connect()) as connection:
                    offsets.advance(connection, record)
                    connection.commit()
                got.append(int(record.value))
    assert sorted(got) == list(range(20))


def test_the_asyncio_consumer_resumes_at_the_stored_offset(
    offsets: StoredOffsets, connect: Callable[[], Any], broker: BrokerProcess, topic: str
) -> None:
    fill(broker.bootstrap, topic, range(20))
    got: list[int] = []

    async def read(count: int) -> None:
        async with AsyncConsumer(
            broker.bootstrap,
            group_id=topic,
            topics=[topic],
            on_assign=offsets.on_assign,
            commit_interval=0,
        ) as consumer:
            async for record in consumer:
                # A message that failed comes again.
                await offsets.rewind_async(consumer, record)
                break
            done = 0
            async for record in consumer:
                with closing(connect()) as connection:
                    offsets.advance(connection, record)
                    connection.commit()
                got.append(int(record.value))
                done += 1
                if done == count:
                    break

    for count in (8, 12):
        asyncio.run(read(count))
    assert sorted(got) == list(range(20))


def fight(
    address: str, connect: Callable[[], Any], bootstrap: str, topic: str, kills: int, count: int
) -> None:
    chance = random.Random(choose_seed("OFFSETS_SEED"))
    command = [sys.executable, str(ACCOUNTANT), bootstrap, topic, address]
    members = [subprocess.Popen(command) for _ in range(2)]

    def booked() -> int:
        with closing(connect()) as connection:
            return int(connection.execute("SELECT count(*) FROM booking").fetchone()[0])

    try:
        wait_until(booked, "the first booking", 120)
        for _ in range(kills):
            time.sleep(chance.uniform(0, 1.5))
            victim = chance.randrange(2)
            members[victim].kill()
            members[victim].wait()
            members[victim] = subprocess.Popen(command)
        wait_until(lambda: booked() >= count, "all to be booked", 240)
    finally:
        for member in members:
            member.kill()
            member.wait()
    with closing(connect()) as connection:
        rows = connection.execute("SELECT value FROM booking").fetchall()
    assert sorted(int(row[0]) for row in rows) == list(range(count))


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
@pytest.mark.usefixtures("offsets")
def test_each_message_is_booked_once_although_consumers_are_killed(
    address: str, connect: Callable[[], Any], broker: BrokerProcess, topic: str
) -> None:
    fill(broker.bootstrap, topic, range(300))
    fight(address, connect, broker.bootstrap, topic, kills=1, count=300)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("offsets")
def test_a_hundred_kills(
    address: str, connect: Callable[[], Any], broker: BrokerProcess, topic: str
) -> None:
    fill(broker.bootstrap, topic, range(10_000))
    fight(address, connect, broker.bootstrap, topic, kills=100, count=10_000)

"""The in-memory consumer behaves as librdkafka's: the same tests run on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from harness.in_process.memory_kafka import TOPIC, MemoryCluster, MemoryConsumer
from millstream.client import Admin, Producer

SECONDS_MAX = 60.0
PARTITIONS = 2
RECORDS = 20


class World:
    """A topic with two partitions of 20 records, and its consumers."""

    def __init__(self, make: Callable[[], Any], topic: str) -> None:
        self._make = make
        self.topic = topic
        self._opened: list[Any] = []

    def open(self) -> Any:
        made = self._make()
        self._opened.append(made)
        return made

    def assigned(self, offset: int = OFFSET_BEGINNING) -> Any:
        consumer = self.open()
        consumer.assign([self.row(number, offset) for number in range(PARTITIONS)])
        return consumer

    def row(self, partition: int, *offset: int) -> TopicPartition:
        return TopicPartition(self.topic, partition, *offset)

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture(params=["memory", "librdkafka"])
def world(request: pytest.FixtureRequest, name: Callable[[str], str]) -> Iterator[World]:
    if request.param == "memory":
        cluster = MemoryCluster(logs={number: list(range(RECORDS)) for number in range(PARTITIONS)})
        made = World(lambda: MemoryConsumer(cluster), TOPIC)
    else:
        bootstrap = request.getfixturevalue("broker").bootstrap
        topic = name("topic")
        with Admin(bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)
        with Producer(bootstrap) as producer:
            for number in range(RECORDS * PARTITIONS):
                producer.send(topic, b"x", partition=number % PARTITIONS)
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        made = World(lambda: Consumer(properties), topic)
    yield made
    made.close()


def read(consumer: Any, count: int) -> dict[int, list[int]]:
    """Offsets by partition, until there are as many."""
    found: dict[int, list[int]] = {}
    deadline = time.monotonic() + SECONDS_MAX
    left = count
    while left:
        assert time.monotonic() < deadline, found
        messages: list[Message] = consumer.consume(min(7, left), 0.1)
        for message in messages:
            assert message.error() is None, message.error()
            found.setdefault(message.partition(), []).append(message.offset())
        left -= len(messages)
    return found


def sought(consumer: Any, row: TopicPartition) -> None:
    """Seek as soon as that is possible: not while the first offset is requested."""
    deadline = time.monotonic() + SECONDS_MAX
    while (code := seek_error(consumer, row)) is not None:
        assert code == KafkaError._STATE
        assert time.monotonic() < deadline
        assert consumer.poll(0.01) is None


def seek_error(consumer: Any, row: TopicPartition) -> int | None:
    try:
        consumer.seek(row)
    except KafkaException as error:
        return int(error.args[0].code())
    return None


ALL = list(range(RECORDS))


def test_each_record_comes_once_in_order(world: World) -> None:
    consumer = world.assigned()
    assert read(consumer, 2 * RECORDS) == {0: ALL, 1: ALL}
    assert consumer.poll(0) is None
    assert consumer.consume(5, 0) == []


def test_a_seek_drops_fetched_records_of_its_partition_only(world: World) -> None:
    consumer = world.assigned()
    first = read(consumer, 7)
    sought(consumer, world.row(0, 15))
    rest = read(consumer, 5 + RECORDS - len(first.get(1, [])))
    assert rest[0] == ALL[15:]
    assert first.get(1, []) + rest.get(1, []) == ALL
    sought(consumer, world.row(1, OFFSET_BEGINNING))
    assert read(consumer, RECORDS) == {1: ALL}
    sought(consumer, world.row(1, OFFSET_END))
    sought(consumer, world.row(0, 19))
    assert read(consumer, 1) == {0: [19]}


def test_a_paused_partition_resumes_where_it_was(world: World) -> None:
    consumer = world.assigned()
    first = read(consumer, 9)
    consumer.pause([world.row(0)])
    rest = read(consumer, RECORDS - len(first.get(1, [])))
    assert set(rest) <= {1}
    consumer.resume([world.row(0)])
    last = read(consumer, RECORDS - len(first.get(0, [])))
    assert first.get(0, []) + last[0] == ALL


def test_a_seek_while_paused_holds(world: World) -> None:
    consumer = world.assigned()
    read(consumer, 2 * RECORDS)
    consumer.pause([world.row(0), world.row(1)])
    sought(consumer, world.row(0, 12))
    assert consumer.poll(0) is None
    consumer.resume([world.row(0), world.row(1)])
    assert read(consumer, RECORDS - 12) == {0: ALL[12:]}


def test_seeking_an_unassigned_partition_fails(world: World) -> None:
    consumer = world.open()
    with pytest.raises(KafkaException):
        consumer.seek(world.row(0, 3))


def test_partitions_are_assigned_incrementally(world: World) -> None:
    consumer = world.open()
    consumer.incremental_assign([world.row(0, 4)])
    consumer.incremental_assign([world.row(1, 17)])
    found = read(consumer, 3 + RECORDS - 4)
    assert found == {0: ALL[4:], 1: ALL[17:]}
    consumer.incremental_unassign([world.row(0)])
    sought(consumer, world.row(1, 18))
    assert read(consumer, 2) == {1: ALL[18:]}


def test_offsets_are_committed_and_read_back(world: World) -> None:
    consumer = world.open()
    rows = consumer.commit(offsets=[world.row(1, 6)], asynchronous=False)
    assert [(row.partition, row.offset, row.error) for row in rows] == [(1, 6, None)]
    found = consumer.committed([world.row(0), world.row(1)], timeout=30)
    assert [(row.partition, row.offset) for row in found] == [(0, OFFSET_INVALID), (1, 6)]
    other = world.assigned(OFFSET_INVALID)
    assert read(other, 14 + RECORDS) == {0: ALL, 1: ALL[6:]}


def test_polls_and_close_run_rebalance_callbacks(world: World) -> None:
    consumer = world.open()
    seen: list[str] = []

    def assigned(handle: Any, rows: list[TopicPartition]) -> None:
        seen.append(f"assign {sorted(row.partition for row in rows)}")
        handle.incremental_assign(rows)

    def revoked(handle: Any, rows: list[TopicPartition]) -> None:
        seen.append(f"revoke {sorted(row.partition for row in rows)}")
        handle.incremental_unassign(rows)

    consumer.subscribe([world.topic], on_assign=assigned, on_revoke=revoked)
    if isinstance(consumer, MemoryConsumer):
        consumer.due.append(("assign", [0, 1]))
    assert read(consumer, 2 * RECORDS) == {0: ALL, 1: ALL}
    assert seen == ["assign [0, 1]"]
    consumer.close()
    assert seen == ["assign [0, 1]", "revoke [0, 1]"]
    world._opened.remove(consumer)


def test_a_callback_that_raises_is_raised_by_the_poll(world: World) -> None:
    consumer = world.open()

    def assigned(handle: Any, rows: list[TopicPartition]) -> None:
        handle.incremental_assign(rows)
        raise ZeroDivisionError

    consumer.subscribe([world.topic], on_assign=assigned)
    if isinstance(consumer, MemoryConsumer):
        consumer.due.append(("assign", [0, 1]))
    with pytest.raises(ZeroDivisionError):
        read(consumer, 1)

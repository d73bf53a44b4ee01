"""Unmodified clients in groups: members join, leave and die, and their commits survive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.process.broker_process import BrokerProcess, wait_until

PARTITIONS = 6
RECORDS = 60
SESSION_MS = 1500

#: A member that runs until it is killed.
_MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
    "session.timeout.ms": int(sys.argv[3]), "heartbeat.interval.ms": 200,
})
consumer.subscribe(["numbers"])
while True:
    consumer.poll(0.1)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("clients")
    settings = {
        "group.initial.rebalance.delay.ms": 200,
        "group.min.session.timeout.ms": 500,
        "group.consumer.heartbeat.interval.ms": 200,
    }
    with BrokerProcess(folder, settings) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        admin.create_topics([NewTopic("numbers", PARTITIONS, 1)])["numbers"].result(20)
        producer = Producer({"bootstrap.servers": process.bootstrap})
        for number in range(RECORDS):
            producer.produce("numbers", str(number), partition=number % PARTITIONS)
        assert producer.flush(20) == 0
        yield process


def member(broker: BrokerProcess, group_id: str, **settings: Any) -> Consumer:
    """Create a consumer. `settings` extend the common ones; None removes a setting."""
    given = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group_id,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 200,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    consumer = Consumer({name: value for name, value in given.items() if value is not None})
    consumer.subscribe(["numbers"])
    return consumer


def poll(consumers: list[Consumer]) -> list[int]:
    """Return the messages that any of the consumers received."""
    found = []
    for consumer in consumers:
        message = consumer.poll(0.02)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
    return found


def owners(consumers: list[Consumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def wait_for_shares(consumers: list[Consumer], shares: list[int]) -> None:
    def settled() -> bool:
        poll(consumers)
        if owners(consumers) != shares:
            return False
        owned = {each.partition for one in consumers for each in one.assignment()}
        return len(owned) == sum(shares)

    wait_until(settled, f"shares of {shares}", 90)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka_members_join_leave_and_die(broker: BrokerProcess, strategy: str) -> None:
    group_id = f"living-{strategy}"
    with ExitStack() as stack:
        first, second = (
            member(broker, group_id, partition_assignment_strategy=strategy) for _ in range(2)
        )
        stack.callback(first.close)
        wait_for_shares([first, second], [3, 3])
        arguments = [broker.bootstrap, group_id, str(SESSION_MS)]
        script = _MEMBER
        if strategy != "range":
            script = script.replace("{\n", f'{{"partition.assignment.strategy": "{strategy}",\n')
        third = subprocess.Popen([sys.executable, "-c", script, *arguments])
        stack.callback(third.wait)
        stack.callback(third.kill)
        wait_for_shares([first, second], [2, 2])
        third.kill()
        wait_for_shares([first, second], [3, 3])
        second.close()
        wait_for_shares([first], [6])


def test_commits_survive_a_killed_broker_and_readers_continue_from_them(
    broker: BrokerProcess,
) -> None:
    consumers = [member(broker, "surviving") for _ in range(3)]
    seen: list[int] = []
    deadline = time.monotonic() + 30
    while len(seen) < RECORDS // 2 and time.monotonic() < deadline:
        for consumer in consumers:
            if found := poll([consumer]):
                seen += found
                consumer.commit(asynchronous=False)
    for consumer in consumers:
        consumer.close()
    broker.kill()
    broker.start()
    reader = member(broker, "surviving")
    try:
        wait_until(lambda: seen.extend(poll([reader])) or len(seen) >= RECORDS, "the rest", 90)
        assert sorted(seen) == list(range(RECORDS)), "everything once, nothing again"
        reader.commit(asynchronous=False)
        places = [TopicPartition("numbers", number) for number in range(PARTITIONS)]
        assert {each.offset for each in reader.committed(places, timeout=60)} == {10}
    finally:
        reader.close()


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance(
    broker: BrokerProcess,
) -> None:
    moves: list[str] = []
    other = member(broker, "static", group_instance_id="other", session_timeout_ms=20_000)
    one = member(broker, "static", group_instance_id="one", session_timeout_ms=20_000)
    try:
        wait_for_shares([other, one], [3, 3])
        part = {each.partition for each in one.assignment()}
        other.subscribe(
            ["numbers"],
            on_assign=lambda _, __: moves.append("assigned"),
            on_revoke=lambda _, __: moves.append("revoked"),
        )
        wait_for_shares([other, one], [3, 3])
        moves.clear()
        one.close()
        one = member(broker, "static", group_instance_id="one", session_timeout_ms=20_000)
        wait_for_shares([other, one], [3, 3])
        assert {each.partition for each in one.assignment()} == part
        assert moves == []
    finally:
        one.close()
        other.close()


def test_a_group_with_members_changes_its_protocol(broker: BrokerProcess) -> None:
    """The group has members of the consumer protocol, of both, of the classic one, and back."""
    new = {"group.protocol": "consumer", "session.timeout.ms": None, "heartbeat.interval.ms": None}
    old = {"partition.assignment.strategy": "cooperative-sticky"}
    first, second = member(broker, "moving", **new), member(broker, "moving", **new)
    wait_for_shares([first, second], [3, 3])
    third = member(broker, "moving", **old)
    wait_for_shares([first, second, third], [2, 2, 2])
    first.close()
    second.close()
    wait_for_shares([third], [6])
    fourth = member(broker, "moving", **old)
    wait_for_shares([third, fourth], [3, 3])
    fifth = member(broker, "moving", **new)
    wait_for_shares([third, fourth, fifth], [2, 2, 2])
    third.close()
    fourth.close()
    wait_for_shares([fifth], [6])
    fifth.close()


def test_aiokafka_reads_and_commits_in_a_group(broker: BrokerProcess) -> None:
    from aiokafka import AIOKafkaConsumer

    async def read() -> list[int]:
        consumer = AIOKafkaConsumer(
            "numbers",
            bootstrap_servers=broker.bootstrap,
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            found: list[int] = []
            while len(found) < RECORDS:
                batches = await consumer.getmany(timeout_ms=1000)
                found += [int(r.value) for batch in batches.values() for r in batch]
            await consumer.commit()
            committed = [await consumer.committed(each) for each in consumer.assignment()]
            assert committed == [10] * PARTITIONS
            return found
        finally:
            await consumer.stop()

    assert sorted(asyncio.run(asyncio.wait_for(read(), 60))) == list(range(RECORDS))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_reads_and_commits_in_a_group(broker: BrokerProcess) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        "numbers",
        bootstrap_servers=broker.bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        found: list[int] = []

        def enough() -> bool:
            for batch in consumer.poll(timeout_ms=200).values():
                found.extend(int(record.value) for record in batch)
            return len(found) >= RECORDS

        wait_until(enough, "all records", 90)
        assert sorted(found) == list(range(RECORDS))
        consumer.commit()
        assert [consumer.committed(each) for each in consumer.assignment()] == [10] * PARTITIONS
    finally:
        consumer.close()

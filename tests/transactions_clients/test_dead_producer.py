"""A producer dies in a transaction: read_committed consumers wait until its timeout aborts it.

The lag of a group is measured to the log end offset, and the lag in librdkafka's statistics to the
last stable offset. The tests check that no consumer passes the open transaction before the abort
marker is in the log, and that all do after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.process.broker_process import wait_until
from harness.process.brokers import Brokers
from harness.raw.raw_client import RawClient, records_of
from millstream.records.batch import scan
from millstream.wire.messages.list_offsets import LATEST
from transactions_clients.stable import quiet_end, stable_offset

TIMEOUT_MS = 3000
UNSTUCK_SECONDS_MAX = 60.0
ABORT = b"\x00\x00\x00\x00"

#: Sends two records in a transaction, prints "sent", and waits to be killed.
_DEAD = """
import sys
from confluent_kafka import Producer
producer = Producer({
    "bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[2] + " dead",
    "transaction.timeout.ms": int(sys.argv[3]),
})
producer.init_transactions(30)
producer.begin_transaction()
for value in ("dead 1", "dead 2"):
    producer.produce(sys.argv[2], value, partition=0)
assert producer.flush(30) == 0
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def topic(brokers: Brokers) -> str:
    """Create a topic for the test; transactional ids and the group are named after it."""
    name = f"events-{uuid4().hex}"
    brokers.create_topic(name)
    return name


def die_in_a_transaction(brokers: Brokers, topic: str) -> None:
    command = [sys.executable, "-c", _DEAD, brokers.bootstrap, topic, str(TIMEOUT_MS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.kill()


def commit(brokers: Brokers, topic: str, name: str, *values: str) -> None:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "transactional.id": f"{topic} {name}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


class Reader:
    """Reads committed records from the start, and stores the lag that librdkafka reports."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._topic = topic
        self.values: list[str] = []
        self.statistics: dict[str, Any] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers.bootstrap,
                "group.id": topic,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "fetch.wait.max.ms": 50,
                "statistics.interval.ms": 50,
                "stats_cb": self._keep,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _keep(self, text: str) -> None:
        statistics = json.loads(text)["topics"].get(self._topic, {})
        self.statistics = statistics.get("partitions", {}).get("0", {})

    def poll(self) -> list[str]:
        message = self._consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(message.value().decode())
        return self.values

    def commit(self, offset: int) -> None:
        places = [TopicPartition(self._topic, 0, offset)]
        self._consumer.commit(offsets=places, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(brokers: Brokers, topic: str) -> Iterator[Reader]:
    made = Reader(brokers, topic)
    yield made
    made.close()


def abort_time_ms(client: RawClient, topic: str) -> int | None:
    """Return the time of the first abort marker; None without one."""
    data = client.fetch(topic, 0).records or b""
    for position, header in scan(data):
        if header.is_control:
            (marker,) = records_of(data[position : position + header.size])
            if marker.key == ABORT:
                return int(marker.timestamp)
    return None


@pytest.mark.parametrize("is_killed", [False, True], ids=["broker lives", "broker is killed"])
def test_readers_continue_once_the_timeout_aborts_the_transaction(
    brokers: Brokers, topic: str, reader: Reader, is_killed: bool
) -> None:
    commit(brokers, topic, "before", "before")
    die_in_a_transaction(brokers, topic)
    commit(brokers, topic, "after", "after")
    if is_killed:
        leader = brokers.leader_id(topic)
        brokers.kill(leader)
        brokers.start(leader)
        brokers.wait_until_in_sync(topic)
    with brokers.leader(topic) as client:
        (first, *_) = [r for r in client.read_all(topic) if r.value == b"dead 1"]

        def is_past_the_transaction() -> bool:
            had_passed = "after" in reader.poll() or stable_offset(client, topic) > first.offset
            assert not had_passed or abort_time_ms(client, topic) is not None
            return "after" in reader.values

        wait_until(
            is_past_the_transaction, "the record after the aborted transaction", UNSTUCK_SECONDS_MAX
        )
        assert reader.values == ["before", "after"]
        aborted_ms = abort_time_ms(client, topic)
        assert aborted_ms is not None
        assert aborted_ms - first.timestamp >= TIMEOUT_MS
        assert stable_offset(client, topic) == client.list_offset(topic, LATEST).offset


def test_a_new_producer_with_the_same_id_unblocks_readers_before_the_timeout(
    brokers: Brokers, topic: str, reader: Reader
) -> None:
    die_in_a_transaction(brokers, topic)
    commit(brokers, topic, "dead", "risen")
    wait_until(
        lambda: reader.poll() == ["risen"], "the record of the new producer", UNSTUCK_SECONDS_MAX
    )


def describe_group(brokers: Brokers, group_id: str) -> dict[str, Any]:
    program = str(Path(sys.executable).with_name("millstream"))
    command = [program, "group", "describe", group_id, "--json", "-b", brokers.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_lag_with_an_open_transaction(brokers: Brokers, topic: str, reader: Reader) -> None:
    commit(brokers, topic, "before", "before 1", "before 2")
    die_in_a_transaction(brokers, topic)
    commit(brokers, topic, "after", "after")
    with brokers.leader(topic) as client:
        wait_until(lambda: len(reader.poll()) == 2, "the committed records", UNSTUCK_SECONDS_MAX)
        reader.commit(1)

        def is_told_the_lag() -> bool:
            # The response to the last commit may precede its marker.
            end = client.list_offset(topic, LATEST).offset
            return lag_of(brokers, topic) == end - 1

        wait_until(is_told_the_lag, "the lag behind the log end offset", UNSTUCK_SECONDS_MAX)

        def has_the_stable_offset() -> bool:
            stable = stable_offset(client, topic)
            reader.poll()
            statistics = reader.statistics
            return (
                bool(statistics)
                and statistics["ls_offset"] == stable
                and statistics["consumer_lag"] == stable - 1
            )

        wait_until(has_the_stable_offset, "librdkafka's own lag", UNSTUCK_SECONDS_MAX)
        wait_until(lambda: "after" in reader.poll(), "the last record", UNSTUCK_SECONDS_MAX)
        end = quiet_end(brokers, topic, 0)
        reader.commit(end)
        assert lag_of(brokers, topic) == 0


def lag_of(brokers: Brokers, group_id: str) -> int:
    (row,) = describe_group(brokers, group_id)["partitions"]
    return int(row["lag"])

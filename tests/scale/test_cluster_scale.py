"""Very many partitions on three brokers: all are led, in sync and usable after a restart of all
brokers, and after a broker is killed.

The run prints the times of creation, start and election, memory and idle CPU.
SCALE_CLUSTER_PARTITIONS sets its size; each partition has three replicas.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.etcd_process import EtcdCluster, require_etcd
from harness.raw.raw_client import RawClient, values_batch
from harness.seed import report
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.elect_leaders import ElectLeadersRequest
from millstream.wire.messages.metadata import MetadataRequest

PARTITIONS = int(os.environ.get("SCALE_CLUSTER_PARTITIONS", "10000"))
PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 10
REPLICAS = 3
SAMPLE = 200
IDLE_SECONDS = 20.0
SECONDS_MAX = 600.0
#: For one broker: each has 10,000 replicas.
MEMORY_BYTES_MAX = 1 << 29


class Row(NamedTuple):
    topic: str
    partition: int
    leader: int
    isr: int


def note(what: str, value: str) -> None:
    report(f"{what:<44}{value:>14}")


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    note(what, f"{time.perf_counter() - begin:.1f} s")


@contextmanager
def client_of(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port, timeout_s=SECONDS_MAX) as client:
        yield client


def create_all(client: RawClient) -> None:
    names = [f"scale-{number}" for number in range(PARTITIONS // PARTITIONS_PER_TOPIC)]
    for begin in range(0, len(names), TOPICS_PER_REQUEST):
        wanted = [
            CreateTopicsRequest.Topic(
                name=name, num_partitions=PARTITIONS_PER_TOPIC, replication_factor=REPLICAS
            )
            for name in names[begin : begin + TOPICS_PER_REQUEST]
        ]
        response = client.call(CreateTopicsRequest(topics=wanted))
        assert {row.error_code for row in response.topics} == {0}


def rows_of(client: RawClient) -> list[Row]:
    response: Any = client.call(MetadataRequest(topics=None))
    return [
        Row(topic.name, row.partition_index, row.leader_id, len(row.isr_nodes))
        for topic in response.topics
        for row in topic.partitions
    ]


def wait_until_whole(client: RawClient) -> None:
    def is_whole() -> bool:
        rows = rows_of(client)
        return len(rows) == PARTITIONS and all(
            row.leader > 0 and row.isr == REPLICAS for row in rows
        )

    wait_until(is_whole, "all partitions to be led and in sync", SECONDS_MAX)


def use_sample(brokers: dict[int, BrokerProcess], rows: list[Row], value: bytes) -> None:
    """Produce to some partitions with acks=all."""
    with ExitStack() as stack:
        clients = {
            number: stack.enter_context(client_of(broker))
            for number, broker in brokers.items()
            if broker.is_alive()
        }
        for row in random.Random(3).sample(rows, min(SAMPLE, len(rows))):
            response = clients[row.leader].produce(row.topic, values_batch(value), row.partition)
            assert response.error_code == 0, (row, response)
            found = clients[row.leader].read_all(row.topic, row.partition)
            assert found[-1].value == value


def cpu_seconds(brokers: dict[int, BrokerProcess]) -> float:
    times = [psutil.Process(broker.pid).cpu_times() for broker in brokers.values()]
    return sum(each.user + each.system for each in times)


def note_idle(brokers: dict[int, BrokerProcess]) -> None:
    before = cpu_seconds(brokers)
    time.sleep(IDLE_SECONDS)  # the measurement includes the loop body
    share = (cpu_seconds(brokers) - before) / IDLE_SECONDS * 100
    note("idle CPU of all brokers", f"{share:.1f} %")
    for number, broker in brokers.items():
        note(f"memory of broker {number}", f"{broker.rss_bytes() / 2**20:.0f} MiB")
        assert broker.rss_bytes() < MEMORY_BYTES_MAX


def walk_through(brokers: dict[int, BrokerProcess]) -> None:
    start_all(brokers)
    with client_of(brokers[1]) as client:
        with timed(f"creating {PARTITIONS} partitions"):
            create_all(client)
            wait_until_whole(client)
        use_sample(brokers, rows_of(client), b"created")
    with timed("clean stop of all brokers"):
        for broker in brokers.values():
            broker.stop(seconds_max=SECONDS_MAX)
    with timed("start of all brokers until in sync"):
        start_all(brokers)
        with client_of(brokers[1]) as client:
            wait_until_whole(client)
    note_idle(brokers)
    with client_of(brokers[2]) as client:
        spread(client)
        lose_one(brokers, client)
        with timed("return of the broker until in sync"):
            brokers[1].start()
            wait_until_whole(client)
        use_sample(brokers, rows_of(client), b"returned")


def start_all(brokers: dict[int, BrokerProcess]) -> None:
    for broker in brokers.values():
        broker.start(wait=False)
    for broker in brokers.values():
        broker.wait_until_ready()


def spread(client: RawClient) -> None:
    """Elect the preferred replicas: after a start the broker that stopped last leads."""
    with timed("election of the preferred leaders"):
        response = client.call(ElectLeadersRequest(election_type=0, topic_partitions=None))
        assert response.error_code == 0
        wait_until(
            lambda: sum(row.leader == 1 for row in rows_of(client)) >= PARTITIONS // 4,
            "broker 1 to lead its share",
            SECONDS_MAX,
        )


def lose_one(brokers: dict[int, BrokerProcess], client: RawClient) -> None:
    led = [(row.topic, row.partition) for row in rows_of(client) if row.leader == 1]
    with timed(f"broker killed, its {len(led)} partitions led"):
        brokers[1].kill()
        wait_until(
            lambda: all(row.leader in (2, 3) for row in rows_of(client)),
            "others to lead what the killed broker led",
            SECONDS_MAX,
        )
    moved = set(led)
    rows = [row for row in rows_of(client) if (row.topic, row.partition) in moved]
    use_sample(brokers, rows, b"moved")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_partitions_on_three_brokers(tmp_path: Path) -> None:
    require_etcd()
    with EtcdCluster(tmp_path) as etcd:
        brokers: dict[int, BrokerProcess] = {}
        for number in range(1, REPLICAS + 1):
            folder = tmp_path / f"broker-{number}"
            folder.mkdir()
            settings = {"node.id": number, "metadata.store": etcd.address()}
            brokers[number] = BrokerProcess(folder, settings, start_seconds_max=SECONDS_MAX)
        try:
            walk_through(brokers)
            for broker in brokers.values():
                assert "Traceback" not in broker.log_text()
        finally:
            for broker in brokers.values():
                broker.kill()

"""Several whole brokers in one process: real servers, sockets and folders, one store in memory.

They run on an event loop in a thread, so that a test connects to them like any client:

    with ServerSet(tmp_path) as brokers, brokers.client(2) as client:
        client.create_topic("t")

The test may act as controller (`lead`). The name of a setting has underscores instead of dots.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from harness.in_process.fault_supervisor import FaultSupervisor
from harness.in_process.log_home import UnsyncedDisk
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Services
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.server import Server
from millstream.coordination.key_partition import partition_of
from millstream.env.clock import SystemClock
from millstream.env.network import SystemNetwork
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.partition_change import PartitionUpdate, replace_partition
from millstream.metadata.store.memory import MemoryStore
from millstream.model.durability import REPLICAS_MAX
from millstream.model.error import BrokerError

T = TypeVar("T")
HOST: Final = "127.0.0.1"
CALL_S_MAX: Final = 60.0
SETTINGS: Final = {
    "listeners": f"PLAINTEXT://{HOST}:0",
    "http.listen": "",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "20",
    "group.initial.rebalance.delay.ms": "0",
    "auto.leader.rebalance.enable": "false",
    "log.cleaner.enable": "false",
    # Long timeouts: a slow machine must not expire a session.
    "broker.session.timeout.ms": "60000",
}


class _Server(Server):
    services: Services


class ServerSet:
    """`count` brokers, numbered from 1.

    Three brokers have the defaults of a cluster: three replicas per topic, two of them in sync.
    """

    #: The class of the brokers.
    server_class: type[_Server] = _Server

    def __init__(self, folder: Path, count: int = 3, **settings: str) -> None:
        self._folder = folder
        given = {name.replace("_", "."): value for name, value in settings.items()}
        # No broker waits for a third one that will not come.
        alone = {"cluster.settle.ms": "0"} if count < REPLICAS_MAX else {}
        self._settings = {**SETTINGS, **alone, **given}
        self._ids = range(1, count + 1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.servers: dict[int, _Server] = {}
        #: The supervisors of background tasks by broker, through which tests inject errors.
        self.supervisors: dict[int, FaultSupervisor] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self._store = self.run(self._make_store())
        for node_id in self._ids:
            self.start(node_id)
        wait_until(lambda: self.ask(self._all_know_each_other), "all brokers to know each other")
        return self

    def _all_know_each_other(self) -> bool:
        images = [server.services.catalog.image for server in self.servers.values()]
        return all(len(image.brokers) == len(self.servers) for image in images)

    def __exit__(self, *_: object) -> None:
        for node_id in list(self.servers):
            self.stop(node_id)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S_MAX)
        self._loop.close()

    async def _make_store(self) -> MemoryStore:
        return MemoryStore(SystemClock())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S_MAX)

    def ask(self, question: Callable[[], T]) -> T:
        """Call a function on the brokers' loop."""

        async def look() -> T:
            return question()

        return self.run(look())

    def start(self, node_id: int) -> None:
        flags = {
            "node.id": str(node_id),
            "log.dir": str(self._folder / f"broker-{node_id}"),
            **self._settings,
        }

        supervisor = self.supervisors[node_id] = FaultSupervisor()

        async def begin() -> _Server:
            environment = Environment(
                SystemClock(),
                UnsyncedDisk(),
                SystemNetwork(),
                random.Random(node_id),
                self._store.connect(),
                has_threads=False,
                supervisor=supervisor,
            )
            server = self.server_class(BrokerConfig.load(flags=flags), environment)
            await server.start()
            return server

        self.servers[node_id] = self.run(begin())

    def stop(self, node_id: int) -> None:
        """Stop a broker cleanly."""
        self.run(self.servers.pop(node_id).stop())

    def services(self, node_id: int) -> Services:
        return self.servers[node_id].services

    def client(self, node_id: int, client_id: str = "raw") -> RawClient:
        port = self.servers[node_id].ports["PLAINTEXT"]
        return RawClient(HOST, port, client_id=client_id)

    def address(self, node_id: int) -> str:
        return f"{HOST}:{self.servers[node_id].ports['PLAINTEXT']}"

    # Metadata

    def _topic(self, name: str) -> TopicRecord | None:
        return next(iter(self.servers.values())).services.catalog.image.topic(name)

    def record(self, topic: str, number: int = 0) -> PartitionRecord:
        found = self.ask(lambda: self._topic(topic))
        assert found is not None
        return found.partitions[number]

    def place(self, topic: str, key: str) -> int:
        """Return the partition of an internal topic for a key."""
        found = self.ask(lambda: self._topic(topic))
        assert found is not None
        return partition_of(key, len(found.partitions))

    def lead(self, topic: str, number: int, leader: int) -> None:
        """Make a broker the leader of a partition, and return when all brokers know."""
        wait_until(
            lambda: leader in self.record(topic, number).isr, f"broker {leader} to be in sync"
        )
        wait_until(lambda: self.run(self._lead(topic, number, leader)), f"the election of {leader}")
        wait_until(
            lambda: self.ask(lambda: self._all_follow(topic, number, leader)),
            f"all brokers to see leader {leader}",
        )

    async def _lead(self, topic: str, number: int, leader: int) -> bool:
        catalog = next(iter(self.servers.values())).services.catalog
        found = catalog.image.topic(topic)
        assert found is not None
        record = found.partitions[number]
        if record.leader == leader:
            return True
        changed = msgspec.structs.replace(
            record, leader=leader, leader_epoch=record.leader_epoch + 1
        )
        try:
            update = PartitionUpdate(found.topic_id, number, changed, record.partition_epoch)
            await replace_partition(catalog, update)
        except BrokerError:
            return False
        return True

    def _all_follow(self, topic: str, number: int, leader: int) -> bool:
        return all(
            (record := server.services.catalog.image.partition(topic, number)) is not None
            and record.leader == leader
            for server in self.servers.values()
        )

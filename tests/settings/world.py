"""A small cluster to observe the effect of a setting: whole brokers, and clients.

`World` runs on virtual time, so an hour costs nothing. `RealWorld` has sockets, files, threads and
HTTP. A scenario starts brokers and topics through the world, which gives them the value of the
setting under test: at the start, or at run time once the brokers have started.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from harness.raw.raw_client import PRODUCE_BY_NAME, fetch_request, produce_request, response_class
from millstream.broker.config.broker_config import BrokerConfig, definition_of
from millstream.broker.config.config_source import variable_of
from millstream.broker.context import Services
from millstream.broker.lifecycle.environment import Environment, system_environment
from millstream.broker.server import Server
from millstream.env.disk import SystemDisk
from millstream.log.compaction.cleaner import Cleaner
from millstream.log.log import PartitionLog
from millstream.metadata.store.memory import MemoryStore
from millstream.model.error import ErrorCode
from millstream.model.topic import TopicPartition
from millstream.records.builder import build_batch
from millstream.records.record import Record
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from sim.clock import SimClock
from sim.disk import SimDisk, Volume
from sim.loop import Process, VirtualLoop
from sim.network import Wire
from sim.store import SimLink

PORT: Final = 9092
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
_CALL_S_MAX: Final = 3600.0
_WAIT_S_MAX: Final = 600.0
#: Settings of every scenario that does not set them itself.
SETTINGS: Final = {
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": "60000",
    "cluster.settle.ms": "0",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "http.listen": "",
    "log.cleaner.enable": "false",
    "log.initial.task.delay.ms": "0",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.backoff.ms": "100",
    "transaction.state.log.num.partitions": "1",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """The value of the setting under test, and where it is set."""

    #: Set at the start of brokers, or when a topic is created.
    broker: Mapping[str, str] = dataclasses.field(default_factory=dict)
    topic: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Set at run time, for all brokers, for each broker, and for a topic.
    broker_change: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own_change: Mapping[str, str] = dataclasses.field(default_factory=dict)
    topic_change: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Whether brokers are restarted after that.
    restarts: bool = False
    #: Overrides of a group.
    group_change: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: A client metrics subscription.
    subscription: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ObservedServer(Server):
    """A broker whose parts a scenario can inspect."""

    services: Services

    async def _start_http(self, config: BrokerConfig) -> None:
        if self.has_http:
            await super()._start_http(config)

    #: On virtual time there is no HTTP server, but everything that it exports runs.
    has_http = False

    async def metrics(self) -> str:
        return (await self._metrics.render()).decode()

    @property
    def http_port(self) -> int:
        return 0 if self._http is None else self._http.port

    @property
    def cleaner(self) -> Cleaner:
        found = self.services.replicas.on_drop.__self__  # type: ignore[attr-defined]
        assert isinstance(found, Cleaner)
        return found


class SlowLink(SimLink):
    """A link to a metadata store, with a configurable delay."""

    slow_s = 0.0

    async def request(self) -> None:
        await super().request()
        if self.slow_s:
            await asyncio.sleep(self.slow_s)


def batch(
    *values: bytes, key: bytes | None = None, timestamp: int = -1, **fields: Any
) -> bytearray:
    """Return a batch of records; `fields` are passed to `build_batch`."""
    records = [Record(i, timestamp, key, value, []) for i, value in enumerate(values)]
    return build_batch(records, **fields)


def load_config(settings: Mapping[str, str]) -> BrokerConfig:
    """Return the config of settings. Secrets are given as variables, as a command must not have
    them."""
    secret = {name for name in settings if (found := definition_of(name)) and found.is_sensitive}
    return BrokerConfig.load(
        flags={name: text for name, text in settings.items() if name not in secret},
        environment={variable_of(name): settings[name] for name in sorted(secret)},
    )


class World:
    """A cluster on virtual time."""

    has_http = False

    def __init__(self, given: Given) -> None:
        self.given = given
        self.loop = VirtualLoop()
        self.random = Random(1)
        self.wire = Wire(self.loop, self.random)
        self.clock = SimClock(self.loop)
        self.outside = self.loop.process("outside")
        self.store = MemoryStore(self.clock)
        self.volumes: dict[int, Volume] = {}
        self.processes: dict[int, Process] = {}
        self.servers: dict[int, ObservedServer] = {}
        self._peers: dict[int, Peer] = {}
        self._dead: list[Process] = []
        self.links: dict[int, SlowLink] = {}

    def run(self, scenario: Callable[[Any], Any]) -> Any:
        """Return the observation of a scenario. Raises if a task of the brokers failed
        unnoticed."""
        asyncio.set_event_loop(self.loop)
        try:
            observed = self.loop.run_until_complete(self.outside.spawn(scenario(self)))
            assert not self.loop.errors, self.loop.errors
            return observed
        finally:
            self._end()
            asyncio.set_event_loop(None)

    def _end(self) -> None:
        """End all tasks, including the tasks of killed processes."""
        for process in self._dead:
            process.is_dead = False
            self.loop.halted -= 1
            process.hold()
            process.release()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    # Brokers

    def address(self, node_id: int) -> tuple[str, int]:
        return f"broker-{node_id}", PORT

    def flags(self, node_id: int, settings: Mapping[str, str]) -> dict[str, str]:
        host, port = self.address(node_id)
        own = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{host}:{port}",
            "log.dir": "/data",
        }
        return {**SETTINGS, **own, **settings, **self.given.broker}

    def environment(self, node_id: int, config: BrokerConfig) -> Environment:
        if node_id not in self.volumes:
            volume = self.volumes[node_id] = Volume(self.clock, self.random)
            volume.prepare("data")
        host, _ = self.address(node_id)
        return Environment(
            self.clock,
            SimDisk(self.volumes[node_id], self.processes[node_id]),
            self.wire.network(host, self.processes[node_id]),
            Random(f"broker {node_id}"),
            self.store.connect(self.links.setdefault(node_id, SlowLink(self.random))),
            has_threads=False,
        )

    async def broker(self, **settings: str) -> ObservedServer:
        """Start broker 1."""
        await self.brokers(1, **settings)
        return self.servers[1]

    async def brokers(self, count: int, **settings: str) -> None:
        """Start brokers 1 to `count`, then apply the run-time changes."""
        for node_id in range(1, count + 1):
            await self.start(node_id, **settings)
        await self.until(self._all_know_each_other, "all brokers to know each other")
        await self.change(BROKER, "", self.given.broker_change)
        for node_id in self.servers:
            await self.change(BROKER, str(node_id), self.given.own_change, node_id)
        if self.given.restarts:
            for node_id in list(self.servers):
                await self.stop(node_id)
                await self.start(node_id, **settings)
            await self.until(self._all_know_each_other, "all brokers to know each other")

    def _all_know_each_other(self) -> bool:
        count = len(self.servers)
        return all(
            len(each.services.catalog.image.brokers) == count for each in self.servers.values()
        )

    async def start(self, node_id: int, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.processes[node_id] = self.loop.process(f"broker-{node_id}")
        await self.processes[node_id].spawn(self._start(node_id, named))

    async def _start(self, node_id: int, settings: Mapping[str, str]) -> None:
        config = load_config(self.flags(node_id, settings))
        server = ObservedServer(config, self.environment(node_id, config))
        server.has_http = self.has_http
        await server.start()
        self.servers[node_id] = server

    async def stop(self, node_id: int = 1) -> None:
        """Shut a broker down as an operator does."""
        server = self.servers.pop(node_id)
        self._peers.pop(node_id, None)
        await self.processes[node_id].spawn(server.stop())

    async def kill(self, node_id: int = 1) -> None:
        """Kill a broker: its files stay, and its lease in the metadata store expires."""
        self.servers.pop(node_id)
        self._peers.pop(node_id, None)
        process = self.processes[node_id]
        process.kill()
        self._dead.append(process)
        self.wire.end_process(process)

    def services(self, node_id: int = 1) -> Services:
        return self.servers[node_id].services

    def log(self, topic: str = "t", partition: int = 0, node_id: int = 1) -> PartitionLog:
        found = self.services(node_id).directory.get(TopicPartition(topic, partition))
        assert found is not None
        return found

    def files(self, folder: str = "t-0", node_id: int = 1) -> list[str]:
        return self.services(node_id).directory.storage.disk.listdir(Path("/data") / folder)

    # Requests

    async def peer(self, node_id: int = 1) -> Peer:
        peer = self._peers.get(node_id)
        if peer is None or peer.closed:
            network = self.wire.network("client", self.outside)
            peer = await Peer.connect(network, *self.address(node_id), "client", _CALL_S_MAX)
            self._peers[node_id] = peer
        return peer

    async def call(self, request: Any, version: int | None = None, node_id: int = 1) -> Any:
        """Return the response to a request."""
        kind = response_class(type(request))
        if version is None:
            version = request.versions[1]
        return await (await self.peer(node_id)).call(request, version, kind, _CALL_S_MAX)

    async def change(
        self, kind: int, name: str, values: Mapping[str, str], node_id: int = 1
    ) -> int:
        """Change settings at run time; return the error code."""
        if not values:
            return 0
        rows = IncrementalAlterConfigsRequest.Resource
        configs = [
            rows.Config(name=key, config_operation=0, value=text) for key, text in values.items()
        ]
        resource = rows(resource_type=kind, resource_name=name, configs=configs)
        response = await self.call(
            IncrementalAlterConfigsRequest(resources=[resource]), node_id=node_id
        )
        await asyncio.sleep(0.05)
        return int(response.responses[0].error_code)

    async def topic(
        self,
        name: str = "t",
        partitions: int = 1,
        replicas: list[int] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. `replicas` are the replicas of each partition."""
        rows = CreateTopicsRequest.Topic
        given = {**(configs or {}), **self.given.topic}
        assignments = [
            rows.Assignment(partition_index=number, broker_ids=replicas or [1])
            for number in range(partitions)
        ]
        topic = rows(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[rows.Config(name=key, value=text) for key, text in given.items()],
        )
        response = await self.call(CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == 0, response.topics[0]
        await asyncio.sleep(0.05)
        code = await self.change(TOPIC, name, self.given.topic_change)
        assert code == 0, code

    async def produce(
        self,
        data: bytes | bytearray,
        topic: str = "t",
        partition: int = 0,
        node_id: int = 1,
        acks: int = -1,
        timeout_ms: int = 1000,
    ) -> Any:
        """Produce a batch; return its row of the response."""
        request = produce_request(topic, data, partition, acks=acks)
        request.timeout_ms = timeout_ms
        response = await self.call(request, PRODUCE_BY_NAME, node_id)
        return response.responses[0].partition_responses[0]

    async def fill(self, count: int, size: int = 100, topic: str = "t") -> None:
        """Produce batches of one record each, one per second."""
        for _ in range(count):
            row = await self.produce(self.now_batch(bytes(size)), topic)
            assert row.error_code == 0, ErrorCode(row.error_code)
            await asyncio.sleep(1)

    def now_batch(self, *values: bytes, **fields: Any) -> bytearray:
        return batch(*values, timestamp=self.clock.wall_ms(), **fields)

    async def fetch(self, offset: int, topic: str = "t", node_id: int = 1, **options: Any) -> Any:
        """Fetch from partition 0; return its row of the response."""
        options.setdefault("max_wait_ms", 0)
        request = fetch_request([(topic, 0, offset)], **options)
        response = await self.call(request, 12, node_id)
        return response.responses[0].partitions[0]

    async def coordinator(self, key: str = "g", key_type: int = 0) -> None:
        """Return once a group or a transactional id has a coordinator."""
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        while (await self.call(request)).coordinators[0].error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def line(self) -> Line:
        """Return a new connection from another host."""
        return await connect(self.wire.network("other", self.outside), self.address(1))

    async def is_closed_after(self, seconds: float, data: bytes = b"") -> bool:
        """Return whether a connection on which only `data` is sent is closed within `seconds`."""
        line = await self.line()
        line.transport.write(data)
        await asyncio.sleep(seconds)
        return line.is_lost

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(_WAIT_S_MAX):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class Line(asyncio.BufferedProtocol):
    """A connection that collects the bytes that it receives."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 16)
        self.received = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


async def connect(network: Any, address: tuple[str, int]) -> Line:
    line = Line()
    await network.connect(*address, lambda: line)
    return line


class RealWorld(World):
    """One broker on the system's clock, network and disk, with the SQLite store.

    `{folder}` in the value of a setting is replaced with the path of a temporary folder."""

    has_http = True

    def __init__(self, given: Given, folder: Path) -> None:
        super().__init__(given)
        self.folder = folder
        #: Replaces the system's disk.
        self.disk: SystemDisk | None = None

    def run(self, scenario: Callable[[Any], Any]) -> Any:
        async def body() -> Any:
            try:
                return await scenario(self)
            finally:
                for node_id in list(self.servers):
                    await self.stop(node_id)

        self.loop.close()
        return asyncio.run(body())

    def address(self, node_id: int) -> tuple[str, int]:
        server = self.servers.get(node_id)
        return "127.0.0.1", 0 if server is None else next(iter(server.ports.values()))

    def flags(self, node_id: int, settings: Mapping[str, str]) -> dict[str, str]:
        folder = {"log.dir": str(self.folder / str(node_id))}
        found = {**super().flags(node_id, {}), **folder, **settings, **self.given.broker}
        return {name: text.replace("{folder}", str(self.folder)) for name, text in found.items()}

    def environment(self, node_id: int, config: BrokerConfig) -> Environment:
        environment = system_environment(config)
        if self.disk is None:
            return environment
        return dataclasses.replace(environment, disk=self.disk)

    async def start(self, node_id: int, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        await self._start(node_id, named)

    async def change(
        self, kind: int, name: str, values: Mapping[str, str], node_id: int = 1
    ) -> int:
        placed = {key: text.replace("{folder}", str(self.folder)) for key, text in values.items()}
        return await super().change(kind, name, placed, node_id)

    async def stop(self, node_id: int = 1) -> None:
        self._peers.pop(node_id, None)
        await self.servers.pop(node_id).stop()

    async def peer(self, node_id: int = 1) -> Peer:
        peer = self._peers.get(node_id)
        if peer is None or peer.closed:
            network = self.servers[node_id]._runtime.environment.network
            peer = await Peer.connect(network, *self.address(node_id), "client", _CALL_S_MAX)
            self._peers[node_id] = peer
        return peer

    def now_batch(self, *values: bytes, **fields: Any) -> bytearray:
        return batch(*values, timestamp=self.services().clock.wall_ms(), **fields)


__all__ = ["Given", "Line", "PeerError", "RealWorld", "World", "batch", "connect"]

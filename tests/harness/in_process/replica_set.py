"""The replication of several brokers in one process: real logs and sockets, one store in memory.

Each `Node` has the parts of a broker for Produce and Fetch, without controller and groups. The test
acts as controller (`elect`). Everything runs on the test's own loop:

    async with ReplicaSet(tmp_path) as brokers:
        await brokers.create("t", [1, 2, 3])
        await brokers.produce("t", b"a")
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec

from harness.in_process.log_home import UnsyncedDisk, read_values
from harness.raw.raw_client import fetch_request, produce_request, values_batch
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Services
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.handlers import api_table
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.session import Session
from millstream.env.clock import SystemClock
from millstream.env.network import SystemNetwork
from millstream.env.supervisor import Supervisor
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flush.flusher import Flusher
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import (
    BrokerRecord,
    Endpoint,
    PartitionRecord,
    TopicRecord,
    broker_key,
)
from millstream.metadata.image import ClusterImage, ImageDelta, difference
from millstream.metadata.joint_update import JointUpdates
from millstream.metadata.partition_change import PartitionUpdate, replace_partition
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.store.port import Delete
from millstream.metadata.topic_change import NewTopic
from millstream.model.error import BrokerError
from millstream.net.connection import Connection
from millstream.net.gate import Gate
from millstream.net.listener import Acceptor
from millstream.replication.partition import Partition
from millstream.replication.partition_port import Counters, Latency
from millstream.replication.peer import Peer
from millstream.replication.replicas import Replicas
from millstream.replication.replicator import Replicator
from millstream.security.audit_event import NoAuditTrail
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.wire.messages.fetch import FetchResponse
from millstream.wire.messages.produce import ProduceResponse

HOST = "127.0.0.1"
LISTENER = "PLAINTEXT"
#: Short times for tests of lag and retries; no test asserts them.
SETTINGS = {
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "20",
    "replica.lag.time.max.ms": "30000",
}
WAIT_S_MAX = 15.0


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once `condition()` is true; fail with `what` after `WAIT_S_MAX`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S_MAX
    while not condition():
        assert loop.time() < deadline, f"waited {WAIT_S_MAX} s for {what}"
        await asyncio.sleep(0.005)


async def _no_checkpoint() -> None:
    """Write no checkpoint: a clean close writes one, and no test cuts the power."""


class Node:
    """One broker, which may be stopped and started over the same folder."""

    def __init__(self, folder: Path, node_id: int, store: MemoryStore, settings: Any) -> None:
        self.id = node_id
        self._store = store
        flags = {"node.id": str(node_id), "log.dir": str(folder), **SETTINGS, **settings}
        self.config = BrokerConfig.load(flags=flags)
        self._metrics = Metrics(topic_labels_max=10, partition_labels_max=10)
        self._tasks: set[asyncio.Task[None]] = set()
        self.network = SystemNetwork()
        self.is_running = False
        self.catalog: Catalog
        self.directory: LogDirectory
        self.replicas: Replicas
        self.replicator: Replicator
        self.supervisor = Supervisor()
        self._unregistered = ClusterImage()

    async def start(self) -> None:
        clock = SystemClock()
        self.directory = LogDirectory.open(
            self.config.log.data_dir, UnsyncedDisk(), clock, random.Random(self.id)
        )
        self._flusher = Flusher(is_threaded=False)
        self._connection = self._store.connect()
        self.catalog = await Catalog.open(
            self._connection,
            supervisor=self.supervisor,
            random=random.Random(self.id),
            topic_defaults=self.config.topic_defaults(),
        )
        self.replicas = Replicas(
            self.id,
            self.directory,
            self.config.topic_defaults(),
            self._counters,
            self._flusher,
            flushes_before_ack=self.config.log.log_flush_before_ack,
        )
        if not self.directory.was_clean:
            self.replicas.open_logs(self.catalog.image)
            self.directory.recover()
        self.replicas.apply_delta(
            self.catalog.image, difference(ClusterImage(), self.catalog.image)
        )
        self.replicator = Replicator(
            self.id,
            self.replicas,
            JointUpdates(self.catalog, self.supervisor).update,
            options.replicator_options(self.config),
            clock=clock,
            network=self.network,
            random=random.Random(self.id),
            supervisor=self.supervisor,
        )
        self.catalog.subscribe(self._apply_delta)
        await self._listen(clock)
        self.replicator.start(self.catalog.image)
        await self._acceptor.start_accepting()
        self.is_running = True

    async def _listen(self, clock: SystemClock) -> None:
        services = SimpleNamespace(
            authorizer=None,
            audit=NoAuditTrail(),
            authentication=None,
            quotas=None,
            config=self.config,
            clock=clock,
            metrics=self._metrics,
            catalog=self.catalog,
            replicas=self.replicas,
            replicator=self.replicator,
            apis=api_table(self._metrics),
            checkpoint=_no_checkpoint,
            fetch_sessions=FetchSessions(10, clock, random.Random(self.id)),
            check_lease=lambda: None,
            failures=self.replicas.failures,
        )
        gate = Gate(options.limits(self.config))
        self._acceptor = Acceptor(self.network, clock, gate)

        def make_session(connection: Connection) -> Session:
            return Session(
                connection, cast("Services", services), LISTENER, gate.limits, self._tasks
            )

        _, self.port = await self._acceptor.bind(HOST, 0, make_session)
        await self.register()

    async def register(self) -> None:
        """Register in the metadata with a new incarnation."""
        incarnation = f"{self._store.revision}"
        endpoints = (Endpoint(LISTENER, HOST, self.port),)
        rack = self.config.cluster.broker_rack
        record = BrokerRecord(
            node_id=self.id, endpoints=endpoints, rack=rack, incarnation=incarnation
        )
        await self.leave()
        await self.catalog.register_broker(record)

    async def leave(self) -> None:
        outcome = self._store.transact([], [Delete(broker_key(self.id))])
        await self.catalog.reached(outcome.revision)

    def _apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        self.replicas.apply_delta(image, delta)
        self.replicator.apply_delta(image, delta)

    def _counters(self, topic: str, partition: int) -> tuple[Counters, Latency]:
        return self._metrics.topic(topic), self._metrics.produce_ack(topic, partition)

    async def stop(self, *, clean: bool = True) -> None:
        """Stop. If unclean, as if killed: the metadata show the broker until it starts again."""
        self.is_running = False
        await self.replicator.stop()
        await self._acceptor.stop_accepting()
        self._acceptor.close_connections()
        await self._acceptor.drained(1.0)
        if clean:
            await self.leave()
        await self.catalog.close()
        await self._flusher.close()
        self.directory.close(clean, self.replicas.high_watermarks())

    def drop_connections(self) -> None:
        self._acceptor.abort_connections("dropped")

    async def isolate(self) -> None:
        """Cut the broker off from all others and from the metadata store."""
        await self.replicator.stop()
        await self._acceptor.stop_accepting()
        self._acceptor.close_connections()
        await self.catalog.close()

    def partition(self, topic: str, number: int = 0) -> Partition:
        return self.replicas.find(topic, number)


class ReplicaSet:
    """`count` nodes, numbered from 1. `settings` are broker settings for all of them."""

    def __init__(self, folder: Path, count: int = 3, **settings: str) -> None:
        self.store = MemoryStore(SystemClock())
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.nodes = {
            n: Node(folder / str(n), n, self.store, {**given, "broker.rack": f"rack-{n}"})
            for n in range(1, count + 1)
        }
        #: Consumers have their own connections, because responses keep the order of requests.
        self._peers: dict[tuple[int, str], Peer] = {}

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            await node.start()
        await until(
            lambda: all(
                len(node.catalog.image.brokers) == len(self.nodes) for node in self.nodes.values()
            ),
            "all brokers to know each other",
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self._peers.values():
            peer.close()
        for node in self.nodes.values():
            if node.is_running:
                await node.stop()

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    def drop_connections(self, node_id: int) -> None:
        """Close all connections to this broker."""
        self.nodes[node_id].drop_connections()
        for (to, _), peer in self._peers.items():
            if to == node_id:
                peer.close()

    @property
    def _any(self) -> Node:
        return next(node for node in self.nodes.values() if node.is_running)

    # Metadata

    async def create(self, topic: str, replicas: Sequence[int], **configs: object) -> None:
        """Create a topic with one partition on `replicas`, led by the first."""
        given = {name.replace("_", "."): str(value) for name, value in configs.items()}
        (made,) = await self._any.catalog.create_topics([NewTopic(topic, [replicas], given)])
        if isinstance(made, BrokerError):
            raise made
        await until(
            lambda: all(self.nodes[n].replicas.get(topic, 0) for n in replicas),
            f"{topic} on all brokers",
        )

    def record(self, topic: str) -> PartitionRecord:
        """Return the partition's record in the store."""
        return self._topic(topic).partitions[0]

    def _topic(self, topic: str) -> TopicRecord:
        found = self._any.catalog.image.topic(topic)
        assert found is not None
        return found

    async def elect(self, topic: str, leader: int, isr: Sequence[int] | None = None) -> None:
        """Elect a broker as leader in a new epoch, with this ISR."""
        await self.decide(
            topic,
            lambda record: msgspec.structs.replace(
                record,
                leader=leader,
                leader_epoch=record.leader_epoch + 1,
                isr=record.isr if isr is None else tuple(isr),
            ),
        )

    async def change(self, topic: str, **fields: Any) -> None:
        await self.decide(topic, lambda record: msgspec.structs.replace(record, **fields))

    async def decide(
        self, topic: str, decision: Callable[[PartitionRecord], PartitionRecord]
    ) -> None:
        """Change a partition's record; retry after a concurrent change."""
        while True:
            record = self.record(topic)
            try:
                await replace_partition(
                    self._any.catalog,
                    PartitionUpdate(
                        self._topic(topic).topic_id, 0, decision(record), record.partition_epoch
                    ),
                )
            except BrokerError:
                await asyncio.sleep(0)
            else:
                return

    # Clients

    async def peer(self, node_id: int, client_id: str) -> Peer:
        peer = self._peers.get((node_id, client_id))
        if peer is None or peer.closed:
            node = self.nodes[node_id]
            peer = await Peer.connect(node.network, HOST, node.port, client_id, 5.0)
            self._peers[node_id, client_id] = peer
        return peer

    async def send(
        self,
        topic: str,
        *values: bytes,
        acks: int = -1,
        to: int | None = None,
        partition: int = 0,
        timeout_ms: int = 10_000,
    ) -> asyncio.Future[ProduceResponse]:
        """Send a Produce request to the leader or another broker, without waiting."""
        request = produce_request(
            topic, values_batch(*values), partition, acks=acks, timeout_ms=timeout_ms
        )
        peer = await self.peer(self.record(topic).leader if to is None else to, "producer")
        return peer.send(request, 12, ProduceResponse)

    async def produce(
        self, topic: str, *values: bytes, **options: Any
    ) -> ProduceResponse.Topic.Partition:
        """Return the row of the response."""
        response = await (await self.send(topic, *values, **options))
        return response.responses[0].partition_responses[0]

    async def fetch(
        self, topic: str, offset: int, *, at: int, rack: str = "", **options: Any
    ) -> FetchResponse.Topic.Partition:
        """Fetch as a consumer from any broker, and return the row of the response."""
        request = fetch_request([(topic, 0, offset)], rack_id=rack, **options)
        peer = await self.peer(at, "consumer")
        response = await peer.call(request, 12, FetchResponse, 5.0)
        return response.responses[0].partitions[0]

    async def delete_records(
        self, topic: str, offset: int, *, timeout_ms: int = 10_000
    ) -> DeleteRecordsResponse.Topic.Partition:
        """Return the row of the response."""
        wanted = DeleteRecordsRequest.Topic.Partition(partition_index=0, offset=offset)
        row = DeleteRecordsRequest.Topic(name=topic, partitions=[wanted])
        request = DeleteRecordsRequest(topics=[row], timeout_ms=timeout_ms)
        peer = await self.peer(self.record(topic).leader, "admin")
        response = await peer.call(request, 2, DeleteRecordsResponse, timeout_ms / 1000 + 10)
        return response.topics[0].partitions[0]

    # Logs

    def values(self, topic: str, node_id: int) -> list[tuple[int, bytes | None]]:
        return read_values(self.nodes[node_id].partition(topic).log)

    async def until_equal(self, topic: str, node_ids: Sequence[int]) -> None:
        """Wait until these brokers have equal logs and high watermarks."""

        def is_equal() -> bool:
            partitions = [self.nodes[n].partition(topic) for n in node_ids]
            ends = {(p.log.log_end_offset, p.high_watermark) for p in partitions}
            return len(ends) == 1 and all(end == hw for end, hw in ends)

        await until(is_equal, f"{topic} to be equal on {node_ids}")
        first, *others = (self.values(topic, n) for n in node_ids)
        assert all(other == first for other in others)

    async def until_isr(self, topic: str, isr: set[int]) -> None:
        await until(
            lambda: set(self.record(topic).isr) == isr, f"the ISR of {topic} to become {isr}"
        )


def run(scenario: Awaitable[None]) -> None:
    """Run a test's coroutine on a loop of its own, with a deadline."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(main())

"""A cluster of broker processes on one etcd, whose brokers tests stop, kill and restart.

with ProcessCluster(tmp_path, count=3) as cluster:
    cluster[2].kill()
    cluster[2].start()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.etcd_process import EtcdCluster, require_etcd
from harness.raw.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

#: Brokers that start at the same time share the cores of the machine.
START_SECONDS_MAX = 120.0


class ProcessCluster:
    """Brokers 1 to `count`, started at the same time. They get the `racks` in turn."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        racks: tuple[str, ...] = (),
    ) -> None:
        require_etcd()
        self._etcd = EtcdCluster(folder)
        self._exit = ExitStack()
        self._brokers: dict[int, BrokerProcess] = {}
        for node_id in range(1, count + 1):
            home = folder / f"broker-{node_id}"
            home.mkdir()
            own: dict[str, object] = {"node.id": node_id, "metadata.store": self._etcd.address()}
            if racks:
                own["broker.rack"] = racks[(node_id - 1) % len(racks)]
            self._brokers[node_id] = BrokerProcess(
                home, {**(settings or {}), **own}, start_seconds_max=START_SECONDS_MAX
            )

    def __enter__(self) -> Self:
        with ExitStack() as started:
            started.enter_context(self._etcd)
            for broker in self:
                broker.start(wait=False)
                started.push(broker.__exit__)
            for broker in self:
                broker.wait_until_ready()
            self._exit = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.__exit__(kind, error, traceback)

    def __getitem__(self, node_id: int) -> BrokerProcess:
        return self._brokers[node_id]

    def __iter__(self) -> Iterator[BrokerProcess]:
        return iter(self._brokers.values())

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self)

    def stop(self) -> None:
        """Stop the running brokers at the same time; fail unless each exits with code 0."""
        running = [broker for broker in self if broker.is_alive()]
        for broker in running:
            broker.terminate()
        for broker in running:
            broker.stop()

    def client(self) -> RawClient:
        """Return a connection to a running broker."""
        broker = next(each for each in self if each.is_alive())
        return RawClient(broker.host, broker.port)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with a replica on each broker, once all brokers are registered."""
        topic = CreateTopicsRequest.Topic(
            name=name, num_partitions=partitions, replication_factor=len(self._brokers)
        )

        def is_created() -> bool:
            with self.client() as client:
                (row,) = client.call(CreateTopicsRequest(topics=[topic])).topics
            assert row.error_code in (ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR), row
            return bool(row.error_code == ErrorCode.NONE)

        wait_until(is_created, f"topic {name} to be created")

    def coordinator(self, key: str, key_type: int) -> int:
        """Return the node id of the coordinator of a group or a transactional id."""
        return coordinator_id(self.client, key, key_type)


def coordinator_id(connect: Callable[[], RawClient], key: str, key_type: int) -> int:
    """Return the node id of the coordinator of a group or a transactional id, once it has one."""
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    found: list[int] = []

    def is_found() -> bool:
        with connect() as client:
            (row,) = client.call(request).coordinators
        if row.error_code == ErrorCode.NONE:
            found.append(row.node_id)
        return bool(found)

    wait_until(is_found, f"the coordinator of {key}")
    return found[0]

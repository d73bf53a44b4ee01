"""The data folder and the metadata store of one broker, for tests of the steps of its start.

    home = BrokerHome(tmp_path)
    async with home.open() as (runtime, catalog):
        storage = LocalStorage(runtime)

Leaving the block undoes the start, as a broker does when it stops, and fails if a background task
is left. The folder and the store stay, so that a test can open them again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from harness.in_process.log_home import UnsyncedDisk
from harness.in_process.replica_set import until
from harness.raw.raw_client import values_batch
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.lifecycle.local_storage import LocalStorage
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.env.clock import SystemClock
from millstream.env.network import SystemNetwork
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord, TopicRecord
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.topic_change import NewTopic
from millstream.model.failure import CallbackFailures
from millstream.net.gate import Gate
from millstream.records.batch import read_header

SECONDS_MAX: Final = 60.0
NODE_ID: Final = 1
SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "http.listen": "",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
    # The lease of an earlier process is waited for that long.
    "broker.session.timeout.ms": "100",
}


class BrokerHome:
    """The folder and store of broker 1. The name of a setting has underscores instead of dots."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        given = {name.replace("_", "."): value for name, value in settings.items()}
        flags = {"node.id": str(NODE_ID), "log.dir": str(path), **SETTINGS, **given}
        self.config = BrokerConfig.load(flags=flags)
        self.store = MemoryStore(SystemClock())

    @asynccontextmanager
    async def open(self, *, is_alone: bool = False) -> AsyncIterator[tuple[Runtime, Catalog]]:
        """Make a new runtime and catalog; close them, and what was started, at the end.

        With `is_alone`, the runtime is that of a broker whose metadata store is embedded."""
        connection = self.store.connect()
        environment = Environment(
            SystemClock(),
            UnsyncedDisk(),
            SystemNetwork(),
            random.Random(7),
            None if is_alone else connection,
            has_threads=False,
        )
        failures = CallbackFailures()
        runtime = Runtime(
            self.config,
            environment,
            Reconfiguration(self.config),
            Metrics(topic_labels_max=10, partition_labels_max=10),
            Gate(options.limits(self.config), failures),
            failures,
            environment.network,
        )
        async with runtime.undo:
            runtime.undo.push_async_callback(connection.close)
            catalog = await Catalog.open(
                connection,
                supervisor=runtime.supervisor,
                random=random.Random(7),
                topic_defaults=self.config.topic_defaults(),
            )
            runtime.undo.push_async_callback(catalog.close)
            yield runtime, catalog
        left = [str(task) for task in runtime.supervisor.tasks]
        assert left == [], "the undo of a start step did not stop its tasks"

    async def start_storage(
        self, runtime: Runtime, catalog: Catalog, **topics: int
    ) -> LocalStorage:
        """Open the logs as a broker does; create topics with that many partitions before."""
        storage = LocalStorage(runtime)
        await storage.identify(self.config, catalog)
        for name, partitions in topics.items():
            await create_topic(catalog, name, partitions=partitions)
        await storage.start(self.config, catalog, lambda _: None)
        return storage


async def create_topic(
    catalog: Catalog, name: str, replicas: Sequence[int] = (NODE_ID,), partitions: int = 1
) -> TopicRecord:
    """Create a topic while its first replica is registered for a moment."""
    async with registered(catalog, replicas[0]):
        result = (await catalog.create_topics([NewTopic(name, [replicas] * partitions)]))[0]
    assert isinstance(result, TopicRecord), result
    return result


@asynccontextmanager
async def registered(catalog: Catalog, node_id: int) -> AsyncIterator[None]:
    """Register a process of this broker, and delete the registration at the end."""
    lease = await catalog.store.grant(int(SECONDS_MAX * 1000))
    record = BrokerRecord(node_id=node_id, endpoints=(), incarnation="another process")
    await catalog.register_broker(record, lease)
    try:
        yield
    finally:
        await catalog.store.revoke(lease)
        await until(lambda: node_id not in catalog.image.brokers, "the registration to be gone")


def record_of(catalog: Catalog, topic: str, number: int = 0) -> PartitionRecord:
    record = catalog.image.partition(topic, number)
    assert record is not None, f"there is no partition {number} of {topic}"
    return record


def append(storage: LocalStorage, topic: str, value: bytes = b"value", number: int = 0) -> None:
    """Append one record to a partition that this broker leads."""
    batch = values_batch(value)
    partition = storage.replicas.find(topic, number)
    partition.append(memoryview(batch), read_header(batch), acks_all=False)


def run(scenario: Awaitable[None]) -> None:
    """Run a test on a new event loop, with a deadline."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await scenario

    asyncio.run(main())

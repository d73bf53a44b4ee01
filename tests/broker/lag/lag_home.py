"""Topics and groups on a real data folder, with a clock that does not advance by itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from groups.coordinator_home import GroupHome, ReplyResults, commit_of
from harness.in_process.log_home import make_batch
from millstream.broker.lag.lag_collector import LagCollector, LagOptions
from millstream.broker.lag.lag_sweep import LagSources, PartitionLag
from millstream.broker.lag.partition_backlog import PartitionBacklogs
from millstream.broker.lag.remote_backlog import BacklogApi, RemoteBacklogs
from millstream.broker.peer_link import PeerConnector, PeerLinks
from millstream.env.network import SystemNetwork
from millstream.env.supervisor import Supervisor
from millstream.records.batch import check_batch
from millstream.replication.partition import Partition

AnyWorld = TypeVar("AnyWorld", bound="World")


class World(GroupHome):
    """Topics t (three partitions) and u (one partition), and the groups that read them."""

    def __init__(self, path: Path, **options: int) -> None:
        super().__init__(path)
        self.image = self.picture(t=3, u=1)
        self.lag_options = LagOptions(**options)

    def begin(self) -> None:
        self.open()
        connector = PeerConnector(
            SystemNetwork(), "PLAINTEXT", "broker-1", Supervisor(), self.replicas.failures
        )
        links = PeerLinks(BacklogApi(), connector, self.image)
        sources = LagSources(
            1,
            lambda: self.image,
            self.replicas,
            PartitionBacklogs(self.replicas, self.clock),
            RemoteBacklogs(links),
            self.clock,
        )
        self.lag = LagCollector(sources, self.shards, self.lag_options)

    def configure(self, topic: str, **config: object) -> None:
        for partition in self.replicas:
            if partition.topic_partition.topic == topic:
                log = partition.log
                log.update_config(dataclasses.replace(log.config, **config))

    def partition_of(self, topic: str, number: int = 0) -> Partition:
        return self.replicas.find(topic, number)

    def produce(self, topic: str, number: int = 0, count: int = 1, **fields: object) -> None:
        """Append batches of one record, one second apart, the last one now."""
        partition = self.partition_of(topic, number)
        for age in reversed(range(count)):
            given = {"timestamp": self.clock.now_ms - age * 1000, **fields}
            batch = make_batch(**given)  # type: ignore[arg-type]
            partition.append(memoryview(batch), check_batch(batch), acks_all=True)

    async def commit(self, group_id: str, *offsets: tuple[str, int, int]) -> None:
        responses = ReplyResults()
        self.coordinator.commit(commit_of(group_id, *offsets), responses.reply())
        await asyncio.sleep(0)
        assert responses.got == {"it": None}

    async def row(self, group_id: str, topic: str = "t", number: int = 0) -> PartitionLag:
        found = await self.lag.of_group(group_id)
        assert found is not None
        (row,) = [each for each in found.partitions if each[:2] == (topic, number)]
        return row


def run(world: AnyWorld, body: Callable[[AnyWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        world.begin()
        try:
            await body(world)
        finally:
            await world.close()

    asyncio.run(main())

"""A broker's partitions over a real data folder, without a broker around them.

Tests of coordinators use it. The clock is fixed, and the test sets the metadata.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from harness.in_process.log_home import StillClock
from millstream.env.disk import SystemDisk
from millstream.env.supervisor import Supervisor
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flush.flusher import Flusher
from millstream.log.storage import LogOptions
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage, ImageDelta, difference
from millstream.model.config import TopicConfig
from millstream.model.map import Map
from millstream.replication.replicas import Replicas


class _Numbers:
    """Counters and latency of a partition, which no test reads."""

    bytes_in = bytes_out = messages_in = messages_out = failed_produces = failed_fetches = 0

    def observe(self, value: float) -> None:
        pass


class ReplicaHome:
    """Partitions that a test opens, abandons and opens again. Needs a running loop."""

    directory: LogDirectory
    replicas: Replicas

    def __init__(self, path: Path, image: ClusterImage) -> None:
        self.path = path
        self.clock = StillClock()
        self.image = image
        self.supervisor = Supervisor()

    def open_replicas(self, *, recover: bool = False) -> Replicas:
        self.directory = LogDirectory.open(
            self.path,
            SystemDisk(),
            self.clock,
            random.Random(7),
            LogOptions(open_files_max=16, recovery_threads=1),
        )
        numbers = _Numbers()
        self.replicas = Replicas(
            1,
            self.directory,
            TopicConfig(),
            lambda _topic, _number: (numbers, numbers),
            Flusher(),
            flushes_before_ack=False,
        )
        if recover:
            self.replicas.open_logs(self.image)
            self.directory.recover()
        self.replicas.apply_delta(self.image, difference(ClusterImage(), self.image))
        return self.replicas

    def apply_image(self, image: ClusterImage) -> ImageDelta:
        """Apply the metadata `image` and return the changes."""
        delta = difference(self.image, image)
        self.image = image
        self.replicas.apply_delta(image, delta)
        return delta


def picture(
    *topics: tuple[str, bytes, int], leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1,)
) -> ClusterImage:
    """Return the image of a cluster with these topics (name, id, number of partitions)."""
    state = PartitionRecord(replicas=isr, leader=leader, leader_epoch=epoch, isr=isr)
    records = [TopicRecord(name, topic_id, (state,) * count) for name, topic_id, count in topics]
    return ClusterImage(
        topics=Map({topic.name: topic for topic in records}),
        topic_names=Map({topic.topic_id: topic.name for topic in records}),
    )


class CoordinatorHome(Protocol):
    """A home with a coordinator, which `open` starts."""

    def open(self) -> object: ...

    async def close(self) -> None: ...


H = TypeVar("H", bound=CoordinatorHome)


def run_home(home: H, body: Callable[[H], Awaitable[None]]) -> None:
    """Open the home on an event loop, await `body`, and close the home."""

    async def main() -> None:
        home.open()
        try:
            await body(home)
        finally:
            await home.close()

    asyncio.run(main())


async def turns(count: int = 5) -> None:
    """Give the event loop some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], bool], what: str) -> None:
    """Give the event loop turns until the condition holds."""
    for _ in range(10_000):
        await asyncio.sleep(0)
        if condition():
            return
    raise AssertionError(what)

"""A coordinator over a real data folder, without a broker around it. Its clock stands still."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from immutables import Map

from harness.log_home import StillClock
from millstream.env.disk import SystemDisk
from millstream.groups.coordinator import Commit, Coordinator
from millstream.groups.offset import CommittedOffset
from millstream.groups.placement import OFFSETS_TOPIC
from millstream.groups.shards import CoordinatorOptions, Shards
from millstream.groups.ticket import Ticket
from millstream.log.directory import LogDirectory
from millstream.log.flusher import Flusher
from millstream.log.storage import LogOptions
from millstream.metadata.image import ClusterImage, difference
from millstream.metadata.record import PartitionRecord, TopicRecord
from millstream.model.config import TopicConfig
from millstream.replication.partition import Partition
from millstream.replication.replica import Replicas

PARTITION_COUNT = 4
_TOPIC_ID = bytes(range(16))


class _Numbers:
    """Counters and latency of a partition; nobody looks at them."""

    bytes_in = bytes_out = messages_in = messages_out = failed_produces = failed_fetches = 0

    def observe(self, value: float) -> None:
        pass


class Answers:
    """What tickets got, by name, in order of arrival."""

    def __init__(self) -> None:
        self.got: dict[str, Any] = {}

    def ticket(self, name: str = "it") -> Ticket:
        def note(answer: Any) -> None:
            assert name not in self.got, f"{name} was answered twice"
            self.got[name] = answer

        return Ticket(note, note)


class CoordinatorHome:
    """Opened, used, abandoned and opened again. Must be used within a running loop."""

    def __init__(self, path: Path, options: CoordinatorOptions | None = None) -> None:
        self.path = path
        self.options = options or CoordinatorOptions()
        self.clock = StillClock()
        self.image = self.picture()

    def picture(
        self, *, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1,), **others: int
    ) -> ClusterImage:
        """A cluster with the offsets topic, and other topics of so many partitions."""
        state = PartitionRecord(replicas=isr, leader=leader, leader_epoch=epoch, isr=isr)
        topics = [TopicRecord(OFFSETS_TOPIC, _TOPIC_ID, (state,) * PARTITION_COUNT)]
        topics += [
            TopicRecord(name, name.encode().ljust(16), (state,) * count)
            for name, count in others.items()
        ]
        return ClusterImage(
            topics=Map({topic.name: topic for topic in topics}),
            topic_names=Map({topic.topic_id: topic.name for topic in topics}),
        )

    def open(self, *, recover: bool = False) -> Coordinator:
        self.directory = LogDirectory.open(
            self.path,
            SystemDisk(),
            self.clock,
            random.Random(7),
            LogOptions(open_files_max=16, close_threads=1),
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
        self.replicas.follow(self.image, difference(ClusterImage(), self.image))
        self.shards = Shards(self.replicas, self.clock, random.Random(3), self.options)
        self.shards.start(self.image)
        self.coordinator = Coordinator(self.shards)
        return self.coordinator

    async def close(self, *, clean: bool = True) -> None:
        await self.shards.stop()
        self.directory.close(clean)

    async def reopen(self) -> Coordinator:
        """As after a kill: nothing but the log is left."""
        await self.close(clean=False)
        return self.open(recover=True)

    def follow(self, image: ClusterImage) -> None:
        delta = difference(self.image, image)
        self.image = image
        self.replicas.follow(image, delta)
        self.shards.follow(image, delta)

    def partition(self, index: int) -> Partition:
        return self.replicas.find(OFFSETS_TOPIC, index)

    def end_offsets(self) -> int:
        """Of all partitions together."""
        return sum(self.partition(n).log.log_end_offset for n in range(PARTITION_COUNT))

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.shards._carry_out_timers()


def commit_of(group_id: str, *offsets: tuple[str, int, int], **fields: Any) -> Commit:
    """Offsets as (topic, partition, offset), by somebody who is not a member."""
    given = {"member_id": "", "instance_id": None, "generation": -1, "version": 9, **fields}
    return Commit(
        group_id=group_id,
        offsets=[
            (topic, number, CommittedOffset(offset, 0, "", 0)) for topic, number, offset in offsets
        ],
        **given,
    )

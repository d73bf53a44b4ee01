"""A group coordinator on a real data directory, without a broker."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from harness.in_process.replica_home import ReplicaHome, picture
from millstream.groups.committed_offset import CommittedOffset
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.groups.group_shards import GroupCoordinatorOptions, GroupShards
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.replication.partition import Partition

PARTITION_COUNT = 4
_TOPIC_ID = bytes(range(16))


class ReplyResults:
    """The results of replies by name, in order of delivery."""

    def __init__(self) -> None:
        self.got: dict[str, Any] = {}

    def reply(self, name: str = "it") -> Reply[Any]:
        def note(response: Any) -> None:
            assert name not in self.got, f"{name} got two responses"
            self.got[name] = response

        return Reply(ReplyKind.JOIN_GROUP, CallbackFailures(), note, note)


class GroupHome(ReplicaHome):
    """A `ReplicaHome` with a group coordinator."""

    def __init__(self, path: Path, options: GroupCoordinatorOptions | None = None) -> None:
        super().__init__(path, self.picture())
        self.options = options or GroupCoordinatorOptions()

    def picture(
        self, *, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1,), **others: int
    ) -> ClusterImage:
        """Return an image with the offsets topic and the given topics by partition count."""
        topics = [(name, name.encode().ljust(16), count) for name, count in others.items()]
        offsets = (OFFSETS_TOPIC, _TOPIC_ID, PARTITION_COUNT)
        return picture(offsets, *topics, leader=leader, epoch=epoch, isr=isr)

    def open(self, *, recover: bool = False) -> GroupCoordinator:
        replicas = self.open_replicas(recover=recover)
        self.shards = GroupShards(
            replicas, self.clock, self.supervisor, random.Random(3), self.options
        )
        self.shards.start(self.image)
        self.coordinator = GroupCoordinator(self.shards)
        return self.coordinator

    async def close(self, *, clean: bool = True) -> None:
        await self.shards.stop()
        self.directory.close(clean)

    async def reopen(self) -> GroupCoordinator:
        """Restart the coordinator as after a kill: only the log is left."""
        await self.close(clean=False)
        return self.open(recover=True)

    def apply_image(self, image: ClusterImage) -> ImageDelta:
        delta = super().apply_image(image)
        self.shards.apply_delta(image, delta)
        return delta

    def partition(self, index: int) -> Partition:
        return self.replicas.find(OFFSETS_TOPIC, index)

    def end_offsets(self) -> int:
        """Return the sum of the log end offsets of all partitions."""
        return sum(self.partition(n).log.log_end_offset for n in range(PARTITION_COUNT))

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.shards._carry_out_timers()


def commit_of(group_id: str, *offsets: tuple[str, int, int], **fields: Any) -> OffsetCommit:
    """Return a commit of (topic, partition, offset) rows by a client that is no member."""
    given = {"member_id": "", "instance_id": None, "generation": -1, "version": 9, **fields}
    return OffsetCommit(
        group_id=group_id,
        offsets=[
            (topic, number, CommittedOffset(offset, 0, "", 0)) for topic, number, offset in offsets
        ],
        **given,
    )

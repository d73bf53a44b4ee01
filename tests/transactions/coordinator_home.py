"""A transaction coordinator on a real data directory, without a broker.

The test decides when markers succeed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.in_process.replica_home import ReplicaHome, picture
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.transactions.state import Marker
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.transactions.transaction_coordinator import TransactionCoordinator
from millstream.transactions.transaction_shards import TransactionOptions, TransactionShards

PARTITION_COUNT = 2


class Markers:
    """A `MarkerSender` that stores markers until the test completes them."""

    def __init__(self) -> None:
        self.sent: list[tuple[Marker, int, TopicPartition, Reply[None]]] = []
        self.answers_at_once = True

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        self.sent.append((marker, coordinator_epoch, partition, reply))
        if self.answers_at_once:
            reply.deliver(None)


class TransactionHome(ReplicaHome):
    """A `ReplicaHome` with a transaction coordinator."""

    def __init__(self, path: Path, options: TransactionOptions | None = None) -> None:
        super().__init__(path, self.picture())
        self.options = options or TransactionOptions()
        self.markers = Markers()
        self.responses: dict[str, Any] = {}

    def picture(
        self, *, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1,)
    ) -> ClusterImage:
        topic = (TRANSACTIONS_TOPIC, bytes(range(16)), PARTITION_COUNT)
        return picture(topic, leader=leader, epoch=epoch, isr=isr)

    def open(self, *, recover: bool = False) -> TransactionCoordinator:
        replicas = self.open_replicas(recover=recover)
        self.shards = TransactionShards(
            replicas, self.clock, self.supervisor, self.markers, self.options
        )
        self.shards.start(self.image)
        self.coordinator = TransactionCoordinator(self.shards)
        return self.coordinator

    async def close(self, *, clean: bool = True) -> None:
        await self.shards.stop()
        self.directory.close(clean)

    async def reopen(self) -> TransactionCoordinator:
        """Restart the coordinator as after a kill: only the log is left."""
        for index in list(self.shards._shards):
            self.shards._close(index, ErrorCode.NOT_COORDINATOR)
        await self.close(clean=False)
        self.markers = Markers()
        return self.open(recover=True)

    def apply_image(self, image: ClusterImage) -> ImageDelta:
        delta = super().apply_image(image)
        self.shards.apply_delta(image, delta)
        return delta

    def partition_of(self, transactional_id: str) -> Partition:
        index = self.shards.index_of(transactional_id)
        return self.replicas.find(TRANSACTIONS_TOPIC, index)

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.shards._carry_out_timers()

    def reply(self, name: str) -> Reply[Any]:
        """Return a reply whose result goes to `responses`."""

        def note(response: Any) -> None:
            assert name not in self.responses, f"{name} got two responses"
            self.responses[name] = response

        return Reply(ReplyKind.END_TXN, CallbackFailures(), note, note)

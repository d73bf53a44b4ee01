"""The fetchers of this broker: assigns each followed partition to a fetcher of its leader.

Applies metadata: partitions are assigned, moved, or wait for a leader that is alive. With several
fetchers per leader, a partition always has the same one. Does not decide about leadership.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from millstream.metadata.cluster_record import Endpoint
from millstream.metadata.image import ClusterImage, ImageDelta, TopicRecord, difference
from millstream.model.failure import CallbackKind
from millstream.replication.follower.fetcher import FetcherContext, ReplicaFetcher
from millstream.replication.follower.leader_session import Key
from millstream.replication.partition import Partition

#: Pause before a partition that could not be assigned is assigned again.
_RETRY_S: Final = 1.0
#: A leader's broker id, and the number of a fetcher for it.
_Slot: TypeAlias = tuple[int, int]


class FetcherPool:
    """All fetchers of one broker, between `start` and `stop`. Event loop only."""

    __slots__ = (
        "_assigned",
        "_context",
        "_fetchers",
        "_fetchers_per_source",
        "_image",
        "_listener",
        "_stopping",
    )

    def __init__(
        self, context: FetcherContext, listener_name: str, fetchers_per_source: int
    ) -> None:
        self._context = context
        self._fetchers_per_source = fetchers_per_source
        #: The listener for connections between brokers.
        self._listener = listener_name
        self._image = ClusterImage()
        self._fetchers: dict[_Slot, ReplicaFetcher] = {}
        #: The fetcher of each partition.
        self._assigned: dict[Key, _Slot] = {}
        #: Fetchers that are being stopped.
        self._stopping: dict[ReplicaFetcher, None] = {}

    def start(self, image: ClusterImage) -> None:
        """Assign all partitions. Called when this broker is registered."""
        self.apply_delta(image, difference(ClusterImage(), image))

    async def stop(self) -> None:
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._assigned.clear()
        # A pending retry then finds no leader.
        self._image = ClusterImage()
        for fetcher in (*self._stopping, *fetchers):
            fetcher.cancel()
        for fetcher in (*self._stopping, *fetchers):
            await fetcher.ended()

    def lost(self) -> list[int]:
        """Return the leaders that have just closed their connections."""
        lost = (slot[0] for slot, fetcher in self._fetchers.items() if fetcher.is_lost)
        return list(dict.fromkeys(lost))

    def assign_soon(self, partition: Partition) -> None:
        """Assign a partition again in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._try_assign, partition)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a delta. Called after the partitions have applied it."""
        self._image = image
        self._update_broker_epoch()
        for topic in delta.deleted:
            for number in range(len(topic.partitions)):
                self._unassign((topic.topic_id, number))
        for topic in delta.created:
            self._assign_all(topic)
        for old, topic in delta.changed:
            self._assign_all(topic, old)
        if delta.brokers:
            self._apply_broker_changes(delta)

    def set_fetchers_per_source(self, count: int) -> None:
        """Reassign all partitions to `count` fetchers per leader."""
        if count == self._fetchers_per_source:
            return
        self._fetchers_per_source = count
        for key in list(self._assigned):
            partition = self._context.replicas.find_by_id(*key)
            if partition is not None:
                self._try_assign(partition)

    def _update_broker_epoch(self) -> None:
        context = self._context
        own = self._image.brokers.get(context.broker_id)
        if own is not None and own.epoch != context.broker_epoch:
            context.broker_epoch = own.epoch
            for fetcher in self._fetchers.values():
                fetcher.restart()

    def _apply_broker_changes(self, delta: ImageDelta) -> None:
        changed = set(delta.brokers).difference((self._context.broker_id,))
        for slot in [slot for slot in self._fetchers if slot[0] in changed]:
            self._stop_fetcher(slot)
        for partition in self._context.replicas:
            if partition.state.leader in changed:
                self._try_assign(partition)

    def _assign_all(self, topic: TopicRecord, old: TopicRecord | None = None) -> None:
        before = old.partitions if old is not None else ()
        for number, state in enumerate(topic.partitions):
            if number < len(before) and before[number] == state:
                continue
            partition = self._context.replicas.get(topic.name, number)
            if partition is None:
                self._unassign((topic.topic_id, number))
            else:
                self._try_assign(partition)

    def _try_assign(self, partition: Partition) -> None:
        """Assign a partition to a fetcher of its leader. If that fails, only this partition is not
        fetched until the next attempt."""
        try:
            self._assign(partition)
        except Exception as error:  # noqa: BLE001  # logged and counted; retried
            replicas = self._context.replicas
            replicas.failures.note(CallbackKind.LEADERSHIP, error, partition.topic_partition)
            self._unassign((partition.log.topic_id, partition.topic_partition.partition))
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_S, self._retry, partition)

    def _retry(self, partition: Partition) -> None:
        if self._context.replicas.get(*partition.topic_partition) is partition:
            self._try_assign(partition)

    def _assign(self, partition: Partition) -> None:
        key = (partition.log.topic_id, partition.topic_partition.partition)
        leader = partition.state.leader
        endpoint = None if leader == self._context.broker_id else self._endpoint(leader)
        if endpoint is None or partition.log.failure is not None:
            # An offline log would count as in sync while no record is written.
            self._unassign(key)
            return
        slot = (leader, self._fetcher_number(key))
        if self._assigned.get(key) != slot:
            self._unassign(key)
            self._assigned[key] = slot
        self._fetcher(slot, endpoint).add(partition)

    def _fetcher_number(self, key: Key) -> int:
        """Return the fetcher number of a partition. It spreads topics as well as partitions."""
        topic_id, partition = key
        return (int.from_bytes(topic_id[-4:], "big") + partition) % self._fetchers_per_source

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._image.brokers.get(broker_id)
        return broker.endpoint(self._listener) if broker is not None else None

    def _fetcher(self, slot: _Slot, endpoint: Endpoint) -> ReplicaFetcher:
        fetcher = self._fetchers.get(slot)
        if fetcher is None:
            fetcher = self._fetchers[slot] = ReplicaFetcher(self._context, *slot, endpoint)
            fetcher.start()
        return fetcher

    def _unassign(self, key: Key) -> None:
        slot = self._assigned.pop(key, None)
        if slot is None:
            return
        fetcher = self._fetchers[slot]
        fetcher.remove(key)
        if not len(fetcher):
            self._stop_fetcher(slot)

    def _stop_fetcher(self, slot: _Slot) -> None:
        fetcher = self._fetchers.pop(slot)
        self._assigned = {key: each for key, each in self._assigned.items() if each != slot}
        fetcher.cancel()
        self._stopping = {each: None for each in (*self._stopping, fetcher) if not each.is_ended}

"""Which partition this broker fetches from whom: fetchers for each broker that leads one.

Follows the metadata: partitions go to a fetcher of their leader, away from it, or wait for a leader
that is alive. Which of several fetchers it is stays the same for a partition's whole life. Decides
nothing about leadership.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from millstream.metadata.cluster_record import Endpoint
from millstream.metadata.image import ClusterImage, ImageDelta, TopicRecord, difference
from millstream.model.failure import CallbackKind
from millstream.replication.follower.fetcher import Fetcher, FetcherContext
from millstream.replication.follower.leader_session import Key
from millstream.replication.partition import Partition

#: Before a partition that could not be added to a fetcher is added again.
_RETRY_S: Final = 1.0
#: A broker, and which of the fetchers for it.
_Slot: TypeAlias = tuple[int, int]


class FetcherPool:
    """Runs between `start` and `stop`. Event loop only."""

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
        #: The listener through which brokers talk to each other.
        self._listener = listener_name
        self._image = ClusterImage()
        self._fetchers: dict[_Slot, Fetcher] = {}
        #: Where each partition is fetched.
        self._assigned: dict[Key, _Slot] = {}
        #: Fetchers that are being stopped.
        self._stopping: dict[Fetcher, None] = {}

    def start(self, image: ClusterImage) -> None:
        """To be called when this broker is registered."""
        self.apply_delta(image, difference(ClusterImage(), image))

    async def stop(self) -> None:
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._assigned.clear()
        # A retry that comes later finds no leader.
        self._image = ClusterImage()
        for fetcher in (*self._stopping, *fetchers):
            fetcher.cancel()
        for fetcher in (*self._stopping, *fetchers):
            await fetcher.ended()

    def lost(self) -> list[int]:
        """Brokers that have just hung up on this one."""
        lost = (slot[0] for slot, fetcher in self._fetchers.items() if fetcher.is_lost)
        return list(dict.fromkeys(lost))

    def assign_soon(self, partition: Partition) -> None:
        """Look at a partition once the present call is over: its log went offline."""
        asyncio.get_running_loop().call_soon(self._try_assign, partition)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """To be called after the partitions have followed."""
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
        """Spread the partitions anew over `count` fetchers for each broker that is followed."""
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
        """Have a partition fetched from its leader. A failure is this partition's alone: it is
        fetched from nobody until the next attempt."""
        try:
            self._assign(partition)
        except Exception as error:  # noqa: BLE001  # logged and counted; tried again
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
            # A log that is offline would look in sync as long as nothing new is written.
            self._unassign(key)
            return
        slot = (leader, self._fetcher_number(key))
        if self._assigned.get(key) != slot:
            self._unassign(key)
            self._assigned[key] = slot
        self._fetcher(slot, endpoint).add(partition)

    def _fetcher_number(self, key: Key) -> int:
        """Spreads the partitions of a topic, and topics of one partition."""
        topic_id, partition = key
        return (int.from_bytes(topic_id[-4:], "big") + partition) % self._fetchers_per_source

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._image.brokers.get(broker_id)
        return broker.endpoint(self._listener) if broker is not None else None

    def _fetcher(self, slot: _Slot, endpoint: Endpoint) -> Fetcher:
        fetcher = self._fetchers.get(slot)
        if fetcher is None:
            fetcher = self._fetchers[slot] = Fetcher(self._context, *slot, endpoint)
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

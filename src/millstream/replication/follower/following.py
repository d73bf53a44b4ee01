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
from millstream.replication.follower.fetcher import Fetcher, Follower
from millstream.replication.follower.source_session import Key
from millstream.replication.partition import Partition

#: Before a partition that could not be added to a fetcher is added again.
_RETRY_S: Final = 1.0
#: A broker, and which of the fetchers for it.
_Place: TypeAlias = tuple[int, int]


class Following:
    """Runs between `start` and `stop`. Event loop only."""

    __slots__ = (
        "_ending",
        "_fetchers",
        "_fetchers_per_source",
        "_follower",
        "_image",
        "_listener",
        "_sources",
    )

    def __init__(self, follower: Follower, listener_name: str, fetchers_per_source: int) -> None:
        self._follower = follower
        self._fetchers_per_source = fetchers_per_source
        #: The listener through which brokers talk to each other.
        self._listener = listener_name
        self._image = ClusterImage()
        self._fetchers: dict[_Place, Fetcher] = {}
        #: Where each partition is fetched.
        self._sources: dict[Key, _Place] = {}
        #: Fetchers that are being stopped.
        self._ending: dict[Fetcher, None] = {}

    def start(self, image: ClusterImage) -> None:
        """To be called when this broker is registered."""
        self.follow(image, difference(ClusterImage(), image))

    async def stop(self) -> None:
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._sources.clear()
        # A retry that comes later finds no leader.
        self._image = ClusterImage()
        for fetcher in (*self._ending, *fetchers):
            fetcher.cancel()
        for fetcher in (*self._ending, *fetchers):
            await fetcher.ended()

    def lost(self) -> list[int]:
        """Brokers that have just hung up on this one."""
        lost = (place[0] for place, fetcher in self._fetchers.items() if fetcher.is_lost)
        return list(dict.fromkeys(lost))

    def reconsider_soon(self, partition: Partition) -> None:
        """Look at a partition once the present call is over: its log went offline."""
        asyncio.get_running_loop().call_soon(self._place, partition)

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """To be called after the partitions have followed."""
        self._image = image
        self._take_own_epoch()
        for topic in delta.deleted:
            for number in range(len(topic.partitions)):
                self._leave((topic.topic_id, number))
        for topic in delta.created:
            self._place_all(topic)
        for old, topic in delta.changed:
            self._place_all(topic, old)
        if delta.brokers:
            self._follow_brokers(delta)

    def set_fetchers_per_source(self, count: int) -> None:
        """Spread the partitions anew over `count` fetchers for each broker that is followed."""
        if count == self._fetchers_per_source:
            return
        self._fetchers_per_source = count
        for key in list(self._sources):
            partition = self._follower.replicas.find_by_id(*key)
            if partition is not None:
                self._place(partition)

    def _take_own_epoch(self) -> None:
        follower = self._follower
        own = self._image.brokers.get(follower.broker_id)
        if own is not None and own.epoch != follower.broker_epoch:
            follower.broker_epoch = own.epoch
            for fetcher in self._fetchers.values():
                fetcher.restart()

    def _follow_brokers(self, delta: ImageDelta) -> None:
        changed = set(delta.brokers).difference((self._follower.broker_id,))
        for place in [place for place in self._fetchers if place[0] in changed]:
            self._end(place)
        for partition in self._follower.replicas:
            if partition.state.leader in changed:
                self._place(partition)

    def _place_all(self, topic: TopicRecord, old: TopicRecord | None = None) -> None:
        before = old.partitions if old is not None else ()
        for number, state in enumerate(topic.partitions):
            if number < len(before) and before[number] == state:
                continue
            partition = self._follower.replicas.get(topic.name, number)
            if partition is None:
                self._leave((topic.topic_id, number))
            else:
                self._place(partition)

    def _place(self, partition: Partition) -> None:
        """Have a partition fetched from its leader. A failure is this partition's alone: it is
        fetched from nobody until the next attempt."""
        try:
            self._assign(partition)
        except Exception as error:  # noqa: BLE001  # logged and counted; tried again
            replicas = self._follower.replicas
            replicas.failures.note(CallbackKind.LEADERSHIP, error, partition.topic_partition)
            self._leave((partition.log.topic_id, partition.topic_partition.partition))
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_S, self._retry, partition)

    def _retry(self, partition: Partition) -> None:
        if self._follower.replicas.get(*partition.topic_partition) is partition:
            self._place(partition)

    def _assign(self, partition: Partition) -> None:
        key = (partition.log.topic_id, partition.topic_partition.partition)
        leader = partition.state.leader
        endpoint = None if leader == self._follower.broker_id else self._endpoint(leader)
        if endpoint is None or partition.log.failure is not None:
            # A log that is offline would look in sync as long as nothing new is written.
            self._leave(key)
            return
        place = (leader, self._number_of(key))
        if self._sources.get(key) != place:
            self._leave(key)
            self._sources[key] = place
        self._fetcher(place, endpoint).add(partition)

    def _number_of(self, key: Key) -> int:
        """Spreads the partitions of a topic, and topics of one partition."""
        topic_id, partition = key
        return (int.from_bytes(topic_id[-4:], "big") + partition) % self._fetchers_per_source

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._image.brokers.get(broker_id)
        return broker.endpoint(self._listener) if broker is not None else None

    def _fetcher(self, place: _Place, endpoint: Endpoint) -> Fetcher:
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = Fetcher(self._follower, *place, endpoint)
            fetcher.start()
        return fetcher

    def _leave(self, key: Key) -> None:
        place = self._sources.pop(key, None)
        if place is None:
            return
        fetcher = self._fetchers[place]
        fetcher.remove(key)
        if not len(fetcher):
            self._end(place)

    def _end(self, place: _Place) -> None:
        fetcher = self._fetchers.pop(place)
        self._sources = {key: each for key, each in self._sources.items() if each != place}
        fetcher.cancel()
        self._ending = {each: None for each in (*self._ending, fetcher) if not each.is_ended}

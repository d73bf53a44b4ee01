"""The number of brokers in the cluster, for the defaults that depend on it.

A broker belongs to the cluster while it is alive or holds a replica, unless it is decommissioned.
So the death of a broker does not shrink the cluster, and nothing has to be stored: the records of
the partitions name their brokers.

The brokers of a cluster start one after the other. The first broker cannot know that others follow,
and a topic that it creates with one replica keeps one replica. So while fewer than three brokers
are known, `wait_until_settled` waits until `settle_ms` after this broker first saw the last of
them. The start of this broker counts too: a cluster of one or two brokers waits that long after a
start, but only to create topics with a default number of replicas.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.controller import decommission
from millstream.env.clock import Clock
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import TopicRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.durability import REPLICAS_MAX
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

_NO_TOPICS: Final[Map[str, TopicRecord]] = Map()


class ClusterSize:
    """Counts brokers and waits until their number is stable. Event loop only."""

    __slots__ = (
        "_catalog",
        "_changed",
        "_clock",
        "_holders",
        "_holders_of",
        "_is_closed",
        "_met_at",
        "_seen",
        "_settle_s",
        "is_alone",
    )

    def __init__(self, catalog: Catalog, clock: Clock, settle_ms: int, *, is_alone: bool) -> None:
        self._catalog = catalog
        self._clock = clock
        self._settle_s = settle_ms / 1000
        #: Whether the metadata store is for this broker alone.
        self.is_alone = is_alone
        #: Brokers that were alive at some time since this broker started.
        self._seen = dict.fromkeys(catalog.image.brokers)
        #: When this broker last saw a new broker.
        self._met_at = clock.monotonic()
        #: Brokers that hold replicas, and the topics of the image that they were counted in.
        self._holders: frozenset[int] = frozenset()
        self._holders_of = _NO_TOPICS
        #: Set, and replaced, when the brokers change.
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def count(self) -> int:
        """The number of brokers in the cluster, alive or not."""
        if self.is_alone:
            return 1
        image = self._catalog.image
        emptied = decommission.named(image.default_broker_configs)
        alive = [node_id for node_id in image.brokers if node_id not in emptied]
        if len(alive) >= REPLICAS_MAX:
            # More brokers change no default, and to find them costs a scan of all partitions.
            return len(alive)
        return max(1, len({*alive, *self.absent()}))

    def absent(self) -> list[int]:
        """Return the brokers that hold replicas but are neither alive nor decommissioned."""
        image = self._catalog.image
        emptied = decommission.named(image.default_broker_configs)
        return sorted(self._find_holders(image) - set(image.brokers) - emptied)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply changes of the brokers."""
        if not delta.brokers and not delta.broker_configs:
            return
        for node_id in delta.brokers:
            if node_id in image.brokers and node_id not in self._seen:
                self._seen[node_id] = None
                self._met_at = self._clock.monotonic()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_until_settled(self) -> None:
        """Return once no more brokers are expected to join soon.

        Raises REQUEST_TIMED_OUT if this broker shuts down meanwhile."""
        while (left_s := self._left_s()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        """End all waits: this broker shuts down."""
        self._is_closed = True
        self._changed.set()

    def _left_s(self) -> float:
        if self.is_alone or self.count >= REPLICAS_MAX:
            return 0.0
        left_s = self._met_at + self._settle_s - self._clock.monotonic()
        if left_s > 0 and self._is_closed:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, "the broker is shutting down")
        return left_s

    def _find_holders(self, image: ClusterImage) -> frozenset[int]:
        if image.topics is not self._holders_of:
            held: set[int] = set()
            for topic in image.topics.values():
                for record in topic.partitions:
                    held.update(record.replicas)
            self._holders, self._holders_of = frozenset(held), image.topics
        return self._holders

"""The number of brokers, with brokers that join, die and hold replicas, and the wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.in_process.log_home import StillClock
from millstream.broker.config.cluster_size import ClusterSize
from millstream.controller import decommission
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage, difference
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

SETTLE_MS = 10_000


def image(
    alive: Sequence[int], replicas: Sequence[int] = (), emptied: Sequence[int] = ()
) -> ClusterImage:
    brokers = {each: BrokerRecord(node_id=each, endpoints=()) for each in alive}
    topics = {}
    if replicas:
        record = PartitionRecord(
            replicas=tuple(replicas), leader=-1, leader_epoch=0, isr=tuple(replicas)
        )
        topics["t"] = TopicRecord("t", b"i" * 16, (record,))
    configs = {decommission.SETTING: ",".join(map(str, emptied))} if emptied else {}
    return ClusterImage(
        brokers=Map(brokers), topics=Map(topics), default_broker_configs=Map(configs)
    )


class Scene:
    """The cluster as one broker sees it, with a clock that the test advances."""

    def __init__(self, first: ClusterImage, *, is_alone: bool = False) -> None:
        self.clock = StillClock()
        self.catalog = SimpleNamespace(image=first)
        catalog = cast("Catalog", self.catalog)
        self.size = ClusterSize(catalog, self.clock, SETTLE_MS, is_alone=is_alone)

    def become(self, after: ClusterImage) -> None:
        before, self.catalog.image = self.catalog.image, after
        self.size.apply_delta(after, difference(before, after))

    async def is_waiting(self) -> bool:
        """Return whether the creation of a topic would wait now."""
        task = asyncio.ensure_future(self.size.wait_until_settled())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        is_waiting = not task.done()
        task.cancel()
        await asyncio.wait([task])
        return is_waiting


def run(scenario: Any) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("alive", "replicas", "emptied", "count"),
    [
        ([], [], [], 1),
        ([1], [], [], 1),
        ([1, 2], [], [], 2),
        ([1, 2, 3, 4], [], [], 4),
        # Dead brokers count while they hold replicas.
        ([1, 2], [1, 2, 3], [], 3),
        ([1], [2, 3], [], 3),
        # Decommissioned brokers do not count.
        ([1, 2, 3], [1, 2, 3], [3], 2),
        ([1, 2], [1, 2, 3], [3], 2),
        ([1, 2, 3, 4], [], [4], 3),
    ],
)
def test_the_number_of_brokers(
    alive: list[int], replicas: list[int], emptied: list[int], count: int
) -> None:
    async def scenario() -> None:
        assert Scene(image(alive, replicas, emptied)).size.count == count

    run(scenario)


def test_dead_brokers_that_hold_replicas_count() -> None:
    async def scenario() -> None:
        scene = Scene(image([1], [4, 3, 2, 1], emptied=[3]))
        assert scene.size.absent() == [2, 4]
        scene.become(image([1, 2], [4, 3, 2, 1]))
        assert scene.size.absent() == [3, 4]
        scene.become(image([1, 2], [1, 2]))
        assert scene.size.absent() == []

    run(scenario)


def test_three_brokers_are_settled_at_once() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        waiting = asyncio.ensure_future(scene.size.wait_until_settled())
        await asyncio.sleep(0)
        scene.become(image([1, 2]))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.become(image([1, 2, 3]))
        await asyncio.wait_for(waiting, 30)
        # Also if the other brokers are dead.
        assert not await Scene(image([1], [1, 2, 3])).is_waiting()

    run(scenario)


def test_fewer_than_three_brokers_are_settled_after_a_while_without_a_new_one() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        scene.clock.now_ms += SETTLE_MS - 1
        assert await scene.is_waiting()
        scene.become(image([1, 2]))
        scene.clock.now_ms += SETTLE_MS - 1
        assert await scene.is_waiting()
        scene.clock.now_ms += 1
        assert not await scene.is_waiting()
        # A broker that was seen before is not new.
        scene.become(image([1]))
        scene.become(image([1, 2]))
        assert not await scene.is_waiting()

    run(scenario)


def test_a_broker_with_an_embedded_store_does_not_wait() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]), is_alone=True)
        assert scene.size.count == 1
        assert not await scene.is_waiting()

    run(scenario)


def test_a_shutdown_ends_the_wait() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        waiting = asyncio.ensure_future(scene.size.wait_until_settled())
        await asyncio.sleep(0)
        scene.size.close()
        with pytest.raises(BrokerError) as caught:
            await waiting
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT

    run(scenario)

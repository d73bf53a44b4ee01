"""Brokers that come, go and hold replicas: how many there are, and when that is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.log_home import StillClock
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
    """A broker's idea of its cluster, and a clock that stands still."""

    def __init__(self, first: ClusterImage, *, is_alone: bool = False) -> None:
        self.clock = StillClock()
        self.catalog = SimpleNamespace(image=first)
        catalog = cast("Catalog", self.catalog)
        self.size = ClusterSize(catalog, self.clock, SETTLE_MS, is_alone=is_alone)

    def become(self, after: ClusterImage) -> None:
        before, self.catalog.image = self.catalog.image, after
        self.size.apply_delta(after, difference(before, after))

    async def is_waiting(self) -> bool:
        """Whether a topic that is created now would wait."""
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
        # Brokers that are down count as long as they hold something.
        ([1, 2], [1, 2, 3], [], 3),
        ([1], [2, 3], [], 3),
        # Brokers that are to hold nothing do not.
        ([1, 2, 3], [1, 2, 3], [3], 2),
        ([1, 2], [1, 2, 3], [3], 2),
        ([1, 2, 3, 4], [], [4], 3),
    ],
)
def test_how_many_brokers_there_are(
    alive: list[int], replicas: list[int], emptied: list[int], count: int
) -> None:
    async def scenario() -> None:
        assert Scene(image(alive, replicas, emptied)).size.count == count

    run(scenario)


def test_brokers_that_are_down_may_be_given_replicas_if_they_hold_some() -> None:
    async def scenario() -> None:
        scene = Scene(image([1], [4, 3, 2, 1], emptied=[3]))
        assert scene.size.absent() == [2, 4]
        scene.become(image([1, 2], [4, 3, 2, 1]))
        assert scene.size.absent() == [3, 4]
        scene.become(image([1, 2], [1, 2]))
        assert scene.size.absent() == []

    run(scenario)


def test_three_brokers_are_enough_at_once() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        waiting = asyncio.ensure_future(scene.size.wait_until_settled())
        await asyncio.sleep(0)
        scene.become(image([1, 2]))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.become(image([1, 2, 3]))
        await asyncio.wait_for(waiting, 30)
        # Also where the others are down.
        assert not await Scene(image([1], [1, 2, 3])).is_waiting()

    run(scenario)


def test_fewer_are_waited_for_until_no_new_one_has_come_for_a_while() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        scene.clock.now_ms += SETTLE_MS - 1
        assert await scene.is_waiting()
        scene.become(image([1, 2]))
        scene.clock.now_ms += SETTLE_MS - 1
        assert await scene.is_waiting()
        scene.clock.now_ms += 1
        assert not await scene.is_waiting()
        # A broker that was there before is not new.
        scene.become(image([1]))
        scene.become(image([1, 2]))
        assert not await scene.is_waiting()

    run(scenario)


def test_a_broker_with_metadata_of_its_own_waits_for_nobody() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]), is_alone=True)
        assert scene.size.count == 1
        assert not await scene.is_waiting()

    run(scenario)


def test_a_stop_ends_the_waiting() -> None:
    async def scenario() -> None:
        scene = Scene(image([1]))
        waiting = asyncio.ensure_future(scene.size.wait_until_settled())
        await asyncio.sleep(0)
        scene.size.close()
        with pytest.raises(BrokerError) as caught:
            await waiting
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT

    run(scenario)

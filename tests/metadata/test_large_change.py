"""Topics that take several transactions: each exists whole or not at all, after any failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata import large_change
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import TopicRecord
from millstream.metadata.image import BrokerRecord, ClusterImage, ImageDelta
from millstream.metadata.store.memory import MemoryConnection, MemoryStore
from millstream.metadata.store.port import Change, Compare, TransactResult, UncertainError
from millstream.metadata.topic_change import NewPartitions, NewTopic
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

CHANGES_MAX = 10
BROKER = BrokerRecord(node_id=1, endpoints=(), incarnation="i")


async def open_catalog(store: MemoryConnection) -> Catalog:
    return await Catalog.open(
        store, supervisor=Supervisor(), random=random.Random(1), topic_defaults=TopicConfig()
    )


def run(scenario: Callable[[MemoryStore, Catalog], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            data = MemoryStore(SystemClock(), changes_max=CHANGES_MAX)
            catalog = await open_catalog(data.connect())
            await catalog.register_broker(BROKER)
            await scenario(data, catalog)
            await catalog.close()

    asyncio.run(main())


def keys(data: MemoryStore) -> list[str]:
    """Return the stored keys, except those that every cluster has."""
    items = data.range("").items
    return [item.key for item in items if not item.key.startswith(("brokers/", "cluster"))]


@pytest.mark.parametrize("count", [1, 8, 9, 10, 11, 17, 18, 19, 57])
def test_topics_of_any_size_are_created_grown_and_deleted(count: int) -> None:
    async def scenario(data: MemoryStore, catalog: Catalog) -> None:
        sizes: list[int] = []

        def look(image: ClusterImage, delta: ImageDelta) -> None:
            sizes.append(len(image.topics["t"].partitions) if "t" in image.topics else 0)

        catalog.subscribe(look)
        (made,) = await catalog.create_topics([NewTopic("t", [[1]] * count)])
        assert isinstance(made, TopicRecord)
        assert len(catalog.image.topics["t"].partitions) == count
        assert sizes == [count]
        assert len(keys(data)) == count + 1
        (grown,) = await catalog.create_partitions([NewPartitions("t", 2 * count, [[1]] * count)])
        assert isinstance(grown, TopicRecord)
        assert len(grown.partitions) == 2 * count
        assert sizes == sorted(sizes)
        sizes.clear()
        await catalog.delete_topics(["t"])
        assert sizes == [0]
        assert keys(data) == []
        assert not catalog.image.waiting

    run(scenario)


def test_one_creation_of_a_name_wins_and_the_others_leave_no_keys() -> None:
    async def scenario(data: MemoryStore, catalog: Catalog) -> None:
        others = [await open_catalog(data.connect()) for _ in range(3)]
        for number, other in enumerate(others):
            other._random.seed(number)
        calls = [other.create_topics([NewTopic("t", [[1]] * 35)]) for other in others]
        results = [result for (result,) in await asyncio.gather(*calls)]
        losers = [result for result in results if isinstance(result, BrokerError)]
        assert {loser.code for loser in losers} == {ErrorCode.TOPIC_ALREADY_EXISTS}
        assert len(losers) == 2
        assert len(keys(data)) == 36
        for other in others:
            await other.reached(data.revision)
            assert not other.image.waiting
            await other.close()

    run(scenario)


class BreakingOff(MemoryConnection):
    """Loses the connection to the store after `left` transactions."""

    __slots__ = ("left",)

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[Change]
    ) -> TransactResult:
        self.left -= 1
        if self.left < 0:
            raise UncertainError("lost")
        return await super().transact(compares, changes)


@pytest.mark.parametrize("transactions", range(6))
@pytest.mark.parametrize("deletes", [False, True])
def test_an_interrupted_change_is_swept_at_the_next_start(transactions: int, deletes: bool) -> None:
    async def scenario(data: MemoryStore, catalog: Catalog) -> None:
        new = NewTopic("t", [[1]] * 35)
        if deletes:
            await catalog.create_topics([new])
        breaking = BreakingOff(data, data.connect()._link)
        breaking.left = 10
        dying = await open_catalog(breaking)
        breaking.left = transactions
        if deletes:
            await dying.delete_topics(["t"])
        else:
            await dying.create_topics([new])
        await dying.close()
        late = await open_catalog(data.connect())
        assert not late.image.waiting
        left = len(late.image.topics["t"].partitions) if "t" in late.image.topics else 0
        assert left in (0, 35)
        assert len(keys(data)) == (left + 1 if left else 0)
        assert await large_change.sweep(data.connect()) == 0
        await late.close()

    run(scenario)


def test_a_creation_interrupted_by_a_sweep_is_planned_again() -> None:
    async def scenario(data: MemoryStore, catalog: Catalog) -> None:
        store = data.connect()
        creating = asyncio.create_task(catalog.create_topics([NewTopic("t", [[1]] * 95)]))
        swept = 0
        while not creating.done():
            swept += await large_change.sweep(store) if swept < 3 else 0
            await asyncio.sleep(0)
        (result,) = await creating
        assert swept >= 3
        assert isinstance(result, TopicRecord)
        assert len(catalog.image.topics["t"].partitions) == 95
        assert len(keys(data)) == 96

    run(scenario)

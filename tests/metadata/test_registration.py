"""A broker's registration: kept alive, renewed when it was lost, withdrawn at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from millstream.env.clock import SystemClock
from millstream.metadata.catalog import Catalog
from millstream.metadata.record import BrokerRecord
from millstream.metadata.registration import Registration
from millstream.metadata.sqlite import SqliteStore
from millstream.model.config import TopicConfig

BROKER = BrokerRecord(node_id=1, endpoints=(), incarnation="i")


def run(path: Path, scenario: Callable[[SqliteStore, Catalog], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            store = await SqliteStore.open(path, SystemClock())
            catalog = await Catalog.open(
                store, random=random.Random(1), topic_defaults=TopicConfig()
            )
            await scenario(store, catalog)
            await catalog.close()
            await store.close()

    asyncio.run(main())


async def changes_of_broker(catalog: Catalog, count: int) -> list[bool]:
    """Whether the broker was there after each of its next `count` changes."""
    seen: list[bool] = []
    done = asyncio.Event()

    def follow(image: object, delta: object) -> None:
        seen.append(1 in catalog.image.brokers)
        if len(seen) >= count:
            done.set()

    leave = catalog.subscribe(follow)
    await done.wait()
    leave()
    return seen


def test_registered_until_closed(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 60_000)
        await registration.start()
        assert catalog.image.brokers[1].incarnation == "i"
        leaving = asyncio.create_task(changes_of_broker(catalog, 1))
        await asyncio.sleep(0)
        await registration.close()
        assert await leaving == [False]
        await registration.close()
        assert not registration.failed.done()

    run(tmp_path / "metadata.db", scenario)


def test_a_lost_lease_is_taken_again(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 300)
        await registration.start()
        first = catalog.image.brokers[1].epoch
        changes = asyncio.create_task(changes_of_broker(catalog, 2))
        await asyncio.sleep(0)
        await store.revoke(registration._lease)
        assert await changes == [False, True]
        assert catalog.image.brokers[1].epoch > first
        await registration.close()

    run(tmp_path / "metadata.db", scenario)


def test_a_closed_store_is_told(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 60)
        await registration.start()
        await store.close()
        assert await registration.failed is not None
        await registration.close()

    run(tmp_path / "metadata.db", scenario)

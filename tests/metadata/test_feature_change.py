"""Finalized feature levels in the store: every broker sees them, and no change is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.feature_change import alter_features
from millstream.metadata.image import ImageDelta
from millstream.metadata.store.memory import MemoryStore
from millstream.model.config import TopicConfig


async def opened(store: MemoryStore) -> Catalog:
    return await Catalog.open(
        store.connect(),
        supervisor=Supervisor(),
        random=random.Random(1),
        topic_defaults=TopicConfig(),
    )


def test_changes_of_two_brokers_are_both_kept() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        first, second = await opened(store), await opened(store)
        deltas: list[ImageDelta] = []
        second.subscribe(lambda image, delta: deltas.append(delta))

        def with_level(name: str, level: int, before: Mapping[str, int]) -> Mapping[str, int]:
            return {**before, name: level}

        await asyncio.gather(
            alter_features(first, lambda before: with_level("a", 1, before)),
            alter_features(second, lambda before: with_level("b", 2, before)),
            alter_features(first, lambda before: with_level("c", 3, before)),
        )
        third = await opened(store)
        for catalog in (first, second, third):
            await catalog.reached(third.image.revision)
            assert dict(catalog.image.features.levels) == {"a": 1, "b": 2, "c": 3}
        assert sum(delta.features for delta in deltas) == 3
        for catalog in (first, second, third):
            await catalog.close()

    asyncio.run(asyncio.wait_for(main(), 60))

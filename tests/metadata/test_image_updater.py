"""The image updater: it reloads after compaction, and reports every failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata import image_updater as following
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import encode_topic
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.image_updater import ImageUpdater
from millstream.metadata.store.memory import DirectLink, MemoryStore
from millstream.metadata.store.port import (
    CompactedError,
    Delete,
    MetadataStoreError,
    Put,
    UnavailableError,
    WatchEvents,
)
from millstream.metadata.store.sqlite import SqliteStore
from millstream.model.config import TopicConfig


def topic(name: str, number: int = 0) -> Put:
    return Put(f"topics/{name}", encode_topic(bytes([number, *name.encode()]).ljust(16), {}))


def test_compacted_history_causes_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db", SystemClock())
        follower = ImageUpdater(store)
        await store.transact([], [topic("kept"), topic("deleted"), topic("remade")])
        await follower.load()
        deltas: list[ImageDelta] = []
        follower.subscribe(lambda image, delta: deltas.append(delta))
        last = await store.transact(
            [], [Delete("topics/deleted"), topic("remade", 1), topic("new")]
        )
        watch = SqliteStore.watch

        async def compacted(
            self: SqliteStore, prefix: str, from_revision: int
        ) -> AsyncGenerator[WatchEvents, None]:
            monkeypatch.setattr(SqliteStore, "watch", watch)
            raise CompactedError(from_revision, from_revision + 1)
            yield  # pragma: no cover

        monkeypatch.setattr(SqliteStore, "watch", compacted)
        follower.start(Supervisor())
        await follower.reached(last.revision)
        assert len(deltas) == 1
        assert {record.name for record in deltas[0].created} == {"remade", "new"}
        assert {record.name for record in deltas[0].deleted} == {"deleted", "remade"}
        assert not deltas[0].changed
        # The updater applies later changes again.
        more = await store.transact([], [topic("more")])
        await follower.reached(more.revision)
        assert set(follower.image.topics) == {"kept", "remade", "new", "more"}
        await follower.close()
        await store.close()

    asyncio.run(main())


def test_a_subscriber_that_raises_stops_the_catalog_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def subscriber(image: ClusterImage, delta: ImageDelta) -> None:
        raise RuntimeError("bug in a subscriber")

    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db", SystemClock())
        catalog = await Catalog.open(
            store, supervisor=Supervisor(), random=random.Random(1), topic_defaults=TopicConfig()
        )
        catalog.subscribe(subscriber)
        outcome = await store.transact([], [topic("a")])
        error = await asyncio.wait_for(asyncio.shield(catalog.failed), 90)
        assert "bug in a subscriber" in str(error)
        with pytest.raises(MetadataStoreError, match="no longer kept up to date"):
            await catalog.reached(outcome.revision + 1)
        with pytest.raises(MetadataStoreError, match="no longer kept up to date"):
            await catalog.alter_broker_configs(1, lambda old: old)
        assert await store.get("configs/broker/1") is None
        await catalog.close()
        await store.close()

    asyncio.run(main())
    assert "task metadata-follower failed; the broker shuts down" in caplog.text


def test_a_malformed_value_fails_the_load_with_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db", SystemClock())
        await store.transact([], [Put("topics/broken", b"{")])
        follower = ImageUpdater(store)
        with pytest.raises(MetadataStoreError, match="topics/broken"):
            await follower.load()
        await store.close()

    asyncio.run(main())


def test_a_closed_store_stops_the_updater_with_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db", SystemClock())
        follower = ImageUpdater(store)
        await follower.load()
        follower.start(Supervisor())
        waiting = asyncio.create_task(follower.reached(99))
        await asyncio.sleep(0)
        await store.close()
        assert isinstance(await asyncio.wait_for(follower.failed, 90), MetadataStoreError)
        with pytest.raises(MetadataStoreError):
            await waiting
        await follower.close()

    asyncio.run(main())


class CutLink(DirectLink):
    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    async def request(self) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("disconnected")


def test_a_reload_retries_while_the_store_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_RELOAD_PAUSE_S", 0.01)

    async def main() -> None:
        data, link = MemoryStore(SystemClock()), CutLink()
        other = data.connect()
        await other.transact([], [topic("a")])
        follower = ImageUpdater(data.connect(link))
        await follower.load()
        last = await other.transact([], [topic("b")])
        data.compact()
        link.failures = 3
        follower.start(Supervisor())
        await asyncio.wait_for(follower.reached(last.revision), 90)
        assert set(follower.image.topics) == {"a", "b"}
        assert link.failures == 0
        await follower.close()

    asyncio.run(main())

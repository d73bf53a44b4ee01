"""The store in memory: the contract, connections, and links that delay and fail calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from millstream.metadata.store.memory import DirectLink, MemoryStore
from millstream.metadata.store.port import (
    CompactedError,
    MetadataStore,
    Put,
    StoreClosedError,
    UnavailableError,
    UncertainError,
)

sys.path.insert(0, str(Path(__file__).parent))
from harness.in_process.manual_clock import ManualClock
from harness.in_process.store_contract import StoreContract, collect


class TestContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _time(self) -> None:
        self.clock = ManualClock()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[MetadataStore]:
        self.data = MemoryStore(self.clock)
        connection = self.data.connect()
        yield connection
        await connection.close()

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        return self._open()

    async def pass_time(self, store: MetadataStore, milliseconds: int) -> None:
        self.clock.now += milliseconds / 1000

    async def compact(self, store: MetadataStore) -> None:
        self.data.compact()


def test_leases_expire_without_any_call() -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(clock).connect()
        lease = await store.grant(20)
        put = await store.transact([], [Put("a", b"1", lease)])
        watching = asyncio.create_task(collect(store, "a", put.revision + 1, 1))
        clock.now += 1
        assert [event.value for event in await watching] == [None]

    asyncio.run(main())


def test_connections_share_the_data_and_close_separately() -> None:
    async def main() -> None:
        data = MemoryStore(ManualClock())
        one, other = data.connect(), data.connect()
        watching = asyncio.create_task(collect(one, "", 1, 1))
        await one.transact([], [Put("a", b"1")])
        assert await other.get("a") == ("a", b"1", 1)
        assert len(await watching) == 1
        await one.close()
        with pytest.raises(StoreClosedError):
            await one.get("a")
        assert await other.get("a") is not None

    asyncio.run(main())


def test_history_is_bounded_by_transactions() -> None:
    async def main() -> None:
        store = MemoryStore(ManualClock(), history_max=3).connect()
        for n in range(5):
            await store.transact([], [Put("a", str(n).encode()), Put("b", b"")])
        with pytest.raises(CompactedError) as raised:
            await collect(store, "", 2, 1)
        assert raised.value.oldest == 3
        found = await collect(store, "a", 3, 3)
        assert [event.value for event in found] == [b"2", b"3", b"4"]

    asyncio.run(main())


class FailingLink(DirectLink):
    __slots__ = ("is_cut", "loses_answers")

    def __init__(self) -> None:
        self.is_cut = False
        self.loses_answers = False

    async def request(self) -> None:
        if self.is_cut:
            raise UnavailableError("disconnected")

    async def respond(self, changed: bool) -> None:
        if changed and self.loses_answers:
            raise UncertainError("the response is lost")


def test_a_link_blocks_calls_or_loses_their_responses() -> None:
    async def main() -> None:
        link = FailingLink()
        data = MemoryStore(ManualClock())
        store, other = data.connect(link), data.connect()
        link.is_cut = True
        with pytest.raises(UnavailableError):
            await store.transact([], [Put("a", b"1")])
        assert await other.get("a") is None
        link.is_cut, link.loses_answers = False, True
        with pytest.raises(UncertainError):
            await store.transact([], [Put("a", b"1")])
        assert await other.get("a") is not None

    asyncio.run(main())

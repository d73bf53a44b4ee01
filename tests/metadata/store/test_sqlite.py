"""The SQLite store: the contract, durability, group commit and failures."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from millstream.env.clock import SystemClock
from millstream.metadata.store.port import (
    CompactedError,
    Compare,
    MetadataStore,
    MetadataStoreError,
    Put,
    StoreClosedError,
)
from millstream.metadata.store.sqlite import SqliteStore
from millstream.metadata.store.sqlite_file import SqliteFile

sys.path.insert(0, str(Path(__file__).parent))
from harness.in_process.manual_clock import ManualClock
from harness.in_process.store_contract import StoreContract, collect

HISTORY_MAX = 4000


class TestContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "metadata.db"
        self.clock = ManualClock()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[MetadataStore]:
        store = await SqliteStore.open(self.path, self.clock, history_max=HISTORY_MAX)
        yield store
        await store.close()

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        return self._open()

    async def pass_time(self, store: MetadataStore, milliseconds: int) -> None:
        self.clock.now += milliseconds / 1000
        await store.get("any call makes the store check the clock")

    async def compact(self, store: MetadataStore) -> None:
        for start in range(0, 2 * HISTORY_MAX, 1000):
            puts = [Put(f"fill/{n}", b"") for n in range(start, start + 1000)]
            await store.transact([], puts)


def run(path: Path, scenario: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            store = await SqliteStore.open(path, SystemClock())
            try:
                await scenario(store)
            finally:
                await store.close()

    asyncio.run(main())


def test_everything_but_leased_keys_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def before(store: SqliteStore) -> None:
        lease = await store.grant(60_000)
        await store.transact([], [Put("kept", b"1"), Put("leased", b"1", lease)])

    async def after(store: SqliteStore) -> None:
        found = await store.range("")
        assert [(item.key, item.revision) for item in found.items] == [("kept", 1)]
        assert found.revision == 2
        assert await collect(store, "", 1, 3) == [
            ("kept", b"1", 1),
            ("leased", b"1", 1),
            ("leased", None, 2),
        ]

    run(path, before)
    run(path, after)


def test_deleted_history_stays_deleted_after_a_restart(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "metadata.db", history_max=10)
    for _ in range(30):
        file.begin()
        file.transact([], [Put("a", b"")])
        file.commit()
    file.close()
    file = SqliteFile(tmp_path / "metadata.db", history_max=10)
    with pytest.raises(CompactedError) as raised:
        file.events("", 1)
    kept = file.events("", raised.value.oldest)
    assert [event.revision for event in kept.events] == list(range(raised.value.oldest, 31))
    assert 10 <= len(kept.events) <= 13
    file.close()


def test_the_file_is_in_wal_mode_and_synced_on_commit(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "metadata.db", history_max=10)
    pragma = file._connection.execute
    assert pragma("PRAGMA journal_mode").fetchone() == ("wal",)
    assert pragma("PRAGMA synchronous").fetchone() == (2,)
    file.close()


def test_pending_transactions_share_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    commit = SqliteFile.commit

    def counted(file: SqliteFile) -> None:
        commits.append(file.revision)
        commit(file)

    async def scenario(store: SqliteStore) -> None:
        monkeypatch.setattr(SqliteFile, "commit", counted)
        calls = [store.transact([Compare("k", 0)], [Put("k", b"")]) for _ in range(200)]
        outcomes = await asyncio.gather(*calls)
        assert sum(outcome.succeeded for outcome in outcomes) == 1
        assert len(commits) < 100

    run(tmp_path / "metadata.db", scenario)


def test_a_failed_commit_undoes_the_whole_group_and_the_store_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: SqliteFile) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def scenario(store: SqliteStore) -> None:
        first = await store.transact([], [Put("a", b"1")])
        with monkeypatch.context() as patch:
            patch.setattr(SqliteFile, "commit", broken)
            calls = [store.transact([], [Put(f"k{n}", b"")]) for n in range(5)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(outcome, MetadataStoreError) for outcome in outcomes)
            assert "disk I/O error" in str(outcomes[0])
        assert [item.key for item in (await store.range("")).items] == ["a"]
        assert await store.transact([], [Put("b", b"2")]) == (True, first.revision + 1)

    run(tmp_path / "metadata.db", scenario)


def test_a_dead_thread_fails_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: SqliteStore, file: SqliteFile) -> None:
        raise RuntimeError("bug")

    async def scenario(store: SqliteStore) -> None:
        async def collect_events() -> None:
            async for _ in store.watch("", 10):
                raise AssertionError

        watching = asyncio.create_task(collect_events())
        await store.get("a")
        monkeypatch.setattr(SqliteStore, "_expire", broken)
        with pytest.raises(MetadataStoreError, match="bug"):
            await store.get("a")
        with pytest.raises(MetadataStoreError, match="bug"):
            await store.transact([], [Put("a", b"")])
        with pytest.raises(MetadataStoreError, match="bug"):
            await watching

    run(tmp_path / "metadata.db", scenario)


def test_a_lease_expires_without_any_call(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        lease = await store.grant(30)
        put = await store.transact([], [Put("a", b"", lease)])
        assert await collect(store, "", put.revision + 1, 1) == [("a", None, put.revision + 1)]

    run(tmp_path / "metadata.db", scenario)


def test_close_finishes_pending_calls_and_ends_watches(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def scenario(store: SqliteStore) -> None:
        watching = asyncio.create_task(collect(store, "never", 1, 1))
        puts = [asyncio.create_task(store.transact([], [Put(f"k{n}", b"")])) for n in range(10)]
        await asyncio.sleep(0)
        await store.close()
        assert all(outcome.succeeded for outcome in await asyncio.gather(*puts))
        with pytest.raises(StoreClosedError):
            await watching
        with pytest.raises(StoreClosedError):
            await store.get("a")

    run(path, scenario)


def test_a_transaction_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        puts = [Put(f"k{n}", b"") for n in range(store.changes_max + 1)]
        with pytest.raises(MetadataStoreError, match="may hold"):
            await store.transact([], puts)

    run(tmp_path / "metadata.db", scenario)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be read" * 50])
def test_a_file_that_is_no_database_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(MetadataStoreError, match=r"metadata\.db"):
        asyncio.run(SqliteStore.open(path, SystemClock()))


def test_a_file_of_another_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    SqliteFile(path, 10).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(MetadataStoreError, match="has format 99"):
        asyncio.run(SqliteStore.open(path, SystemClock()))


def test_a_second_process_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metadata.db"
    first = SqliteFile(path, 10)
    first.begin()
    first.commit()
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **options: connect(path, **{**options, "timeout": 0})
    )
    with pytest.raises(MetadataStoreError, match="locked"):
        SqliteFile(path, 10)
    first.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from millstream.env.clock import SystemClock
from millstream.metadata.store.sqlite import SqliteStore
from millstream.metadata.store.port import Put

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), SystemClock())
    async def write(name):
        n = 0
        while True:
            outcome = await store.transact([], [Put(f"{name}/{n}", b"x")])
            print(f"{name}/{n}", outcome.revision, flush=True)
            n += 1
    await asyncio.gather(*(write(name) for name in "abcd"))

asyncio.run(main())
"""


def test_acknowledged_transactions_survive_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acknowledged = [child.stdout.readline() for _ in range(100)]
    child.kill()
    acknowledged += child.stdout.read().splitlines(keepends=True)
    child.wait()
    child.stdout.close()
    expected = dict(line.split() for line in acknowledged if line.endswith("\n"))

    async def scenario(store: SqliteStore) -> None:
        found = await store.range("")
        kept = {item.key: str(item.revision) for item in found.items}
        assert expected.items() <= kept.items()
        assert found.revision == max(map(int, kept.values()))

    run(path, scenario)

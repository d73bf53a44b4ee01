"""The contract of every store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from millstream.client.dedup import Store, StoreError, postgres_store, record_once, sqlite_store
from millstream.client.dedup.redis_store import RedisStore
from millstream.client.dedup.sql_store import table_definition
from millstream.client.dedup.store import Claim

LONG = 600.0
SHORT = 0.05


def test_a_message_goes_from_claimed_to_done(store: Store) -> None:
    assert store.claim("m", "a", LONG) is Claim.TAKEN
    assert store.claim("m", "b", LONG) is Claim.BUSY
    assert not store.complete("m", "b", LONG)
    assert store.complete("m", "a", LONG)
    assert store.claim("m", "b", LONG) is Claim.DONE
    assert store.claim("other", "b", LONG) is Claim.TAKEN


def test_a_released_message_can_be_claimed(store: Store) -> None:
    assert store.claim("m", "a", LONG) is Claim.TAKEN
    store.release("m", "b")
    assert store.claim("m", "b", LONG) is Claim.BUSY
    store.release("m", "a")
    assert store.claim("m", "b", LONG) is Claim.TAKEN


def test_leases_and_processed_ids_expire(store: Store) -> None:
    assert store.claim("m", "a", SHORT) is Claim.TAKEN
    wait_until(lambda: store.claim("m", "b", LONG) is Claim.TAKEN, "the lease to end")
    assert not store.complete("m", "a", LONG)
    assert store.complete("m", "b", SHORT)
    wait_until(lambda: store.claim("m", "c", LONG) is Claim.TAKEN, "the memory to end")


def test_one_of_many_gets_a_message(new_store: Callable[[], Store]) -> None:
    stores = [new_store() for _ in range(4)]
    start = threading.Barrier(len(stores))
    taken: list[str] = []

    def grab(store: Store, token: str) -> None:
        start.wait(60)
        for number in range(50):
            if store.claim(f"m{number}", token, LONG) is Claim.TAKEN:
                taken.append(f"m{number}")

    threads = [
        threading.Thread(target=grab, args=(store, str(number)))
        for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(taken) == sorted(f"m{number}" for number in range(50))


def test_expired_rows_are_deleted(tmp_path: Path) -> None:
    path = str(tmp_path / "processed.db")
    store = sqlite_store(path)
    for number in range(20):
        store.claim(f"m{number}", "a", 0.001)
    store.claim("kept", "a", LONG)

    def rows() -> list[tuple[str]]:
        # Each store purges at its first completion.
        with closing(sqlite_store(path)) as fresh:
            fresh.complete("kept", "a", LONG)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT message_id FROM millstream_processed").fetchall()

    wait_until(lambda: rows() == [("kept",)], "expired rows to go")
    store.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sqlite_store("/no/such/folder/file.db"),
        lambda: postgres_store("postgresql://nobody@127.0.0.1:1/x"),
        lambda: RedisStore("redis://127.0.0.1:1/0"),
    ],
)
def test_a_store_that_cannot_be_reached_raises(make: Callable[[], Store]) -> None:
    with closing(make()) as store, pytest.raises(StoreError):
        store.claim("m", "a", LONG)


def test_a_message_is_recorded_in_the_transaction_of_the_application(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in table_definition():
            connection.execute(statement)
        assert record_once(connection, "m")
        connection.rollback()
        assert record_once(connection, "m")
        connection.commit()
        assert not record_once(connection, "m")
        assert record_once(connection, "other", ttl=-1)
        assert record_once(connection, "other")

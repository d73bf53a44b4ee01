"""A store of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from millstream.client.dedup import Store, postgres_store, sqlite_store
from millstream.client.dedup.redis_store import RedisStore

_numbers = count()


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a function that creates stores on the same data, as several processes have them."""
    if request.param == "sqlite":
        return lambda: sqlite_store(str(tmp_path / "processed.db"))
    if request.param == "postgresql":
        address = request.getfixturevalue("postgres").new_database()
        return lambda: postgres_store(address)
    address = request.getfixturevalue("redis_address")
    prefix = f"test-{next(_numbers)}:"
    return lambda: RedisStore(address, prefix)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses. The broker creates the topic at the first write."""
    return f"dedup-{next(_numbers)}"


@pytest.fixture
def store(new_store: Callable[[], Store]) -> Iterator[Store]:
    made = new_store()
    yield made
    made.close()

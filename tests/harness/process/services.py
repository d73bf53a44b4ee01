"""Database fixtures: one server of each kind for all tests of a process, started on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.process.postgres_process import PostgresProcess


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    from harness.process.postgres_process import PostgresProcess, require_postgres

    require_postgres()
    with PostgresProcess() as process:
        yield process


@pytest.fixture(scope="session")
def redis_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from harness.process.redis_process import RedisProcess, require_redis

    require_redis()
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process.address

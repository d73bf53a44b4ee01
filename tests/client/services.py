"""Databases and a broker as fixtures, for those tests of the client that need them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from harness.broker_process import BrokerProcess
from harness.postgres_process import PostgresProcess, require_postgres
from harness.redis_process import RedisProcess, require_redis


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    require_postgres()
    with PostgresProcess() as process:
        yield process


@pytest.fixture(scope="session")
def redis_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_redis()
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process.address


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"num.partitions": 3, "group.initial.rebalance.delay.ms": 0}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as process:
        yield process


_topics = count()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the broker makes the topic when it is written to."""
    return f"topic-{next(_topics)}"

"""The brokers for the client's tests: Millstream, and in soak runs Apache Kafka.

Each test that uses `bootstrap` runs once with each. The tests of one kind of broker share one
broker.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.process.broker_process import KEEPS_OLD_RECORDS, BrokerProcess
from harness.process.kafka_process import running_kafka
from millstream.client import Admin

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    # Members learn of each other by heartbeats.
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


#: Folders whose tests share servers. Tests of other folders share the servers of their folder.
GROUPS = {"dedup": "databases", "outbox": "databases"}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            folder = item.path.parent.name
            item.add_marker(pytest.mark.xdist_group(GROUPS.get(folder, folder)))


@pytest.fixture(
    scope="session", params=["millstream", pytest.param("kafka", marks=pytest.mark.soak)]
)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "kafka":
        with running_kafka(SETTINGS) as address:
            yield address
        return
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), {**KEEPS_OLD_RECORDS, **SETTINGS}
    ) as broker:
        yield broker.bootstrap
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for tests that stop it, or that need no other kind."""
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), {"num.partitions": 3, **SETTINGS}
    ) as process:
        yield process


@pytest.fixture
def name() -> Callable[[str], str]:
    """Return a function for names of topics, groups and ids that no other test uses."""
    return lambda kind: f"{kind}-{os.getpid()}-{next(_NUMBERS)}"


_NUMBERS = itertools.count()


@pytest.fixture
def topic(bootstrap: str, name: Callable[[str], str]) -> str:
    return new_topic(bootstrap, name, 1)


@pytest.fixture
def wide_topic(bootstrap: str, name: Callable[[str], str]) -> str:
    return new_topic(bootstrap, name, 4)


def new_topic(bootstrap: str, name: Callable[[str], str], partitions: int) -> str:
    made = name("topic")
    with Admin(bootstrap) as admin:
        admin.create_topic(made, partitions=partitions)
    return made

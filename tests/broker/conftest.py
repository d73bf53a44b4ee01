"""A broker process for the tests of a module, and a connection to it for each test.

A module whose broker needs settings or topics defines a `broker` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection

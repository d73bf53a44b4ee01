"""A broker shared by the tests of this folder, and raw clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.raw.raw_client import RawClient
from millstream.testing.broker import LocalBroker

Connect = Callable[[], RawClient]


@pytest.fixture
def connect(millstream_broker: LocalBroker) -> Iterator[Connect]:
    """Return a function that connects to the test's broker; connections are closed at the end."""
    made: list[RawClient] = []

    def make() -> RawClient:
        host, port = millstream_broker.bootstrap_servers.split(":")
        made.append(RawClient(host, int(port), timeout_s=60))
        return made[-1]

    yield make
    for client in made:
        client.close()

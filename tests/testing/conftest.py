"""A broker shared by the tests of this folder, and clients that do what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.raw_client import RawClient
from millstream.testing.broker import LocalBroker

Connect = Callable[[], RawClient]


@pytest.fixture
def connect(millstream_broker: LocalBroker) -> Iterator[Connect]:
    """Makes connections to the broker of the test; closed when it ends."""
    made: list[RawClient] = []

    def make() -> RawClient:
        host, port = millstream_broker.bootstrap_servers.split(":")
        made.append(RawClient(host, int(port), timeout_s=60))
        return made[-1]

    yield make
    for client in made:
        client.close()

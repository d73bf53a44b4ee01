"""A secure broker under attack, and the check that an attack has changed nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from harness.process.broker_process import wait_until
from harness.process.secure_process import SecureProcess

#: Bytes by which an attack may let the broker grow: buffers, caches and tables of bounded size.
GROWTH_BYTES_MAX = 150 * 2**20
SETTINGS = {
    # Handshakes and logins that stall end soon enough for a test.
    "ssl.handshake.timeout.ms": 3000,
    "connection.authentication.timeout.ms": 3000,
    "connection.failed.authentication.delay.ms": 20,
}


class Victim:
    """The broker, and its state before the attack."""

    def __init__(self, broker: SecureProcess) -> None:
        self.broker = broker
        self._process = psutil.Process(broker.pid)
        self._before = self._process.memory_info().rss

    def topics(self) -> set[str]:
        """Return all topics that a client with a password sees."""
        admin = AdminClient({**self.broker.properties("SASL_SSL"), "log_level": 0})
        return set(admin.list_topics(timeout=30).topics)

    def assert_unharmed(self) -> None:
        """Check that the broker serves clients, has grown little, and holds no connection."""
        assert self.broker.is_alive()
        assert self.topics() == set()
        wait_until(lambda: self._connections() <= 1, "connections of the attack to end", 30)
        growth = self._process.memory_info().rss - self._before
        assert growth < GROWTH_BYTES_MAX, f"the broker has grown by {growth >> 20} MiB"
        assert "Traceback" not in self.broker.log_text()

    def _connections(self) -> int:
        return sum(
            1
            for each in self._process.net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureProcess]:
    with SecureProcess(tmp_path_factory.mktemp("attack"), SETTINGS) as process:
        yield process


@pytest.fixture
def victim(broker: SecureProcess) -> Iterator[Victim]:
    found = Victim(broker)
    found.topics()
    yield found
    found.assert_unharmed()

"""An outbox in each database."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from client.outbox.outbox_home import OutboxHome
from harness.process.broker_process import BrokerProcess

_topics = count()


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def topic() -> str:
    """A name that no other test uses. The broker creates the topic at the first write."""
    return f"outbox-{next(_topics)}"


@pytest.fixture
def home(address: str, broker: BrokerProcess, tmp_path: Path) -> Iterator[OutboxHome]:
    """An outbox, and a broker to send to."""
    made = OutboxHome(address, broker.bootstrap, tmp_path)
    made.database.init(None, notify=True)
    yield made
    made.close()

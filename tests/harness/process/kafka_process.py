"""A one-node Apache Kafka for tests: the one of the benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def kafka_broker() -> Iterator[Any]:
    """Make a broker that is not started; its `folder` has `server.properties`.

    Skips the test without Kafka's jars."""
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    from bench.brokers import JARS, Kafka

    if not JARS.is_dir():
        pytest.skip("Apache Kafka's jars are missing: run scripts/setup-test-tools")
    broker = Kafka()
    try:
        yield broker
    finally:
        broker.remove()


@contextmanager
def running_kafka(settings: Mapping[str, object]) -> Iterator[str]:
    """Run a broker with these settings; yields its address."""
    with kafka_broker() as broker:
        file = broker.folder / "server.properties"
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        file.write_text(file.read_text() + lines)
        broker.start()
        yield broker.bootstrap

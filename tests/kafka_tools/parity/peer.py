"""The two brokers of the comparison: Apache Kafka and Millstream, of one node each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from harness.process.broker_process import BrokerProcess
from harness.process.kafka_process import kafka_broker

#: Settings of both brokers: groups rebalance at once, and internal topics are small.
_SETTINGS: Mapping[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
#: Settings that Kafka's start in these tests already has.
_SETTINGS_OF_KAFKA: Mapping[str, object] = {
    "node.id": 1,
    "num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@dataclass(slots=True)
class Peer:
    """One broker. `values` replace the placeholders in commands."""

    name: str
    bootstrap: str
    data: Path
    values: dict[str, str] = field(default_factory=dict)


@contextmanager
def kafka() -> Iterator[Peer]:
    # The broker runs for a minute: compiling optimised code would cost more than it saves.
    with patch.dict(os.environ, JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1"):
        yield from _kafka()


def _kafka() -> Iterator[Peer]:
    with kafka_broker() as broker:
        with (broker.folder / "server.properties").open("a") as file:
            file.write("".join(f"{name}={value}\n" for name, value in _SETTINGS.items()))
        broker.start()
        yield Peer("kafka", broker.bootstrap, broker.folder / "data")


@contextmanager
def millstream(folder: Path) -> Iterator[Peer]:
    with BrokerProcess(folder, {**_SETTINGS, **_SETTINGS_OF_KAFKA}) as broker:
        yield Peer("millstream", broker.bootstrap, broker.data)
        broker.stop()
        assert "Traceback" not in broker.log_text(), broker.log_text()

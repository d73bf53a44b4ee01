"""An outbox in a database of its own, with the writes, relays and queries of the tests."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from harness.process.broker_process import wait_until
from millstream.client.outbox import Outbox
from millstream.client.outbox.address import database_at
from millstream.client.outbox.schema import TABLE_DEFAULT
from millstream.client.outbox.source import Database

END_SECONDS_MAX = 120.0


class OutboxHome:
    """`address` has the form of the command line."""

    def __init__(self, address: str, bootstrap: str, folder: Path) -> None:
        self.address = address
        self.bootstrap = bootstrap
        self.log_path = folder / "relay.log"
        self.outbox = Outbox()
        self.relays: list[subprocess.Popen[bytes]] = []

    @property
    def database(self) -> Database:
        return database_at(self.address, TABLE_DEFAULT)

    def connect(self) -> Any:
        if self.address.startswith("sqlite"):
            return sqlite3.connect(self.address.removeprefix("sqlite:///"), timeout=60)
        return psycopg.connect(self.address)

    def write(self, topic: str, events: Sequence[tuple[str, str]]) -> None:
        """Write all events, keys and values, in one transaction."""
        with closing(self.connect()) as connection:
            for key, value in events:
                self.outbox.write(connection, topic, key=key, value=value)
            connection.commit()

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            rows = connection.execute(statement).fetchall()
            connection.rollback()
            return list(rows)

    def pending(self) -> int:
        found = self.query(f"SELECT count(*) FROM {TABLE_DEFAULT} WHERE sent_ms IS NULL")
        return int(found[0][0])

    def start_relay(self, *options: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("millstream")), "outbox", "relay"]
        command += ["--database", self.address, "-b", self.bootstrap, *options]
        kept = {name: text for name, text in os.environ.items() if "MILLSTREAM" not in name}
        with self.log_path.open("ab") as output:
            # A test runner in the background may ignore the signal.
            relay = subprocess.Popen(
                ["env", "--default-signal=INT", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=kept,
            )
        self.relays.append(relay)
        return relay

    def kill(self, relay: subprocess.Popen[bytes]) -> None:
        relay.kill()
        relay.wait()
        self.relays.remove(relay)

    def drain(self) -> None:
        """Send the pending events, and end."""
        relay = self.start_relay("--no-follow")
        assert relay.wait(END_SECONDS_MAX) == 0, self.said()
        self.relays.remove(relay)
        assert self.pending() == 0, self.said()

    def said(self) -> str:
        return self.log_path.read_text(errors="replace")[-6000:] if self.log_path.exists() else ""

    def wait_until_sent(self, seconds_max: float = 90.0) -> None:
        wait_until(lambda: self.pending() == 0, f"the relay to send\n{self.said()}", seconds_max)

    def close(self) -> None:
        for relay in list(self.relays):
            self.kill(relay)


def committed_records(bootstrap: str, topic: str) -> list[Any]:
    """Return all records that a read-committed consumer gets, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        partitions = list(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        deadline = time.monotonic() + END_SECONDS_MAX
        while left:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            for record in consumer.consume(10_000, timeout=1):
                if record.error() is None:
                    found.append(record)
                else:
                    assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
                    left.discard(record.partition())
    finally:
        consumer.close()
    return found


def values_by_key(bootstrap: str, topic: str) -> dict[str, list[str]]:
    """Return the values of each key, in the order of their partition."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in committed_records(bootstrap, topic):
        found[record.key().decode()].append(record.value().decode())
    return dict(found)

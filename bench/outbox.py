"""`python -m bench.outbox`: the rows per second that one relay moves from PostgreSQL to a topic.

PostgreSQL and the Millstream broker have their default settings, with fsync in PostgreSQL. The rows
are written first. The clock runs from the relay's start until nothing is pending. Then the topic
must have each row once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import psycopg

from bench.brokers import Millstream
from millstream.client import Admin, Consumer
from millstream.client.outbox.postgres import PostgresDatabase
from millstream.client.outbox.relay import Relay, RelaySettings
from millstream.client.outbox.schema import TABLE_DEFAULT

TESTS = str(Path(__file__).resolve().parents[1] / "tests")
PARTITIONS = 4


def fill(address: str, topic: str, rows: int, size: int) -> None:
    with psycopg.connect(address) as connection:
        connection.execute(
            f"INSERT INTO {TABLE_DEFAULT} (topic, key, value)"
            " SELECT %s, convert_to('key-' || n %% 1000, 'UTF8'),"
            " convert_to(rpad(n::text, %s, '.'), 'UTF8') FROM generate_series(1, %s) AS n",
            [topic, size, rows],
        )


def relayed(address: str, servers: str) -> float:
    """Return the seconds in which a relay sends all rows."""
    relay = Relay(
        PostgresDatabase(address),
        {"bootstrap.servers": servers},
        RelaySettings(drain=True),
        lambda _: None,
    )
    begin = time.perf_counter()
    relay.run()
    return time.perf_counter() - begin


def check(servers: str, topic: str, rows: int) -> None:
    found: list[bytes] = []
    with Consumer(servers, topics=[topic]) as consumer:
        while records := consumer.poll(10_000, timeout=5):
            found += [record.value or b"" for record in records]
    assert len(found) == len(set(found)) == rows, f"{len(found)} records from {rows} rows"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=100, help="size of a value in bytes")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sys.path.append(TESTS)
    from harness.process.postgres_process import PostgresProcess, require_postgres

    require_postgres()
    broker = Millstream()
    try:
        broker.start()
        with PostgresProcess(settings={}) as postgres:
            rates = []
            for turn in range(options.repeats):
                address, topic = postgres.new_database(), f"outbox-{turn}"
                PostgresDatabase(address).init(None, notify=True)
                with Admin(broker.bootstrap) as admin:
                    admin.create_topic(topic, partitions=PARTITIONS)
                fill(address, topic, options.rows, options.size)
                rates.append(options.rows / relayed(address, broker.bootstrap))
                check(broker.bootstrap, topic, options.rows)
                print(f"{options.rows} rows of {options.size} bytes: {rates[-1]:,.0f}/s")
            print(f"median {statistics.median(rates):,.0f}/s")
    finally:
        broker.remove()


if __name__ == "__main__":
    main()

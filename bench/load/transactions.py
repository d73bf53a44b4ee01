"""A librdkafka program: transactions of a fixed number of records, one after the other.

A commit's latency is that of EndTxn: all records are acknowledged before. The rate covers the time
from the first begin to the last commit. Prints one JSON line: records, seconds, and
percentiles of the commits in milliseconds, without the first seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

import confluent_kafka
from bench.load.open_loop import summary
from bench.load.option import add_connection, connection

WAIT_SECONDS_MAX = 60.0


class Loop:
    def __init__(self, producer: confluent_kafka.Producer, options: argparse.Namespace) -> None:
        self._producer = producer
        self._topic: str = options.topic
        self._partitions: int = options.partitions
        self._records: int = options.records
        self._payload = bytes(options.size)
        self.commit_ns: list[int] = []

    def run(self, seconds: float) -> int:
        """Run transactions until the time is over. Return their number; record commit times."""
        transactions = 0
        self.commit_ns = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.commit_ns.append(self._transact())
            transactions += 1
        return transactions

    def _transact(self) -> int:
        producer = self._producer
        producer.begin_transaction()
        for number in range(self._records):
            producer.produce(self._topic, self._payload, partition=number % self._partitions)
        unanswered = producer.flush(WAIT_SECONDS_MAX)
        if unanswered:
            raise SystemExit(f"{unanswered} records were not acknowledged")
        begin = time.monotonic_ns()
        producer.commit_transaction(WAIT_SECONDS_MAX)
        return time.monotonic_ns() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True, help="records in one transaction")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-seconds", type=float, required=True)
    options = parser.parse_args()
    producer = confluent_kafka.Producer(
        {
            **connection(options),
            "transactional.id": f"bench-{options.topic}",
            "linger.ms": 0 if options.records == 1 else 5,
            "queue.buffering.max.messages": 1_000_000,
            "socket.nagle.disable": True,
        }
    )
    producer.init_transactions(WAIT_SECONDS_MAX)
    gc.disable()
    loop = Loop(producer, options)
    loop.run(options.warm_up_seconds)
    begin = time.monotonic()
    transactions = loop.run(options.seconds)
    seconds = time.monotonic() - begin
    found = {"records": transactions * options.records, "seconds": seconds}
    print(json.dumps({**summary(loop.commit_ns), **found}))


if __name__ == "__main__":
    main()

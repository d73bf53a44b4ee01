"""A producer that writes to all partitions of a topic continuously, and records the ledger.

Values are `<key> <number>`. A key is used in one partition only: added partitions would move the
keys of a hashing producer and break their order.
"""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from harness.process.broker_process import wait_until

KEYS_PER_PARTITION = 3
TICK_SECONDS = 0.02
DRAIN_SECONDS_MAX = 60.0


class Feed:
    """Writes `records_per_second` over all partitions, from `start` until `stop`."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, records_per_second: int
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._per_tick = max(1, round(records_per_second * TICK_SECONDS))
        self._sent: dict[int, int] = {}
        self._acknowledged: dict[tuple[int, int], str] = {}
        self._failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 500,
        }
        self._producer = Producer(settings)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until all records are acknowledged."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        left = self._producer.flush(DRAIN_SECONDS_MAX)
        assert left == 0, f"{left} records were not acknowledged"
        assert not self._failures, self._failures[:3]

    def widen(self, partitions: int) -> None:
        """Write to new partitions of the topic as well."""

        def is_known() -> bool:
            found = self._producer.list_topics(self._topic, timeout=60).topics[self._topic]
            return len(found.partitions) >= partitions

        wait_until(is_known, f"{partitions} partitions in the metadata")
        self._partitions = partitions

    def ledger(self) -> dict[int, list[str]]:
        """Return the values of each partition in offset order; fail if the producer's order was
        not kept."""
        found: dict[int, list[str]] = {}
        for (partition, offset), value in sorted(self._acknowledged.items()):
            values = found.setdefault(partition, [])
            assert offset == len(values), f"no record has offset {len(values)} of {partition}"
            values.append(value)
        for partition, values in found.items():
            expected = [_value_of(partition, number) for number in range(len(values))]
            assert values == expected, f"partition {partition} is not in the order of sending"
        return found

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(TICK_SECONDS):
            for _ in range(self._per_tick):
                self._send(count % self._partitions)
                count += 1
            self._producer.poll(0)

    def _send(self, partition: int) -> None:
        number = self._sent.get(partition, 0)
        self._sent[partition] = number + 1
        value = _value_of(partition, number)
        key = value.partition(" ")[0]

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self._failures.append(f"{value}: {error}")
            else:
                self._acknowledged[partition, offset] = value

        self._producer.produce(self._topic, value, key, partition=partition, on_delivery=delivered)


def _value_of(partition: int, number: int) -> str:
    return f"{partition}-{number % KEYS_PER_PARTITION} {number // KEYS_PER_PARTITION}"

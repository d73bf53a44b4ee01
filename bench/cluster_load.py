"""Load on a cluster whose brokers die and return, and a client's view of it.

`SteadyProducer` sends at a fixed rate with default settings and records every acknowledgement.
`Observer` reads leaders, in-sync replicas and committed offsets.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import admin

from bench.cluster import Cluster
from millstream.process.readiness import wait_until

LISTEN_SECONDS_MAX = 60.0
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}


class Ack(NamedTuple):
    sent_at: float
    acknowledged_at: float


class SteadyProducer:
    """Sends one record at a time to the partitions of a topic in turn, inside a `with` block.

    It has librdkafka's default settings.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, rate: int, size: int = 1024
    ) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
        self._topic = topic
        self._numbers = itertools.cycle(range(partitions))
        self._pause_seconds = 1 / rate
        self._payload = bytes(size)
        self._is_done = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._listen)]
        self.acks: list[Ack] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_done.set()
        for thread in self._threads:
            thread.join()
        self._producer.flush(LISTEN_SECONDS_MAX)

    def _send(self) -> None:
        due = time.monotonic()
        while not self._is_done.is_set():
            due += self._pause_seconds
            time.sleep(max(due - time.monotonic(), 0.0))
            on_delivery = functools.partial(self._delivered, time.monotonic())
            number = next(self._numbers)
            try:
                self._producer.produce(
                    self._topic, self._payload, partition=number, on_delivery=on_delivery
                )
            except BufferError:
                self.errors.append("the producer's queue is full")

    def _listen(self) -> None:
        while not self._is_done.is_set():
            self._producer.poll(0.05)

    def _delivered(self, sent_at: float, error: Any, _message: Any) -> None:
        if error is None:
            self.acks.append(Ack(sent_at, time.monotonic()))
        else:
            self.errors.append(str(error))

    def first_ack_after(self, moment: float, seconds_max: float) -> float:
        """Return the time of the first acknowledgement of a record sent after a moment."""
        seen = len(self.acks)

        def found() -> Iterator[Ack]:
            return (ack for ack in itertools.islice(self.acks, seen, None) if ack.sent_at > moment)

        wait_until(lambda: any(True for _ in found()), "an acknowledgement", seconds_max)
        return min(ack.acknowledged_at for ack in found())

    def longest_wait_seconds(self) -> float:
        return max(ack.acknowledged_at - ack.sent_at for ack in self.acks)


class Observer:
    """Reads the metadata of any broker that responds."""

    def __init__(self, cluster: Cluster) -> None:
        self._admin = admin.AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        self._replicas = cluster.replicas

    def partitions(self, topic: str | None = None) -> Iterator[Any]:
        """Return the partitions of a topic, or of all topics."""
        try:
            found = self._admin.list_topics(topic, timeout=10).topics.values()
        except confluent_kafka.KafkaException:
            # No broker responds at the moment.
            return
        for each in found:
            yield from each.partitions.values()

    def leader(self, topic: str) -> int:
        return next((each.leader for each in self.partitions(topic)), -1)

    def is_whole(self, topic: str) -> bool:
        """Whether every partition has a leader and all replicas in sync."""
        found = list(self.partitions(topic))
        return bool(found) and all(
            each.leader >= 0 and len(each.isrs) == self._replicas for each in found
        )

    def wait_until_whole(self, topics: Iterable[str], seconds_max: float = 120.0) -> float:
        return sum(
            wait_until(functools.partial(self.is_whole, topic), f"{topic} in sync", seconds_max)
            for topic in topics
        )


def committed_records(cluster: Cluster, topic: str, partitions: int) -> int:
    """Return the number of committed records of a topic. A new client looks up the leaders."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "committed-records", **QUIET}
    )
    try:
        return sum(
            consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, number), timeout=LISTEN_SECONDS_MAX
            )[1]
            for number in range(partitions)
        )
    finally:
        consumer.close()

"""Reads and writes topics with librdkafka, as a second implementation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

_WAIT_S_MAX = 60.0


class Message(NamedTuple):
    """A record with its partition and offset."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class NewMessage(NamedTuple):
    """A record to write."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_messages(servers: str, topic: str, messages: Iterable[NewMessage]) -> None:
    # A retry must not duplicate records that a test counts.
    options = {"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True}
    producer = Producer(options)
    for each in messages:
        producer.produce(
            topic,
            each.value,
            each.key,
            partition=each.partition,
            timestamp=each.timestamp,
            headers=list(each.headers),
        )
    assert producer.flush(_WAIT_S_MAX) == 0


def read_messages(servers: str, topics: Sequence[str]) -> list[Message]:
    """Return all committed records of these topics, by topic, partition and offset."""
    with _reader(servers, topics) as consumer:
        found = _drained(consumer, len(consumer.assignment()))
        return sorted(found, key=lambda each: each[:3])


def wait_for_messages(
    servers: str, topics: Sequence[str], count: int, seconds_max: float = _WAIT_S_MAX
) -> None:
    """Return as soon as these topics have `count` committed records."""
    deadline = time.monotonic() + seconds_max
    seen = 0
    with _reader(servers, topics) as consumer:
        while seen < count:
            assert time.monotonic() < deadline, f"read {seen} of {count} records in {seconds_max} s"
            found = consumer.consume(count - seen, timeout=0.1)
            seen += sum(message.error() is None for message in found)


@contextmanager
def _reader(servers: str, topics: Sequence[str]) -> Iterator[Consumer]:
    """Return a consumer of all committed records from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "topic-content",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=_WAIT_S_MAX)
            .topics[topic]
            .partitions
        ]
        consumer.assign(places)
        yield consumer
    finally:
        consumer.close()


def _drained(consumer: Consumer, partitions: int) -> list[Message]:
    found: list[Message] = []
    ended: set[tuple[str, int]] = set()
    while len(ended) < partitions:
        message: Any = consumer.poll(_WAIT_S_MAX)
        assert message is not None, f"no message within {_WAIT_S_MAX} s"
        place = (message.topic(), message.partition())
        if message.error() is not None:
            ended.add(place)
            continue
        headers = tuple((name, value) for name, value in message.headers() or ())
        content: tuple[Any, ...] = (message.key(), message.value(), message.timestamp()[1], headers)
        found.append(Message(*place, message.offset(), *content))
    return found

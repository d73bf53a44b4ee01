"""What a topic has, as librdkafka reads and writes it: the other pair of eyes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

_WAIT_S_MAX = 60.0


class Message(NamedTuple):
    """A record and where it is."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class NewMessage(NamedTuple):
    """A record to be written."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_messages(servers: str, topic: str, messages: Iterable[NewMessage]) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
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
    """All committed records of these topics, by topic, partition and offset."""
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
        return sorted(_drained(consumer, len(places)), key=lambda each: each[:3])
    finally:
        consumer.close()


def _drained(consumer: Consumer, partitions: int) -> list[Message]:
    found: list[Message] = []
    ended: set[tuple[str, int]] = set()
    while len(ended) < partitions:
        message = consumer.poll(_WAIT_S_MAX)
        assert message is not None, f"nothing came for {_WAIT_S_MAX} s"
        place = (message.topic(), message.partition())
        if message.error() is not None:
            ended.add(place)
            continue
        headers = tuple((name, value) for name, value in message.headers() or ())
        content = (message.key(), message.value(), message.timestamp()[1], headers)
        found.append(Message(*place, message.offset(), *content))
    return found

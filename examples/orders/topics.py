"""Creates, fills and reads the topics of the example with librdkafka, independently of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from examples.orders.generator import Message
from millstream import Admin, Producer

#: The simulated timestamps are old, and retention must not delete the events.
_KEPT = {"retention.ms": "-1"}
#: The partitions and settings of each topic.
TOPICS = {
    "orders": (4, _KEPT),
    "customers": (1, {"cleanup.policy": "compact"}),
    "revenue": (1, _KEPT),
    "orders.dlq": (1, _KEPT),
}
_SILENCE_S_MAX = 60.0


def create(servers: str) -> None:
    with Admin(servers) as admin:
        for name, (partitions, config) in TOPICS.items():
            admin.create_topic(name, partitions=partitions, config=config)


def send(servers: str, topic: str, messages: Iterable[Message]) -> None:
    """Send messages. They are acknowledged when this returns."""
    with Producer(servers) as producer:
        for each in messages:
            producer.send(topic, each.value, key=each.key, timestamp=each.timestamp_ms)


def values(servers: str, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return the key and value of every committed record of a topic."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "orders-audit",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    with closing(Consumer(settings)) as consumer:
        pending = set(range(TOPICS[topic][0]))
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in pending])
        while pending:
            message = consumer.poll(_SILENCE_S_MAX)
            if message is None:
                raise TimeoutError(f"nothing came from {topic!r} in {_SILENCE_S_MAX} s")
            error = message.error()
            if error is None:
                yield message.key(), message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                pending.discard(message.partition())
            else:
                raise KafkaException(error)

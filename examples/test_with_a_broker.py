"""Tests with a real broker, by the fixtures of the pytest plugin.

pytest examples/test_with_a_broker.py
"""

from __future__ import annotations

from millstream import Consumer, LocalBroker, Producer


def copy(consumer: Consumer, producer: Producer, target: str) -> int:
    """Copy what a consumer reads to a topic: the code under test."""
    records = consumer.poll(timeout=10)
    for record in records:
        producer.send(target, record.value, key=record.key)
    producer.flush()
    return len(records)


def test_records_are_copied(
    millstream_producer: Producer, millstream_consumer: Consumer, millstream_topic: str
) -> None:
    millstream_producer.send(millstream_topic, "2 apples", key="alice").result()
    assert copy(millstream_consumer, millstream_producer, "copy") == 1


def test_a_lost_response_duplicates_nothing(
    millstream_broker: LocalBroker, millstream_producer: Producer, millstream_topic: str
) -> None:
    millstream_broker.drop_produce_answers(1)
    first = millstream_producer.send(millstream_topic, "once").result()
    second = millstream_producer.send(millstream_topic, "twice").result()
    assert (first.offset, second.offset) == (0, 1)

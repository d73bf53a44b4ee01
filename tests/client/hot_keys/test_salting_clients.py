"""Salting with a real broker: a hot key over several partitions, read in order again."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from millstream.client import Producer
from millstream.client.hot_keys.merging import OrderedMerge
from millstream.client.hot_keys.salting import Salting, turn_of
from millstream.client.producer.partitioner import by_key
from millstream.testing.broker import LocalBroker
from millstream.testing.plugin import TopicFactory

PARTITIONS = 6
RECORDS = 600


def test_a_hot_key_is_spread_and_read_in_order(
    millstream_broker: LocalBroker,
    millstream_producer: Producer,
    millstream_topic_factory: TopicFactory,
) -> None:
    topic = millstream_topic_factory(PARTITIONS)
    salting = Salting({b"hot"}, spread=4)
    for number in range(RECORDS):
        key = b"cold" if number % 3 == 0 else b"hot"
        place = salting.place(key, PARTITIONS)
        millstream_producer.send(
            topic, b"%d" % number, key=key, partition=place.partition, headers=place.headers
        )
    millstream_producer.send(topic, b"unsalted", key=b"cold")
    millstream_producer.flush(60)
    consumer = Consumer(
        {"bootstrap.servers": millstream_broker.bootstrap_servers, "group.id": topic}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    merge: OrderedMerge[tuple[bytes, bytes]] = OrderedMerge()
    places: dict[bytes, set[int]] = {b"hot": set(), b"cold": set()}
    read: list[tuple[bytes, bytes]] = []
    while len(read) < RECORDS + 1:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        key, value = message.key(), message.value()
        places[key].add(message.partition())
        read += merge.push(key, turn_of(message.headers()), (key, value))
    consumer.close()
    assert places[b"cold"] == {by_key(b"cold", PARTITIONS)}
    assert len(places[b"hot"]) == 4
    numbers = {b"hot": [], b"cold": []}
    for key, value in read:
        numbers[key].append(value)
    assert numbers[b"hot"] == [b"%d" % n for n in range(RECORDS) if n % 3]
    assert numbers[b"cold"] == [b"%d" % n for n in range(0, RECORDS, 3)] + [b"unsalted"]


def test_salting_is_a_partitioner_of_the_producer(
    millstream_broker: LocalBroker, millstream_topic_factory: TopicFactory
) -> None:
    topic = millstream_topic_factory(PARTITIONS)
    salting = Salting({b"hot"}, spread=3)
    places: dict[str, set[int]] = {}
    with Producer(millstream_broker.bootstrap_servers, partitioner=salting) as producer:
        for key in ("hot", "hot", "hot", "cold", "cold"):
            sent = producer.send(topic, "v", key=key).result(60)
            places.setdefault(key, set()).add(sent.partition)
    home = by_key(b"hot", PARTITIONS)
    assert places["hot"] == {(home + turn) % PARTITIONS for turn in range(3)}
    assert places["cold"] == {by_key(b"cold", PARTITIONS)}

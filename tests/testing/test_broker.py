"""The broker inside a test, with Millstream's own client."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer

from harness.process.broker_process import wait_until
from millstream.broker.config.broker_config import ConfigError
from millstream.client import Consumer as OwnConsumer
from millstream.client import Producer as OwnProducer
from millstream.model.error import BrokerError, ErrorCode
from millstream.testing.broker import LocalBroker


def next_message(consumer: Consumer) -> Message:
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None, message.error()
    return message


def test_a_restart_keeps_address_and_data(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        address = broker.bootstrap_servers
        broker.create_topic("kept", partitions=2)
        producer = Producer({"bootstrap.servers": address})
        producer.produce("kept", b"a", partition=1)
        assert producer.flush(60) == 0
        broker.restart()
        assert broker.bootstrap_servers == address
        producer.produce("kept", b"b", partition=1)
        assert producer.flush(60) == 0
    assert (tmp_path / "kept-1").is_dir()


def test_close_deletes_its_own_folder_and_releases_the_port() -> None:
    with LocalBroker() as broker:
        folder = broker.folder
        assert (folder / "meta.properties").exists()
        host, port = broker.bootstrap_servers.split(":")
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    broker.close()


def test_misuse_raises() -> None:
    broker = LocalBroker(settings={"log.segment.byte": 1})
    with pytest.raises(RuntimeError, match="no address"):
        _ = broker.bootstrap_servers
    with pytest.raises(RuntimeError, match="start it first"):
        broker.drop_connections()
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes"):
        broker.start()
    broker.close()
    with LocalBroker() as running:
        with pytest.raises(RuntimeError, match="already"):
            running.start()
        running.create_topic("once")
        with pytest.raises(BrokerError) as failure:
            running.create_topic("once")
        assert failure.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_producer_retries_after_transient_faults(
    millstream_broker: LocalBroker,
    millstream_producer: OwnProducer,
    millstream_consumer: OwnConsumer,
    millstream_topic: str,
) -> None:
    millstream_broker.fail_produces(2, "NOT_ENOUGH_REPLICAS")
    millstream_broker.drop_produce_answers(1)
    for number in range(5):
        sent = millstream_producer.send(millstream_topic, b"%d" % number)
        assert sent.result(60).offset == number
    millstream_broker.drop_connections()
    received = [record.value for record in itertools.islice(millstream_consumer, 5)]
    assert received == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_expired_member_rejoins(
    millstream_broker: LocalBroker,
    millstream_confluent_producer: Producer,
    millstream_topic: str,
    millstream_group: str,
    protocol: str,
) -> None:
    properties: dict[str, Any] = {
        "bootstrap.servers": millstream_broker.bootstrap_servers,
        "group.id": millstream_group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    if protocol == "classic":
        properties["heartbeat.interval.ms"] = 100
    lost: list[object] = []
    consumer = Consumer(properties)
    consumer.subscribe([millstream_topic], on_lost=lambda *_: lost.append(True))
    millstream_confluent_producer.produce(millstream_topic, b"before")
    assert next_message(consumer).value() == b"before"
    first = consumer.memberid()
    assert millstream_broker.expire_member(millstream_group) == first
    if protocol == "classic":
        with pytest.raises(LookupError, match="name the one"):
            millstream_broker.expire_member(millstream_group)
    wait_until(lambda: consumer.poll(0.05) is None and lost, "the member to notice")
    with pytest.raises(LookupError, match="no member 'nobody'"):
        millstream_broker.expire_member(millstream_group, "nobody")
    millstream_confluent_producer.produce(millstream_topic, b"after")
    values = []
    while b"after" not in values:
        values.append(next_message(consumer).value())
    consumer.close()


def test_a_missing_group_has_no_members(millstream_broker: LocalBroker) -> None:
    with pytest.raises(LookupError, match="'ghosts'"):
        millstream_broker.expire_member("ghosts")

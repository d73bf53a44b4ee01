"""Transactions of many records to many partitions, pipelined as each client does by default.

There are no faults. So every transaction ends as requested, and read_committed consumers see
exactly the committed records, in the order of sending.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from harness.process.brokers import Brokers
from transactions_clients.actor import reader_settings
from transactions_clients.program import Program
from transactions_clients.sender import Sending, run_sender
from transactions_clients.stable import quiet_end

#: In each transaction, each partition gets more than one batch of Java's default batch size.
SENDING = Sending(partitions=12, transactions=50, records=300, abort_every=5, value_bytes=1000)
CLIENTS = ("confluent", "java", "aiokafka", "kafka-python", "kafkajs")
READ_SECONDS_MAX = 60.0


@pytest.mark.parametrize("client", CLIENTS)
def test_every_transaction_ends_as_requested(
    brokers: Brokers, program_named: Callable[[str], Program], client: str
) -> None:
    check_sender(brokers, program_named(f"{client} sender"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_transaction_of_franz_go_ends_as_requested(
    brokers: Brokers, franz_sender: Program
) -> None:
    check_sender(brokers, franz_sender)


def check_sender(brokers: Brokers, program: Program) -> None:
    topic = f"sent-{uuid4().hex}"
    brokers.create_topic(topic, SENDING.partitions)
    run_sender(program, brokers.bootstrap, f"id of {topic}", topic, SENDING)
    for partition in range(SENDING.partitions):
        # The client may continue before the markers are written.
        quiet_end(brokers, topic, partition)
    found = read_committed(brokers.bootstrap, topic)
    for partition, values in enumerate(found):
        assert values == SENDING.committed(partition), f"partition {partition}"


def read_committed(bootstrap: str, topic: str) -> list[list[str]]:
    """Return the prefixes of the committed values per partition, in offset order."""
    consumer = Consumer(
        {**reader_settings(bootstrap, committed=True), "enable.partition.eof": True}
    )
    left = set(range(SENDING.partitions))
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    found: list[list[str]] = [[] for _ in left]
    deadline = time.monotonic() + READ_SECONDS_MAX
    while left:
        assert time.monotonic() < deadline, f"partitions {left} were not read to the end"
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                transaction, number, _ = message.value().decode().split(" ", 2)
                found[message.partition()].append(f"{transaction} {number}")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    consumer.close()
    return found

"""A producer with transactions and a consumer of confluent-kafka with few rights, and what learning
mode learns from them. On one broker and on three."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from typer.testing import CliRunner

from harness.in_process.principal_server import PrincipalServerSet, literal, prefixed
from harness.process.broker_process import wait_until
from millstream.cli.main import build
from millstream.model.acl import Operation, ResourceType

COUNTS = pytest.mark.parametrize("count", [1, 3], ids=["one broker", "three brokers"])
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TXN = ResourceType.TRANSACTIONAL_ID
WAIT_S = 30.0


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def started(tmp_path: Path, count: int) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path, count=count) as brokers:
        yield brokers


def config(brokers: PrincipalServerSet, user: str, **more: Any) -> dict[str, Any]:
    named = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": brokers.address(1), "client.id": f"as-{user}", **named}


def produce(brokers: PrincipalServerSet, user: str, topic: str, value: str) -> None:
    """Write one record in a transaction."""
    producer = Producer(config(brokers, user, transactional_id=f"{topic}-txn"))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(WAIT_S)


def consume(brokers: PrincipalServerSet, user: str, topic: str) -> set[str]:
    """Read the topic with a group, and commit."""
    consumer = Consumer(
        config(
            brokers,
            user,
            group_id=f"{topic}-{uuid.uuid4().hex[:4]}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
    )
    found: set[str] = set()
    try:
        consumer.subscribe([topic])

        def read() -> bool:
            message = consumer.poll(0.5)
            if message is None:
                return False
            error = message.error()
            if error is not None:
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED or error.fatal():
                    raise KafkaException(error)
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(error)
                return False
            found.add(message.value().decode())
            consumer.commit(message, asynchronous=False)
            return True

        wait_until(read, "a record")
    finally:
        consumer.close()
    return found


def check_strangers(brokers: PrincipalServerSet, topic: str) -> None:
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        produce(brokers, "mallory", topic, "denied")
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        consume(brokers, "mallory", topic)


@COUNTS
def test_clients_with_only_their_rights(started: PrincipalServerSet, name: str) -> None:
    with started.client(1) as admin:
        admin.create_topic(name, replication_factor=len(started.servers))
    started.grant("writer", Operation.WRITE, literal(TOPIC, name))
    started.grant("writer", Operation.WRITE, literal(TXN, f"{name}-txn"))
    started.grant("reader", Operation.READ, literal(TOPIC, name))
    started.grant("reader", Operation.READ, prefixed(GROUP, name))
    produce(started, "writer", name, "kept")
    assert consume(started, "reader", name) == {"kept"}
    check_strangers(started, name)
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        consume(started, "writer", name)


@COUNTS
def test_learned_acls_are_enough(tmp_path: Path, count: int, name: str) -> None:
    with PrincipalServerSet(tmp_path, count=count, authorizer_mode="learn") as brokers:
        with brokers.client(1) as admin:
            admin.create_topic(name, replication_factor=count)
        produce(brokers, "alice", name, "first")
        assert consume(brokers, "alice", name) == {"first"}
        learned = CliRunner().invoke(
            build(),
            ["acl", "learn", "--apply", "--merge-prefixes", "--yes", "-b", brokers.address(1)],
        )
        assert learned.exit_code == 0, learned.output
        brokers.enforce()
        produce(brokers, "alice", name, "second")
        check_strangers(brokers, name)
        assert "second" in {(record.value or b"").decode() for record in all_records(brokers, name)}


def all_records(brokers: PrincipalServerSet, topic: str) -> list[Any]:
    leader = brokers.record(topic).leader
    with brokers.client(leader) as client:
        return client.read_all(topic)

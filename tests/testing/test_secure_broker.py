"""The broker with TLS, users and ACLs inside a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream import Acl, Admin, Consumer, Job, MillstreamError, Producer, Worker
from millstream.model.acl import label
from millstream.model.error import UsageError
from millstream.security.acl.role import Role, parse_pattern, rules_of
from millstream.testing.secure_broker import SecureBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure"), users=("alice", "bob")) as secure:
        with Admin(secure.bootstrap_servers, **secure.options()) as admin:
            admin.create_topic("orders")
        yield secure


def test_rights_decide_what_a_user_may_do(broker: SecureBroker) -> None:
    servers = broker.bootstrap_servers
    with (
        pytest.raises(MillstreamError, match="TOPIC_AUTHORIZATION_FAILED"),
        Producer(servers, **broker.options("alice")) as producer,
    ):
        producer.send("orders", b"too early")
    acl = Acl(
        principal="User:alice", operation="write", resource_type="topic", resource_name="orders"
    )
    with Admin(servers, **broker.options()) as admin:
        assert admin.create_acls([acl]) == {acl: None}
    with Producer(servers, **broker.options("alice")) as producer:
        producer.send("orders", b"written")
    options = {"auto_offset_reset": "earliest", **broker.options()}
    with Consumer(servers, topics=["orders"], **options) as consumer:
        assert next(iter(consumer)).value == b"written"


def test_the_role_of_a_worker_is_enough_for_a_worker(broker: SecureBroker) -> None:
    servers = broker.bootstrap_servers
    rules = [
        rule
        for name in ("invoices", "billing")
        for rule in rules_of(Role.WORKER, parse_pattern(name))
    ]
    acls = [
        Acl(
            principal="User:bob",
            operation=label(rule.operation),
            resource_type=label(rule.resource_type),
            resource_name=rule.pattern.name,
            pattern_type=label(rule.pattern.pattern_type),
        )
        for rule in rules
    ]
    with Admin(servers, **broker.options()) as admin:
        admin.create_topic("invoices")
        assert not any(admin.create_acls(acls).values())
    worker = Worker(
        servers,
        topics=["invoices"],
        group_id="billing",
        attempts_max=2,
        backoff=0.01,
        transactional=True,
        **broker.options("bob"),
    )

    @worker.handler
    def fail(job: Job) -> None:
        raise ValueError("no such customer")

    with Producer(servers, **broker.options("bob")) as producer:
        producer.send("invoices", b"to nobody")
    options = {"auto_offset_reset": "earliest", **broker.options("bob")}
    with (
        worker,
        Consumer(servers, topics=["invoices.dlq"], group_id="billing", **options) as letters,
    ):
        assert next(iter(letters)).value == b"to nobody"


def test_a_wrong_password_does_not_get_in(broker: SecureBroker) -> None:
    properties = {**broker.properties("alice"), "sasl.password": "guessed", "log_level": 0}
    with pytest.raises(KafkaException):
        AdminClient(properties).list_topics(timeout=2)


def test_an_unknown_user_is_named(broker: SecureBroker) -> None:
    with pytest.raises(UsageError, match="there are admin, alice, bob"):
        broker.options("carol")


def test_files_with_secrets_belong_to_their_owner(broker: SecureBroker, tmp_path: Path) -> None:
    folder = broker.ca_file.parent
    for name in ("users", "broker.pem", "broker.key", "ca.key"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name

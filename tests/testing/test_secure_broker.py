"""The broker with TLS, users and ACLs inside a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream import Acl, Admin, Consumer, MillstreamError, Producer
from millstream.model.error import UsageError
from millstream.testing.secure_broker import SecureBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure")) as secure:
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


def test_a_wrong_password_does_not_get_in(broker: SecureBroker) -> None:
    properties = {**broker.properties("alice"), "sasl.password": "guessed", "log_level": 0}
    with pytest.raises(KafkaException):
        AdminClient(properties).list_topics(timeout=2)


def test_an_unknown_user_is_named(broker: SecureBroker) -> None:
    with pytest.raises(UsageError, match="there are admin, alice"):
        broker.options("carol")


def test_files_with_secrets_belong_to_their_owner(broker: SecureBroker, tmp_path: Path) -> None:
    folder = broker.ca_file.parent
    for name in ("users", "broker.pem", "broker.key", "ca.key"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name

"""Brokers log in to each other: by each mechanism, again before a login ends, and with a wrong
password."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from harness.in_process.server_set import HOST, ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient, records_of, values_batch
from millstream.broker.login.peer_login import PeerLogin
from millstream.env.network import SystemNetwork
from millstream.net.peer_network import PeerNetwork
from millstream.protocol.connection_setting import Login
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.metadata import MetadataRequest

MODULE = "org.example.AnyLoginModule"


@contextmanager
def secure_brokers(folder: Path, mechanism: str, **more: str) -> Iterator[ServerSet]:
    users = folder / "users"
    users.write_text("# the brokers\nbroker:broker-secret\n")
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0,INTERNAL://{HOST}:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "bootstrap.users.file": str(users),
        f"listener.name.internal.{mechanism.lower()}.sasl.jaas.config": (
            f'{MODULE} required username="broker" password="broker-secret";'
        ),
        **more,
    }
    with ServerSet(folder, **settings) as brokers:
        yield brokers


def replicate(brokers: ServerSet, topic: str) -> None:
    """Write to a topic with three replicas, and wait for all of them."""
    with brokers.client(1) as client:
        client.create_topic(topic, replication_factor=3)
    wait_until(lambda: len(brokers.record(topic).isr) == 3, "all replicas")
    with brokers.client(brokers.record(topic).leader) as client:
        assert client.produce(topic, values_batch(b"v"), acks=-1).error_code == 0
        assert [each.value for each in records_of(client.fetch(topic, 0).records)] == [b"v"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_followers_log_in_to_their_leader(tmp_path: Path, mechanism: str) -> None:
    with secure_brokers(tmp_path, mechanism) as brokers:
        replicate(brokers, "t")
        authentication = brokers.services(1).authentication
        assert authentication is not None
        assert authentication.counters.succeeded["INTERNAL"] > 0
        assert not authentication.counters.failed


def test_connections_are_replaced_before_their_login_expires(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    more = {"connections.max.reauth.ms": "1500"}
    with secure_brokers(tmp_path, "SCRAM-SHA-512", **more) as brokers:
        replicate(brokers, "t")
        found = [brokers.services(each).authentication for each in (1, 2, 3)]
        counters = [each.counters for each in found if each is not None]
        before = [each.succeeded["INTERNAL"] for each in counters]
        wait_until(
            lambda: all(
                each.succeeded["INTERNAL"] > count + 3
                for each, count in zip(counters, before, strict=True)
            ),
            "several logins of each broker",
        )
        replicate(brokers, "u")
        assert len(brokers.record("t").isr) == 3
        assert not any(each.expired for each in counters)
    assert [each.getMessage() for each in caplog.records] == []


def test_all_brokers_have_one_secret_for_unknown_users(tmp_path: Path) -> None:
    with secure_brokers(tmp_path, "SCRAM-SHA-256") as brokers:
        found = [brokers.services(each).authentication for each in (1, 2, 3)]
        secrets = {each.credentials.fake_secret for each in found if each is not None}
        assert [len(each) for each in secrets] == [32]


def test_a_wrong_password_is_an_error_of_the_connection(tmp_path: Path) -> None:
    with secure_brokers(tmp_path, "SCRAM-SHA-256") as brokers:
        port = brokers.servers[1].ports["INTERNAL"]

        async def connect(password: str) -> None:
            login = PeerLogin(Login("SCRAM-SHA-256", "broker", password), "test", Random(1))
            network = PeerNetwork(SystemNetwork(), log_in=login.log_in)
            peer = await Peer.connect(network, HOST, port, "test", 10.0)
            peer.close()

        asyncio.run(connect("broker-secret"))
        with pytest.raises(PeerError, match="invalid credentials"):
            asyncio.run(connect("wrong"))


def test_a_client_without_login_gets_nothing(tmp_path: Path) -> None:
    with (
        secure_brokers(tmp_path, "SCRAM-SHA-256") as brokers,
        RawClient(HOST, brokers.servers[1].ports["INTERNAL"]) as client,
    ):
        client.send(MetadataRequest(topics=[]), 12, has_response=False)
        assert client.is_closed_within(10)

"""One connection of the protocol client: a real broker, and servers that misbehave."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.in_process.server_set import HOST, ServerSet
from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.broker_connection import BrokerConnection, tls_context
from millstream.protocol.connection_setting import Address, ConnectionSettings, Login, Tls
from millstream.protocol.error import ConnectionLost, SettingError
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.push_telemetry import PushTelemetryRequest

SETTINGS = ConnectionSettings((), request_timeout_ms=30_000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    folder: Path = tmp_path_factory.mktemp("broker-connection")
    with ServerSet(folder, 1) as running:
        yield Address(HOST, running.servers[1].ports["PLAINTEXT"])


@contextmanager
def server(respond: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Serve one connection: read its first request, then call `respond`."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                respond(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(HOST, listener.getsockname()[1])
        thread.join(30)


def test_responses_arrive_in_the_order_of_requests(address: Address) -> None:
    connection = BrokerConnection(address, SETTINGS)
    connection.send(MetadataRequest(topics=[]))
    connection.send(MetadataRequest(topics=[]))
    assert not connection.is_idle
    first = connection.receive(MetadataResponse, is_kept=False)
    second = connection.receive(MetadataResponse, is_kept=False)
    assert [row.node_id for row in first.brokers] == [row.node_id for row in second.brokers] == [1]
    assert connection.is_idle
    connection.close()
    assert connection.is_closed


def test_the_highest_version_of_both_sides_is_used(address: Address) -> None:
    connection = BrokerConnection(address, SETTINGS)
    newest = connection.version(MetadataRequest)
    assert newest == MetadataRequest.versions[1]
    assert connection.version(MetadataRequest, newest - 1) == newest - 1
    with pytest.raises(BrokerError) as caught:
        connection.version(PushTelemetryRequest)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    connection.close()


def test_a_login_at_a_broker_without_sasl_is_rejected(address: Address) -> None:
    login = Login("PLAIN", "user", "password")
    with pytest.raises(BrokerError, match=r"has no SASL: set security\.protocol") as caught:
        BrokerConnection(address, dataclasses.replace(SETTINGS, login=login))
    assert caught.value.code is ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "the broker closed the connection"),
        (b"\0\0\0\x10half", "the broker closed the connection"),
        (b"HTTP/1.1 400 Bad Request", "is it a Kafka broker"),
        (b"\0\0\0\x04\0\0\0\x63", "expected response 1, received 99"),
        (b"\0\0\0\x04\0\0\0\x01", "its response cannot be decoded"),
    ],
)
def test_a_server_that_is_no_broker_is_reported(sent: bytes, reason: str) -> None:
    with (
        server(lambda peer: peer.sendall(sent)) as address,
        pytest.raises(ConnectionLost, match=reason),
    ):
        BrokerConnection(address, SETTINGS)


def test_a_server_that_does_not_respond_in_time_is_reported() -> None:
    is_over = threading.Event()
    settings = dataclasses.replace(SETTINGS, request_timeout_ms=20)
    with server(lambda _: bool(is_over.wait(30))) as address:
        with pytest.raises(ConnectionLost, match="no response within 20 ms"):
            BrokerConnection(address, settings)
        is_over.set()


def test_a_server_without_tls_is_reported() -> None:
    settings = dataclasses.replace(SETTINGS, tls=Tls())
    with (
        server(lambda peer: peer.sendall(b"plain text")) as address,
        pytest.raises(ConnectionLost, match="failed: "),
    ):
        BrokerConnection(address, settings)


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_a_missing_file_is_named_with_its_setting(tmp_path: Path, name: str) -> None:
    tls = Tls(**{f"{name}_path": str(tmp_path / "missing.pem")})
    with pytest.raises(SettingError, match=rf"ssl\.{name}\.location is .*missing\.pem"):
        tls_context(tls)

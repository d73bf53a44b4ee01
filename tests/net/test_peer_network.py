"""Connections to other brokers, with and without TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from harness.process.tls_process import TlsHome
from millstream.env.disk import SystemDisk
from millstream.env.network import SystemNetwork
from millstream.net.peer_network import PeerNetwork
from millstream.security.tls_context import client_context, server_context
from millstream.security.tls_material import TlsOptions, read_material

HOST = "127.0.0.1"


class Receiver(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.received.set_result(bytes(self.buffer[:count]))


def contexts(folder: Path, **more: object) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    options = TlsOptions(
        keystore_location=str(folder / "broker.pem"),
        truststore_location=str(folder / "ca.pem"),
        **more,  # type: ignore[arg-type]
    )
    material = read_material(options, SystemDisk())
    return server_context(options, material), client_context(options, material)


async def greet(server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> bytes:
    """Return what a peer receives first from a server."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, HOST, 0, ssl=server)
    port = listener.sockets[0].getsockname()[1]
    receiver = Receiver()
    network = PeerNetwork(SystemNetwork(), lambda: client)
    try:
        transport = await network.connect(HOST, port, lambda: receiver)
        found = await asyncio.wait_for(receiver.received, 10)
        transport.abort()
        return found
    finally:
        listener.close()


def test_without_tls() -> None:
    assert asyncio.run(greet(None, None)) == b"hello"


def test_with_tls(tmp_path: Path) -> None:
    TlsHome(tmp_path)
    assert asyncio.run(greet(*contexts(tmp_path))) == b"hello"


def test_the_host_name_is_verified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = TlsHome(tmp_path)
    home.authority.issue("broker", hosts=["other.example"], days=1)
    with pytest.raises(OSError, match="certificate is not valid for"):
        asyncio.run(greet(*contexts(tmp_path)))
    assert "no TLS connection to the broker at 127.0.0.1:" in caplog.text
    caplog.set_level(logging.WARNING)
    assert asyncio.run(greet(*contexts(tmp_path, verifies_host=False))) == b"hello"

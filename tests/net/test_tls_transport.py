"""TLS of a listener, over real sockets on one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from harness.process.tls_process import TlsHome
from harness.raw.tls_client import KeyUpdateClient
from millstream.env.clock import SystemClock
from millstream.env.disk import SystemDisk
from millstream.env.network import SystemNetwork
from millstream.model.failure import CallbackKind
from millstream.model.principal import ANONYMOUS, Principal
from millstream.net.connection import WRITE_BUFFER_BYTES_MAX, Connection
from millstream.net.gate import ConnectionLimits, Gate
from millstream.net.listener import Acceptor
from millstream.net.rejection import Rejections
from millstream.net.tls_transport import SILENT_BYTES_MAX, HandshakeFailure
from millstream.security.tls_context import server_context
from millstream.security.tls_material import ClientAuth, TlsOptions, read_material

HOST = "127.0.0.1"
_LENGTH = struct.Struct(">i")


class Range:
    """A file range with a file of its own."""

    def __init__(self, path: Path, position: int, length: int) -> None:
        self._file = path.open("rb")
        self.position = position
        self._length = length
        self.releases = 0

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self) -> bytes:
        raise AssertionError("a range is not read whole")

    def failed(self, error: OSError) -> None: ...

    def release(self) -> None:
        self.releases += 1
        self._file.close()


class Echo:
    """Responds to each frame by `respond`; by default with the frame itself."""

    def __init__(self, connection: Connection, world: World) -> None:
        self.connection = connection
        self.world = world
        world.handlers.append(self)
        self.is_closed = False

    def receive(self, frame: memoryview) -> None:
        self.connection.send(self.world.respond(bytes(frame)))

    def closed(self) -> None:
        self.is_closed = True

    def is_idle(self) -> bool:
        return True


class World:
    """A listener with TLS."""

    def __init__(self, folder: Path, limits: ConnectionLimits, **options: Any) -> None:
        self.tls = TlsHome(folder)
        self._options = TlsOptions(
            keystore_location=str(folder / "broker.pem"),
            truststore_location=self.tls.ca,
            **options,
        )
        self.gate = Gate(limits)
        self.acceptor = Acceptor(SystemNetwork(), SystemClock(), self.gate)
        self.handlers: list[Echo] = []
        self.respond: Callable[[bytes], list[Any]] = lambda frame: [
            _LENGTH.pack(len(frame)) + frame
        ]
        self.principals: list[Principal] = []
        self.port = 0

    def context(self) -> ssl.SSLContext:
        return server_context(self._options, read_material(self._options, SystemDisk()))

    def identify(self, certificate: bytes | None) -> Principal:
        if certificate is None:
            return ANONYMOUS
        if b"mallory" in certificate:
            raise ValueError("mallory has no name")
        return Principal("User", "known")

    async def start(self) -> None:
        _, self.port = await self.acceptor.bind(HOST, 0, lambda each: Echo(each, self), self)
        await self.acceptor.start_accepting()

    async def stop(self) -> None:
        await self.acceptor.stop_accepting()
        self.acceptor.close_connections()
        await self.acceptor.drained(2)

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            HOST, self.port, ssl=context or self.tls.context(), server_hostname=HOST
        )

    async def call(self, frame: bytes, context: ssl.SSLContext | None = None) -> bytes:
        reader, writer = await self.connect(context)
        writer.write(_LENGTH.pack(len(frame)) + frame)
        try:
            (size,) = _LENGTH.unpack(await reader.readexactly(4))
        except BaseException:
            writer.transport.abort()
            raise
        found = await reader.readexactly(size)
        writer.close()
        await writer.wait_closed()
        return found

    def failures(self) -> dict[str, int]:
        return dict(self.gate.counters.handshake_failures)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    def run(
        scenario: Callable[[World], Awaitable[None]],
        limits: ConnectionLimits | None = None,
        **options: Any,
    ) -> None:
        async def main() -> None:
            world = World(tmp_path, limits or ConnectionLimits(), **options)
            await world.start()
            try:
                await scenario(world)
            finally:
                await world.stop()
            await until(lambda: world.gate.connections == 0)
            assert world.gate.handshakes == 0
            assert world.gate.reserved_bytes == 0

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main())

    return run


def test_frames_of_any_size(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        for size in (1, 5, 16_384, 70_000, 300_000, 3_000_000):
            frame = os.urandom(size)
            assert await world.call(frame) == frame
        await until(lambda: world.gate.connections == 0)
        assert all(handler.is_closed for handler in world.handlers)
        assert not world.failures()

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_many_frames_on_one_connection(run: Callable[..., None], version: ssl.TLSVersion) -> None:
    async def scenario(world: World) -> None:
        context = world.tls.context()
        context.maximum_version = version
        reader, writer = await world.connect(context)
        frames = [os.urandom(1 + number * 97 % 5000) for number in range(500)]
        writer.write(b"".join(_LENGTH.pack(len(each)) + each for each in frames))
        for frame in frames:
            (size,) = _LENGTH.unpack(await reader.readexactly(4))
            assert await reader.readexactly(size) == frame
        writer.close()

    run(scenario)


def test_a_large_file_is_not_buffered(run: Callable[..., None], tmp_path: Path) -> None:
    size = 40_000_000
    data = os.urandom(1_000_000) * 40
    file = tmp_path / "data"
    file.write_bytes(b"xxx" + data)

    async def scenario(world: World) -> None:
        ranges: list[Range] = []

        def respond(frame: bytes) -> list[Any]:
            ranges.append(Range(file, 3, size))
            return [_LENGTH.pack(size + 4), b"head", ranges[-1]]

        world.respond = respond
        reader, writer = await world.connect()
        writer.write(_LENGTH.pack(1) + b"x" + _LENGTH.pack(1) + b"y")
        await until(lambda: len(ranges) >= 1)
        connection = world.handlers[0].connection
        transport = connection._transport
        assert transport is not None
        assert transport.get_extra_info("socket") is None
        biggest = 0
        for _ in range(2):
            (_found,) = _LENGTH.unpack(await reader.readexactly(4))
            assert await reader.readexactly(4) == b"head"
            left = memoryview(data)
            while left:
                part = await reader.read(min(len(left), 1 << 20))
                assert left[: len(part)] == part
                left = left[len(part) :]
                biggest = max(biggest, transport.get_write_buffer_size())
        assert biggest < 2_000_000
        assert [each.releases for each in ranges] == [1, 1]
        world.respond = lambda frame: [_LENGTH.pack(len(frame)), frame]
        writer.write(_LENGTH.pack(1) + b"z")
        assert await reader.readexactly(5) == _LENGTH.pack(1) + b"z"
        writer.close()

    run(scenario)


def test_a_client_that_reads_nothing_stops_being_read(
    run: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(10_000_000))
    ranges: list[Range] = []

    async def scenario(world: World) -> None:
        def respond(frame: bytes) -> list[Any]:
            ranges.append(Range(file, 0, 10_000_000))
            return [_LENGTH.pack(10_000_000), ranges[-1]]

        world.respond = respond
        _reader, writer = await world.connect()
        writer.transport.pause_reading()
        for _ in range(20):
            writer.write(_LENGTH.pack(1) + b"x")
            await asyncio.sleep(0.01)
        assert len(ranges) < 5
        writer.transport.abort()
        await until(lambda: world.gate.connections == 0)
        assert all(each.releases == 1 for each in ranges)

    run(scenario)


def test_small_responses_without_a_reader_are_bounded(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        answered = 0

        def respond(frame: bytes) -> list[Any]:
            nonlocal answered
            answered += 1
            return [bytes(1_000_000)]

        world.respond = respond
        _reader, writer = await world.connect()
        writer.transport.pause_reading()
        for _ in range(40):
            writer.write(_LENGTH.pack(1) + b"x")
            await asyncio.sleep(0.005)
        assert answered < 30
        transport = world.handlers[0].connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < WRITE_BUFFER_BYTES_MAX + 2_000_000
        writer.transport.abort()

    run(scenario)


def test_the_certificate_names_the_client(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        await world.call(b"x")
        await world.call(b"x", world.tls.context("alice"))
        names = [str(each.connection.principal) for each in world.handlers]
        assert names == ["User:ANONYMOUS", "User:known"]

    run(scenario, client_auth=ClientAuth.REQUESTED)


def test_a_handshake_ends_although_its_observer_raises(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[str, ...]] = []

        def observe(*event: str) -> None:
            seen.append(event)
            raise RuntimeError("the observer is broken")

        world.gate.on_failed_handshake = observe
        reader, writer = await asyncio.open_connection(HOST, world.port)
        writer.write(b"not TLS")
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not world.acceptor._handshakes)
        ((listener, address, failure, reason),) = seen
        assert (listener, address, failure) == ("", HOST, "not_tls")
        assert "does not speak TLS" in reason
        assert world.gate.failures.counts[CallbackKind.CONNECTION] == 1

    run(scenario)


def _reject_the_broker(port: int) -> None:
    with socket.create_connection((HOST, port)) as plain, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(plain, server_hostname=HOST)


def test_failed_handshakes(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        good = world.tls.context("alice")

        async def fails(context: ssl.SSLContext, failure: str) -> None:
            count = world.failures().get(failure, 0)
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await world.call(b"x", context)
            await until(lambda: world.failures().get(failure, 0) == count + 1)

        await fails(world.tls.context(), HandshakeFailure.NO_CERTIFICATE)
        await fails(world.tls.context("mallory"), HandshakeFailure.PRINCIPAL)
        old = world.tls.context("alice")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            old.minimum_version = ssl.TLSVersion.TLSv1
        old.set_ciphers("ALL:@SECLEVEL=0")
        await fails(old, HandshakeFailure.PROTOCOL)
        # asyncio sends no alert.
        await fails(ssl.create_default_context(), HandshakeFailure.CLOSED)
        await asyncio.to_thread(_reject_the_broker, world.port)
        await until(lambda: world.failures().get(HandshakeFailure.REJECTED) == 1)
        world.gate.rejections = Rejections()
        reader, writer = await asyncio.open_connection(HOST, world.port)
        writer.write(bytes((0, 0, 0, 10)) + b"not TLS...")
        assert await reader.read() == b""
        writer.close()
        assert world.failures()[HandshakeFailure.NOT_TLS] == 1
        assert await world.call(b"x", good) == b"x"
        await until(lambda: world.gate.connections == 0)

    with caplog.at_level(logging.WARNING):
        run(scenario, client_auth=ClientAuth.REQUIRED)
    for text in (
        "the client has no certificate, but ssl.client.auth requires one",
        "mallory has no name",
        "no version of TLS",
        "the client rejects the certificate of this broker",
        "the client does not speak TLS: set its security.protocol to SSL",
    ):
        assert text in caplog.text
    assert "127.0.0.1" in caplog.text


def test_half_open_handshakes_are_limited_and_time_out(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        sockets = [socket.create_connection((HOST, world.port)) for _ in range(30)]
        await until(lambda: world.gate.counters.refused["max.connections.per.ip"] == 10)
        assert world.gate.connections == world.gate.handshakes == 20
        await until(lambda: world.gate.connections == 0)
        assert world.failures() == {HandshakeFailure.TIMEOUT: 20}
        for each in sockets:
            each.close()
        assert await world.call(b"x") == b"x"

    run(scenario, ConnectionLimits(connections_per_address_max=20, handshake_ms_max=300))


def test_handshakes_in_progress_are_limited(run: Callable[..., None]) -> None:
    """At the limit the oldest handshake ends, so that stalled clients cannot keep others out."""

    async def scenario(world: World) -> None:
        sockets = [socket.create_connection((HOST, world.port)) for _ in range(12)]
        await until(lambda: world.failures().get(HandshakeFailure.LIMIT, 0) == 7)
        assert await world.call(b"x") == b"x"
        sockets[0].settimeout(20)
        with suppress(ConnectionResetError):
            assert sockets[0].recv(1) == b""
        sockets[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            sockets[-1].recv(1)
        assert world.failures() == {HandshakeFailure.LIMIT: 8}
        for each in sockets:
            each.close()
        await until(lambda: world.gate.connections == 0)
        assert world.failures()[HandshakeFailure.CLOSED] == 4
        assert world.gate.rejections.counts["handshake"] == 8
        assert await world.call(b"x") == b"x"

    run(scenario, ConnectionLimits(handshakes_max=5))


def test_key_updates_are_served_until_there_are_too_many(run: Callable[..., None]) -> None:
    """Each key update makes the server derive keys, and may demand a response."""

    def flood(port: int) -> None:
        client = KeyUpdateClient(HOST, port)
        try:
            records = client.key_updates(100)
            assert len(records) < SILENT_BYTES_MAX
            client.socket.sendall(records + client.data(_LENGTH.pack(1) + b"x"))
            assert client.socket.recv(1)
            with pytest.raises(OSError):  # noqa: PT011, PT012  # whichever meets the end
                for _ in range(200):
                    client.socket.sendall(client.key_updates(1000))
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(65_536):
                    pass
                raise ConnectionAbortedError("the broker has closed the connection")
        finally:
            client.close()

    async def scenario(world: World) -> None:
        await asyncio.to_thread(flood, world.port)
        await until(lambda: world.gate.connections == 0)
        assert world.gate.counters.closed == {"malformed": 1}

    run(scenario)


def test_a_shutdown_ends_open_connections_and_handshakes(run: Callable[..., None]) -> None:
    async def scenario(world: World) -> None:
        half_open = socket.create_connection((HOST, world.port))
        reader, writer = await world.connect()
        await until(lambda: world.gate.connections == 2)
        await world.stop()
        # The client's end of TLS meets a closed socket.
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        half_open.close()
        writer.close()

    run(scenario)

"""Responses with file ranges over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from millstream.env.clock import SystemClock
from millstream.net.connection import WRITE_BUFFER_BYTES_MAX, Connection
from millstream.net.file_sender import Item
from millstream.net.gate import ConnectionLimits, Gate

SIZE = 24 * 1024 * 1024


class Range:
    """A part of a file; counts the ranges that are not released."""

    alive = 0

    def __init__(self, descriptor: int, position: int, length: int) -> None:
        self._descriptor = descriptor
        self.position = position
        self._length = length
        self._is_released = False
        Range.alive += 1

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> bytes:
        return os.pread(self._descriptor, self._length, self.position)

    def release(self) -> None:
        assert not self._is_released, "released twice"
        self._is_released = True
        Range.alive -= 1


class Responder:
    """Responds to each frame as the frame says."""

    def __init__(self, connection: Connection, response: Callable[[bytes], list[Item]]) -> None:
        self.connection = connection
        self.response = response
        self.frames: list[bytes] = []
        self.is_closed = False

    def receive(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.connection.send(self.response(bytes(frame)))

    def is_idle(self) -> bool:
        return True

    def closed(self) -> None:
        self.is_closed = True


class Home:
    """A server of `Connection`s, and the file that they send."""

    def __init__(self, path: Path) -> None:
        self.data = os.urandom(SIZE)
        path.write_bytes(self.data)
        self.descriptor = os.open(path, os.O_RDWR)
        self.handlers: list[Responder] = []
        self.clock = SystemClock()
        self.gate = Gate(ConnectionLimits())
        self.asked = asyncio.Event()
        self.lost = asyncio.Event()

    def response(self, frame: bytes) -> list[Item]:
        """Return the response to a frame: `r` for a range between two buffers, `b` for a buffer."""
        self.asked.set()
        if frame == b"b":
            return [b"small;"]
        return [b"head;", Range(self.descriptor, 100, SIZE - 200), bytearray(b";tail")]

    def expected(self, frames: bytes) -> bytes:
        large = b"head;" + self.data[100 : SIZE - 100] + b";tail"
        return b"".join(b"small;" if frame == ord("b") else large for frame in frames)

    def _handler(self, connection: Connection) -> Responder:
        self.handlers.append(Responder(connection, self.response))
        return self.handlers[-1]

    async def connect(self) -> tuple[asyncio.Server, socket.socket]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self.gate, self.clock, self._handler, lambda _: self.lost.set()),
            "127.0.0.1",
            0,
        )
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        return server, client


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def read_all(client: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        piece = await loop.sock_recv(client, 1 << 20)
        if not piece:
            break
        data += piece
    return bytes(data)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_in_loop


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "file")
    yield home
    os.close(home.descriptor)
    assert Range.alive == 0


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("frames", [b"r", b"br", b"rb", b"bbrbrrb"])
def test_buffers_and_ranges_leave_in_order(run: Run, home: Home, frames: bytes) -> None:
    async def main() -> None:
        server, client = await home.connect()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"".join(frame(bytes([each])) for each in frames))
        expected = home.expected(frames)
        assert await read_all(client, len(expected)) == expected
        # The connection still works.
        await loop.sock_sendall(client, frame(b"b"))
        assert await read_all(client, 6) == b"small;"
        client.close()
        await home.lost.wait()
        server.close()

    run(main())


def test_a_range_waits_until_the_transport_is_empty(run: Run, home: Home) -> None:
    """The responses before it are larger than a socket's buffer."""
    big = os.urandom(SIZE)

    async def main() -> None:
        server, client = await home.connect()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, frame(b"b"))
        assert await read_all(client, 6) == b"small;"
        handler = home.handlers[0]
        handler.connection.send([big])
        handler.connection.send(home.response(b"r"))
        handler.connection.send([b"last"])
        expected = big + home.expected(b"r") + b"last"
        assert await read_all(client, len(expected)) == expected
        await loop.sock_sendall(client, frame(b"b"))
        assert await read_all(client, 6) == b"small;"
        client.close()
        await home.lost.wait()
        server.close()

    run(main())


def test_requests_are_not_read_while_responses_are_pending(run: Run, home: Home) -> None:
    async def main() -> None:
        server, client = await home.connect()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, frame(b"r"))
        await home.asked.wait()
        handler = home.handlers[0]
        assert SIZE > 2 * WRITE_BUFFER_BYTES_MAX
        await loop.sock_sendall(client, frame(b"b"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler.frames == [b"r"]
        expected = home.expected(b"rb")
        assert await read_all(client, len(expected)) == expected
        client.close()
        await home.lost.wait()
        server.close()

    run(main())


def test_queued_responses_are_sent_before_a_close(run: Run, home: Home) -> None:
    async def main() -> None:
        server, client = await home.connect()
        await asyncio.get_running_loop().sock_sendall(client, frame(b"r"))
        await home.asked.wait()
        home.handlers[0].connection.close("test")
        expected = home.expected(b"r")
        assert await read_all(client, len(expected) + 1) == expected
        await home.lost.wait()
        client.close()
        server.close()

    run(main())


def test_a_client_that_disconnects_releases_the_range(run: Run, home: Home) -> None:
    async def main() -> None:
        server, client = await home.connect()
        await asyncio.get_running_loop().sock_sendall(client, frame(b"r"))
        await home.asked.wait()
        assert Range.alive == 1
        client.close()
        await home.lost.wait()
        assert home.handlers[0].is_closed
        server.close()

    run(main())


def test_a_truncated_file_closes_the_connection(run: Run, home: Home) -> None:
    async def main() -> None:
        server, client = await home.connect()
        os.ftruncate(home.descriptor, 1000)
        await asyncio.get_running_loop().sock_sendall(client, frame(b"r"))
        assert len(await read_all(client, SIZE)) < 2000
        await home.lost.wait()
        client.close()
        server.close()

    run(main())

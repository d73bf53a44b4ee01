"""Many connections at once, from many addresses of the loopback network, with bounded time.

A broker may slow down or reject the connections of an address that fails often. So an attack comes
from many addresses, except where a test is about one address.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from struct import Struct

from harness.process.broker_process import HOST

CONNECTIONS_MAX = 100
STEP_S_MAX = 10.0
RESPONSE_BYTES_MAX = 1 << 20
_LENGTH = Struct(">i")


class Line:
    """One connection of an attacker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def send_frame(self, body: bytes) -> None:
        self._writer.write(_LENGTH.pack(len(body)) + body)

    async def receive_frame(self) -> bytes | None:
        """Return a response; None if the broker has closed the connection."""
        try:
            async with asyncio.timeout(STEP_S_MAX):
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                assert 0 <= size <= RESPONSE_BYTES_MAX
                return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def until_closed(self) -> bytes:
        """Return what the broker sends until it closes the connection."""
        try:
            async with asyncio.timeout(STEP_S_MAX):
                return await self._reader.read(RESPONSE_BYTES_MAX)
        except ConnectionError:
            return b""

    def end_input(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.transport.abort()


def source_address(number: int) -> str:
    """Return an address of the loopback network, other than the clients'."""
    return f"127.{1 + number % 200}.{number // 200 % 250}.{1 + number // 50_000 % 250}"


async def connect(
    port: int, number: int, context: ssl.SSLContext | None = None, source: str | None = None
) -> Line:
    local = (source or source_address(number), 0)
    server_hostname = HOST if context is not None else None
    reader, writer = await asyncio.open_connection(
        HOST, port, local_addr=local, ssl=context, server_hostname=server_hostname
    )
    return Line(reader, writer)


def attack(
    port: int, count: int, strike: Callable[[Line, random.Random], Awaitable[None]], seed: int = 1
) -> None:
    """Run `strike` on `count` connections, a bounded number at a time. A connection that the broker
    rejects or resets is over; anything else that a strike raises fails the test."""

    async def one(number: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                line = await connect(port, number)
            except ConnectionError:
                return
            try:
                await strike(line, random.Random(f"{seed} {number}"))
            except ConnectionError:
                pass
            finally:
                line.close()

    async def all_of_them() -> None:
        gate = asyncio.Semaphore(CONNECTIONS_MAX)
        for begin in range(0, count, 1000):
            numbers = range(begin, min(count, begin + 1000))
            await asyncio.gather(*(one(number, gate) for number in numbers))

    asyncio.run(all_of_them())

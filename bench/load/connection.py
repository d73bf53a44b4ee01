"""An asyncio connection for load programs with thousands of clients in one process.

It sends any request of `millstream.wire` and returns the response as a future.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import Any, cast

from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.schema import codec

FIND_SECONDS_MAX = 60.0
_LENGTH = struct.Struct(">i")


class Connection(asyncio.Protocol):
    """A connection with pipelined requests. Pending ones fail if the broker closes it."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._correlation_id = 0
        self._waiting: dict[int, tuple[Any, int, asyncio.Future[Any]]] = {}

    @classmethod
    async def open(cls, bootstrap: str) -> Connection:
        host, _, port = bootstrap.partition(":")
        _, made = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return made

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def call(self, request: Any, version: int) -> asyncio.Future[Any]:
        assert self._transport is not None
        self._correlation_id += 1
        name = type(request).__name__.removesuffix("Request") + "Response"
        response = getattr(sys.modules[type(request).__module__], name)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = (response, version, future)
        body = codec(type(request), version).encode(request)
        frame = frame_request(request.api_key, version, self._correlation_id, "load", body)
        self._transport.write(b"".join(cast("list[bytes]", frame)))
        return future

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            self._answer(frame)

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the broker closed the connection"))

    def _answer(self, frame: bytes) -> None:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        response, version, future = self._waiting.pop(correlation_id)
        _, position = parse_response_header(frame, response.api_key, version)
        if not future.done():
            future.set_result(codec(response, version).decode(frame, position))


async def find_coordinator(bootstrap: str, group: str) -> None:
    """Look up the coordinator, with retries: the first request creates the offsets topic."""
    connection = await Connection.open(bootstrap)
    async with asyncio.timeout(FIND_SECONDS_MAX):
        while True:
            found = await connection.call(FindCoordinatorRequest(coordinator_keys=[group]), 4)
            if found.coordinators[0].error_code == 0:
                break
            await asyncio.sleep(0.2)
    connection.close()

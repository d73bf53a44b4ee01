"""A connection to another broker: sends requests and receives their responses, in order.

Brokers use this client among themselves. The caller fixes the API versions, because all brokers of
a cluster have the same ones. Several requests may be in progress; a broker responds in their order.

Each response has a buffer of its own, allocated when its length is known and at most
`response_bytes_max` long. A decoded response may refer to the buffer for as long as it exists.

A lost connection, and a response that is unexpected, too long or too late, closes the connection.
Every request in progress then fails with a `PeerError`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar, cast

from millstream.env.disk import Buffer
from millstream.env.network import Network
from millstream.model.sentinel import INT32_MAX
from millstream.net.peer_network import LoginEndedError
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import Message, codec

_LENGTH: Final = Struct(">i")
RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024

_Response = TypeVar("_Response", bound=Message)


class PeerError(Exception):
    """The other broker is unreachable, or its response is invalid or late."""


class _Call(NamedTuple):
    response: type[Message]
    version: int
    correlation_id: int
    future: asyncio.Future[Any]


class Peer(asyncio.BufferedProtocol):
    """One connection, opened by `connect`."""

    __slots__ = (
        "_calls",
        "_client_id",
        "_correlation_id",
        "_filled",
        "_frame",
        "_is_length",
        "_response_bytes_max",
        "_transport",
        "closed",
        "is_replaced",
        "on_progress",
    )

    def __init__(self, client_id: str, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._client_id = client_id
        self._response_bytes_max = response_bytes_max
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        #: Requests in progress, oldest first.
        self._calls: deque[_Call] = deque()
        #: The buffer that is being filled: a length, then the frame of that length.
        self._frame = bytearray(_LENGTH.size)
        self._is_length = True
        self._filled = 0
        self.closed = False
        #: Whether the connection was closed because its login ends: the other broker is alive.
        self.is_replaced = False
        #: Called when a response has arrived, or the connection has ended. It wakes a caller with
        #: several requests in progress without a callback on each.
        self.on_progress: Callable[[], None] = lambda: None

    @classmethod
    async def connect(
        cls, network: Network, host: str, port: int, client_id: str, timeout_s: float
    ) -> Peer:
        """Open a connection. Raises PeerError."""
        peer = cls(client_id)
        try:
            async with asyncio.timeout(timeout_s):
                await network.connect(host, port, lambda: peer)
        except (OSError, TimeoutError) as error:
            peer.close()
            raise PeerError(f"{host}:{port} can't be reached: {error or 'timeout'}") from error
        return peer

    def send(
        self, request: Message, version: int, response: type[_Response]
    ) -> asyncio.Future[_Response]:
        """Send a request; return a future of its response, which may fail with PeerError."""
        future: asyncio.Future[_Response] = asyncio.get_running_loop().create_future()
        if self._transport is None or self.closed:
            future.set_exception(PeerError("the connection is closed"))
            return future
        self._correlation_id = (self._correlation_id + 1) & INT32_MAX
        self._calls.append(_Call(response, version, self._correlation_id, future))
        body = codec(type(request), version).encode(request)
        segments = frame_request(
            request.api_key, version, self._correlation_id, self._client_id, body
        )
        self._transport.writelines(cast("list[Buffer]", segments))
        return future

    async def call(
        self, request: Message, version: int, response: type[_Response], timeout_s: float
    ) -> _Response:
        """Send a request and wait for its response. Raises PeerError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.send(request, version, response)
        except TimeoutError as error:
            self.close()
            raise PeerError(f"no response within {timeout_s} s") from error

    def close(self) -> None:
        self._fail(PeerError("the connection was closed"))

    def _fail(self, error: PeerError) -> None:
        self.closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
                # Mark the exception as retrieved: the caller may no longer wait.
                call.future.exception()
        self.on_progress()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._filled < len(self._frame):
            return
        frame, self._filled = self._frame, 0
        try:
            if self._is_length:
                self._frame = bytearray(self._checked(_LENGTH.unpack(frame)[0]))
                self._is_length = False
            else:
                self._frame = bytearray(_LENGTH.size)
                self._is_length = True
                self._receive(memoryview(frame))
        except DecodeError as error:
            self._fail(PeerError(f"invalid response: {error}"))

    def _checked(self, size: int) -> int:
        if not _LENGTH.size <= size <= self._response_bytes_max:
            raise DecodeError(f"a response of {size} bytes")
        return size

    def _receive(self, frame: memoryview) -> None:
        if not self._calls:
            raise DecodeError("no request is in progress")
        call = self._calls[0]
        correlation_id, position = parse_response_header(frame, call.response.api_key, call.version)
        if correlation_id != call.correlation_id:
            raise DecodeError(f"it is for request {correlation_id}, not {call.correlation_id}")
        response = codec(call.response, call.version).decode(frame, position)
        self._calls.popleft()
        if not call.future.done():
            call.future.set_result(response)
        self.on_progress()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_replaced = isinstance(exc, LoginEndedError)
        self._fail(PeerError(f"the connection was lost: {exc or 'closed by the other side'}"))

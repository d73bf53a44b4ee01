"""A connection to another broker: requests out, their answers in, in order.

The small client that brokers use among themselves. Versions are fixed by the caller (brokers of a
cluster speak the same ones), so nothing is negotiated. Several requests may be under way; a broker
answers in the order in which it was asked.

An answer's bytes are one buffer of their own, made when its length is known and bounded by
`answer_bytes_max`; a decoded answer may refer to it for as long as it likes.

Anything that is not as it should be (a lost connection, an unknown answer, one that is too long or
too late) ends the connection and every call under way with a `PeerError`.
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
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import Message, codec

_LENGTH: Final = Struct(">i")
ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024

_Response = TypeVar("_Response", bound=Message)


class PeerError(Exception):
    """The other broker can't be reached or does not answer as it should."""


class _Call(NamedTuple):
    response: type[Message]
    version: int
    correlation_id: int
    future: asyncio.Future[Any]


class Peer(asyncio.BufferedProtocol):
    """Made by `connect`."""

    __slots__ = (
        "_answer_bytes_max",
        "_calls",
        "_client_id",
        "_correlation_id",
        "_filled",
        "_frame",
        "_is_length",
        "_transport",
        "closed",
        "on_progress",
    )

    def __init__(self, client_id: str, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._client_id = client_id
        self._answer_bytes_max = answer_bytes_max
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        #: Requests without an answer yet, oldest first.
        self._calls: deque[_Call] = deque()
        #: What is being received: a length, then the frame of that length.
        self._frame = bytearray(_LENGTH.size)
        self._is_length = True
        self._filled = 0
        self.closed = False
        #: Called when an answer is there, or the connection has ended. A caller with several
        #: requests under way is woken by it without a callback on each.
        self.on_progress: Callable[[], None] = lambda: None

    @classmethod
    async def connect(
        cls, network: Network, host: str, port: int, client_id: str, timeout_s: float
    ) -> Peer:
        """Raises PeerError."""
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
        """Send a request; resolved with its answer, or failed with a PeerError."""
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
        """Send a request and wait for its answer. Raises PeerError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.send(request, version, response)
        except TimeoutError as error:
            self.close()
            raise PeerError(f"no answer within {timeout_s} s") from error

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
                # A caller may have given up on it.
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
            self._fail(PeerError(f"the answer makes no sense: {error}"))

    def _checked(self, size: int) -> int:
        if not _LENGTH.size <= size <= self._answer_bytes_max:
            raise DecodeError(f"an answer of {size} bytes")
        return size

    def _receive(self, frame: memoryview) -> None:
        if not self._calls:
            raise DecodeError("it was not asked for")
        call = self._calls[0]
        correlation_id, position = parse_response_header(frame, call.response.api_key, call.version)
        if correlation_id != call.correlation_id:
            raise DecodeError(f"it is for request {correlation_id}, not {call.correlation_id}")
        answer = codec(call.response, call.version).decode(frame, position)
        self._calls.popleft()
        if not call.future.done():
            call.future.set_result(answer)
        self.on_progress()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(PeerError(f"the connection was lost: {exc or 'closed by the other side'}"))

"""The client that brokers use among themselves, against correct and faulty servers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from harness.in_process.replica_set import run, until
from harness.process.broker_process import free_port
from millstream.env.network import SystemNetwork
from millstream.replication.peer import Peer, PeerError
from millstream.wire.framing import frame_response, parse_request_header
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.schema import codec

HOST = "127.0.0.1"
VERSION = 18
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> tuple[int, FetchRequest]:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    header = parse_request_header(frame)
    assert header.client_id == "test"
    return header.correlation_id, codec(FetchRequest, VERSION).decode(frame, header.body_position)


def answer_to(correlation_id: int, response: FetchResponse) -> bytes:
    body = codec(FetchResponse, VERSION).encode(response)
    return b"".join(frame_response(FetchRequest.api_key, VERSION, correlation_id, body))  # type: ignore[arg-type]


async def with_peer(serve: Serve, use: Callable[[Peer], Awaitable[None]]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    peer = await Peer.connect(SystemNetwork(), HOST, port, "test", 5.0)
    try:
        await use(peer)
    finally:
        peer.close()
        server.close()
        await server.wait_closed()


def call(peer: Peer, session_id: int = 0, timeout_s: float = 5.0) -> Awaitable[FetchResponse]:
    return peer.call(FetchRequest(session_id=session_id), VERSION, FetchResponse, timeout_s)


def test_responses_match_their_requests_for_any_split_of_bytes() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = [await read_request(reader) for _ in range(3)]
        data = b"".join(
            answer_to(correlation_id, FetchResponse(session_id=request.session_id + 1))
            for correlation_id, request in requests
        )
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
        await reader.read()

    async def use(peer: Peer) -> None:
        calls = [
            peer.send(FetchRequest(session_id=n), VERSION, FetchResponse) for n in (10, 20, 30)
        ]
        assert [(await each).session_id for each in calls] == [11, 21, 31]

    run(with_peer(serve, use))


def test_records_of_a_response_outlive_the_next_response() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for content in (b"first" * 50_000, b"other" * 50_000):
            correlation_id, _ = await read_request(reader)
            row = FetchResponse.Topic.Partition(records=content)
            topic = FetchResponse.Topic(topic_id=bytes(16), partitions=[row])
            writer.write(answer_to(correlation_id, FetchResponse(responses=[topic])))
        await reader.read()

    async def use(peer: Peer) -> None:
        first, second = await call(peer), await call(peer)
        assert first.responses[0].partitions[0].records == b"first" * 50_000
        assert second.responses[0].partitions[0].records == b"other" * 50_000

    run(with_peer(serve, use))


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ii", 4, 99),
        struct.pack(">iib", 20, 1, 0) + b"\xff" * 15,
    ],
    ids=["negative", "short", "long", "of another request", "undecodable"],
)
def test_malformed_responses_end_the_connection_and_every_call(nonsense: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(nonsense)
        await reader.read()

    async def use(peer: Peer) -> None:
        calls = [peer.send(FetchRequest(), VERSION, FetchResponse) for _ in range(2)]
        for each in calls:
            with pytest.raises(PeerError):
                await each
        assert peer.closed
        with pytest.raises(PeerError):
            await call(peer)

    run(with_peer(serve, use))


def test_a_response_without_a_request_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_to(1, FetchResponse()))
        await reader.read()

    async def use(peer: Peer) -> None:
        await until(lambda: peer.closed, "the connection to end")

    run(with_peer(serve, use))


def test_a_call_without_a_response_times_out() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(peer: Peer) -> None:
        with pytest.raises(PeerError, match="no response"):
            await call(peer, timeout_s=0.05)
        assert peer.closed

    run(with_peer(serve, use))


def test_a_lost_connection_ends_the_calls() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async def use(peer: Peer) -> None:
        with pytest.raises(PeerError, match="lost"):
            await call(peer)

    run(with_peer(serve, use))


def test_an_unreachable_broker_is_reported() -> None:
    async def scenario() -> None:
        with pytest.raises(PeerError, match="can't be reached"):
            await Peer.connect(SystemNetwork(), HOST, free_port(), "test", 5.0)

    run(scenario())

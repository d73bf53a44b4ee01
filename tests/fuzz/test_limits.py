"""Limits for one client: time, connections, memory. Beyond them it is disconnected or waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import (
    Closed,
    RawClient,
    encode_frame,
    fetch_request,
    produce_request,
    values_batch,
)
from millstream.wire.messages.metadata import MetadataRequest

PARTIAL_MS = 700
UNREAD_MS = 1200
IDLE_MS = 2000
FRAME_BYTES_MAX = 2 << 20
REQUEST_BYTES_MAX = 8 << 20
#: How long a broker on a busy machine may take to notice.
PATIENCE_S = 30.0

SETTINGS = {
    "connection.partial.request.timeout.ms": PARTIAL_MS,
    "connection.write.timeout.ms": UNREAD_MS,
    "connections.max.idle.ms": IDLE_MS,
    "socket.request.max.bytes": FRAME_BYTES_MAX,
    "queued.max.request.bytes": REQUEST_BYTES_MAX,
    "message.max.bytes": FRAME_BYTES_MAX,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("limits")
    with BrokerProcess(folder, SETTINGS) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection


def test_a_slow_frame_closes_the_connection(client: RawClient) -> None:
    frame = encode_frame(MetadataRequest(topics=None), 12, 1)
    deadline = time.monotonic() + PATIENCE_S
    position = 0
    client.socket.settimeout(0.1)
    while time.monotonic() < deadline:
        # One byte at a time, never the last one.
        position = min(position + 1, len(frame) - 2)
        try:
            client.send_raw(frame[position : position + 1])
            if not client.socket.recv(1):
                return
        except TimeoutError:
            continue
        except (Closed, ConnectionResetError):
            return
    pytest.fail("a slow sender is never cut off")


@pytest.mark.parametrize("start", [b"\0", b"\0\0\0", b"\0\0\0\x20", b"\0\0\0\x20\0\3\0\0"])
def test_an_unfinished_frame_closes_the_connection(client: RawClient, start: bytes) -> None:
    client.send_raw(start)
    assert client.is_closed_within(PATIENCE_S)


def test_an_idle_connection_is_closed_unless_a_request_waits(
    broker: BrokerProcess, client: RawClient
) -> None:
    client.create_topic("quiet")
    with RawClient(broker.host, broker.port) as waiter:
        waiter.send(fetch_request([("quiet", 0, 0)], max_wait_ms=60_000, min_bytes=1), 12)
        assert client.is_closed_within(PATIENCE_S)
        with RawClient(broker.host, broker.port) as third:
            third.produce("quiet", values_batch(b"at last"))
        assert waiter.receive().responses[0].partitions[0].error_code == 0


def test_a_client_that_never_reads_is_disconnected(
    broker: BrokerProcess, client: RawClient
) -> None:
    client.create_topic("bulky")
    for _ in range(8):
        assert client.produce("bulky", values_batch(bytes(1_000_000))).error_code == 0
    rss_before = broker.rss_bytes()
    with closing(socket.socket()) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((broker.host, broker.port))
        deaf.settimeout(0.05)
        request = encode_frame(fetch_request([("bulky", 0, 0)], max_bytes=8 << 20), 12, 1)
        rss_most = rss_before

        def is_cut_off() -> bool:
            nonlocal rss_most
            rss_most = max(rss_most, broker.rss_bytes())
            try:
                deaf.send(request)
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        wait_until(is_cut_off, "a deaf client to be cut off", PATIENCE_S)
    # A few responses may be in flight; an unbounded queue may not.
    assert rss_most - rss_before < 80 << 20
    with RawClient(broker.host, broker.port) as other:
        assert other.produce("bulky", values_batch(b"x")).error_code == 0


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_frame_that_is_too_large_is_rejected_at_once(client: RawClient, size: int) -> None:
    client.send_raw(size.to_bytes(4))
    assert client.is_closed_within(PATIENCE_S)


class _Sender:
    """Sends a limited part of a frame without blocking, then receives the response."""

    def __init__(self, broker: BrokerProcess, frame: bytes) -> None:
        self.client = RawClient(broker.host, broker.port)
        self.client.socket.setblocking(False)
        self._frame = memoryview(frame)
        self._sent = 0
        self.response = b""

    def advance(self, limit: int) -> None:
        try:
            if self._sent < limit:
                self._sent += self.client.socket.send(self._frame[self._sent : limit])
            else:
                self.response += self.client.socket.recv(4096)
        except BlockingIOError:
            return


def test_without_memory_clients_wait_and_the_broker_does_not_grow(broker: BrokerProcess) -> None:
    count, value_bytes = 40, 1_500_000
    with RawClient(broker.host, broker.port) as client:
        client.create_topic("heavy")
    frame = encode_frame(produce_request("heavy", values_batch(bytes(value_bytes))), 12, 1)
    rss_before = rss_most = broker.rss_bytes()
    waits_before = broker.metric("millstream_throttled_reads_total")
    with ExitStack() as stack:
        senders = [_Sender(broker, frame) for _ in range(count)]
        for sender in senders:
            stack.enter_context(sender.client)

        def are_waiting() -> bool:
            # No client sends its last byte, so a client that has memory keeps it.
            for sender in senders:
                sender.advance(len(frame) - 1)
            return broker.metric("millstream_throttled_reads_total") - waits_before > count / 2

        wait_until(are_waiting, "memory for requests to run out", PATIENCE_S)
        with RawClient(broker.host, broker.port) as small:
            # A request that fits into the shared buffer needs no memory of its own.
            assert small.produce("heavy", values_batch(b"small")).error_code == 0

        def are_answered() -> bool:
            nonlocal rss_most
            rss_most = max(rss_most, broker.rss_bytes())
            for sender in senders:
                sender.advance(len(frame))
            return all(sender.response for sender in senders)

        wait_until(are_answered, "every client to be served in the end", 2 * PATIENCE_S)
    assert rss_most - rss_before < REQUEST_BYTES_MAX + (40 << 20)
    with RawClient(broker.host, broker.port) as client:
        assert client.list_offset("heavy", -1).offset == count + 1


# Connections


def is_served(client: RawClient) -> bool:
    try:
        return client.call(MetadataRequest(topics=[]), 12).brokers != []
    except Closed:
        return False


def test_connections_are_limited_in_all_and_per_address(tmp_path: Path) -> None:
    settings = {
        "max.connections": 8,
        "max.connections.per.ip": 5,
        "max.connections.per.ip.overrides": "127.0.0.3:1",
    }
    with BrokerProcess(tmp_path, settings) as broker, ExitStack() as stack:

        def connect(source: str) -> RawClient:
            return stack.enter_context(RawClient(broker.host, broker.port, source=source))

        first = [connect("127.0.0.1") for _ in range(5)]
        assert all(map(is_served, first))
        assert not is_served(connect("127.0.0.1"))
        assert is_served(connect("127.0.0.3"))
        assert not is_served(connect("127.0.0.3"))
        second = [connect("127.0.0.2") for _ in range(2)]
        assert all(map(is_served, second))
        assert not is_served(connect("127.0.0.2"))
        assert all(map(is_served, first + second))
        first.pop().close()
        wait_until(lambda: is_served(connect("127.0.0.2")), "room for one more")
        assert all(map(is_served, first + second))

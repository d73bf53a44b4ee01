"""The connection on a transport that records calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.in_process.manual_clock import ManualClock
from millstream.net.connection import Connection
from millstream.net.gate import ConnectionLimits, Entry, Gate
from millstream.net.rejection import Rejection


@dataclass
class FakeTransport:
    written: list[bytes] = field(default_factory=list)
    reading: bool = True
    closed: bool = False
    aborted: bool = False
    unsent: int = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, segments: list[bytes]) -> None:
        self.written.append(b"".join(segments))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Recorder:
    """A handler that records frames, and can hold the connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.frames: list[bytes] = []
        self.hold_after: int | None = None
        self.was_closed = 0

    def receive(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        if self.hold_after == len(self.frames):
            self.connection.hold()
        self.connection.send([b"<", bytes(frame[:1]), b">"])

    def is_idle(self) -> bool:
        return True

    def closed(self) -> None:
        self.was_closed += 1


class World:
    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.clock = ManualClock(0.0)
        self.gate = Gate(limits or ConnectionLimits())
        self.lost: list[Connection] = []

    def connect(self) -> tuple[Connection, FakeTransport, Recorder]:
        handlers: list[Recorder] = []

        def make(connection: Connection) -> Recorder:
            handlers.append(Recorder(connection))
            return handlers[-1]

        connection = Connection(self.gate, self.clock, make, self.lost.append)
        transport = FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport, handlers[0] if handlers else None  # type: ignore[return-value]


def feed(connection: Connection, transport: FakeTransport, data: bytes) -> bytes:
    """Deliver bytes as a transport does; return the rest once the transport is paused or closed."""
    while data and transport.reading and not transport.is_closing():
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        connection.buffer_updated(count)
    return data


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    cuts=st.lists(st.integers(1, 400), max_size=50),
)
def test_frames_survive_any_splitting(bodies: list[bytes], cuts: list[int]) -> None:
    world = World()
    connection, transport, handler = world.connect()
    stream = b"".join(map(frame, bodies))
    for cut in cuts:
        feed(connection, transport, stream[:cut])
        stream = stream[cut:]
    feed(connection, transport, stream)
    assert handler.frames == bodies
    assert b"".join(transport.written) == b"".join(b"<" + body[:1] + b">" for body in bodies)
    assert world.gate.reserved_bytes == 0


def test_a_pass_ends_in_one_write() -> None:
    world = World()
    connection, transport, _ = world.connect()
    feed(connection, transport, frame(b"a") + frame(b"b") + frame(b"c"))
    assert transport.written == [b"<a><b><c>"]


def test_a_frame_larger_than_the_receive_buffer() -> None:
    world = World()
    connection, transport, handler = world.connect()
    body = bytes(range(256)) * 4096
    feed(connection, transport, frame(body) + frame(b"next"))
    assert handler.frames == [body, b"next"]
    assert world.gate.reserved_bytes == 0


@pytest.mark.parametrize("length", [-1, 0, -(2**31), 101, 2**31 - 1])
def test_an_impossible_length_closes_the_connection(length: int) -> None:
    world = World(ConnectionLimits(frame_bytes_max=100))
    connection, transport, handler = world.connect()
    feed(connection, transport, frame(b"ok") + length.to_bytes(4, "big", signed=True) + b"rest")
    assert handler.frames == [b"ok"]
    assert transport.closed
    assert transport.written == [b"<o>"]


def test_held_frames_wait_and_are_handled_on_release() -> None:
    world = World()
    connection, transport, handler = world.connect()
    handler.hold_after = 1
    feed(connection, transport, frame(b"a") + frame(b"b") + b"\0")
    assert handler.frames == [b"a"]
    assert not transport.reading
    connection.release()
    assert handler.frames == [b"a", b"b"]
    assert transport.reading
    feed(connection, transport, b"\0\0\x01c")
    assert handler.frames == [b"a", b"b", b"c"]


def test_hold_and_release_within_a_pass_leave_reading_on() -> None:
    world = World()
    connection, transport, handler = world.connect()

    def receive(data: memoryview) -> None:
        handler.frames.append(bytes(data))
        connection.hold()
        connection.release()

    handler.receive = receive  # type: ignore[method-assign]
    connection._handler = handler
    feed(connection, transport, frame(b"a") + frame(b"b"))
    assert handler.frames == [b"a", b"b"]
    assert transport.reading


def test_a_connection_waits_for_request_memory() -> None:
    world = World(ConnectionLimits(request_bytes_max=100))
    first, first_transport, first_handler = world.connect()
    second, second_transport, second_handler = world.connect()
    feed(first, first_transport, frame(b"x" * 80)[:10])
    feed(second, second_transport, frame(b"y" * 60)[:10])
    assert not second_transport.reading
    assert world.gate.counters.memory_waits == 1
    feed(first, first_transport, frame(b"x" * 80)[10:])
    assert first_handler.frames == [b"x" * 80]
    assert second_transport.reading
    feed(second, second_transport, frame(b"y" * 60)[10:])
    assert second_handler.frames == [b"y" * 60]
    assert world.gate.reserved_bytes == 0


def test_a_waiting_connection_that_closes_leaves_the_queue() -> None:
    world = World(ConnectionLimits(request_bytes_max=100))
    first, first_transport, _ = world.connect()
    second, second_transport, second_handler = world.connect()
    third, third_transport, third_handler = world.connect()
    feed(first, first_transport, frame(b"x" * 80)[:10])
    feed(second, second_transport, frame(b"y" * 90)[:10])
    feed(third, third_transport, frame(b"z" * 10)[:10])
    assert not third_transport.reading
    second.connection_lost(None)
    assert second_handler.was_closed == 1
    assert third_transport.reading
    feed(third, third_transport, frame(b"z" * 10)[10:])
    assert third_handler.frames == [b"z" * 10]
    first.connection_lost(None)
    assert world.gate.reserved_bytes == 0
    assert world.gate.connections == 1


def test_another_handler_receives_the_frames_until_it_hands_over() -> None:
    world = World()
    connection, transport, first = world.connect()
    second = Recorder(connection)
    assert connection.hand_over(second) is first
    feed(connection, transport, frame(b"a"))
    assert connection.hand_over(first) is second
    feed(connection, transport, frame(b"b"))
    assert (first.frames, second.frames) == ([b"b"], [b"a"])
    connection.connection_lost(None)
    assert (first.was_closed, second.was_closed) == (1, 0)
    # Too late: nothing is handled any more.
    assert connection.hand_over(second) is second
    connection.connection_lost(None)
    assert (first.was_closed, second.was_closed) == (1, 0)


def connect_without_login(world: World) -> tuple[Connection, FakeTransport, Recorder]:
    connection, transport, handler = world.connect()
    connection.frame_bytes_max = 90
    return connection, transport, handler


def test_clients_without_a_login_do_not_use_up_the_memory_for_requests() -> None:
    world = World(ConnectionLimits(request_bytes_max=800))
    strangers = [connect_without_login(world) for _ in range(5)]
    for connection, transport, _ in strangers:
        feed(connection, transport, frame(b"x" * 40)[:10])
    # An eighth of the memory has room for two of them: the oldest ones end.
    assert [transport.aborted for _, transport, _ in strangers] == [True] * 3 + [False] * 2
    assert world.gate.reserved_bytes == 0
    assert world.gate.rejections.counts[Rejection.AUTHENTICATION] == 3
    client, transport, handler = world.connect()
    feed(client, transport, frame(b"y" * 780)[:10])
    assert world.gate.reserved_bytes == 784
    assert transport.reading
    for connection, transport, handler in strangers[3:]:
        feed(connection, transport, frame(b"x" * 40)[10:])
        assert handler.frames == [b"x" * 40]
    assert world.gate.logins.reserved_bytes == 0


def test_a_large_request_without_a_login_does_not_end_small_ones() -> None:
    world = World(ConnectionLimits(request_bytes_max=800))
    small = [connect_without_login(world) for _ in range(6)]
    for connection, transport, _ in small:
        feed(connection, transport, frame(b"x" * 10)[:8])
    large, large_transport, _ = connect_without_login(world)
    feed(large, large_transport, frame(b"y" * 80)[:8])
    assert large_transport.closed
    for connection, transport, handler in small:
        feed(connection, transport, frame(b"x" * 10)[8:])
        assert handler.frames == [b"x" * 10]


def test_memory_for_a_login_is_released_when_the_connection_is_lost() -> None:
    world = World()
    connection, transport, _ = connect_without_login(world)
    feed(connection, transport, frame(b"x" * 80)[:10])
    assert world.gate.logins.reserved_bytes == 84
    connection.connection_lost(None)
    assert world.gate.logins.reserved_bytes == 0
    assert world.gate.reserved_bytes == 0


def test_a_login_may_end_with_the_request_that_is_received_in_parts() -> None:
    world = World()
    connection, transport, handler = connect_without_login(world)
    receive = handler.receive

    def log_in(body: memoryview) -> None:
        connection.frame_bytes_max = None
        receive(body)

    handler.receive = log_in  # type: ignore[method-assign]
    feed(connection, transport, frame(b"x" * 80)[:10])
    feed(connection, transport, frame(b"x" * 80)[10:])
    assert handler.frames == [b"x" * 80]
    assert world.gate.logins.reserved_bytes == 0
    feed(connection, transport, frame(b"y" * 200)[:10])
    assert world.gate.reserved_bytes == 204
    connection.connection_lost(None)
    assert world.gate.reserved_bytes == 0


def test_a_slow_sender_is_disconnected() -> None:
    world = World(ConnectionLimits(frame_ms_max=1000))
    connection, transport, _ = world.connect()
    feed(connection, transport, frame(b"x" * 100)[:50])
    world.clock.now = 0.9
    connection.check(world.clock.now)
    assert not transport.aborted
    feed(connection, transport, b"x")
    world.clock.now = 1.1
    connection.check(world.clock.now)
    assert transport.aborted


def test_a_client_that_reads_nothing_is_disconnected_and_a_slow_one_is_not() -> None:
    world = World(ConnectionLimits(unread_ms_max=1000))
    connection, transport, _ = world.connect()
    transport.unsent = 5000
    connection.pause_writing()
    assert not transport.reading
    for second in range(1, 5):
        transport.unsent -= 1000
        world.clock.now = second
        connection.check(world.clock.now)
    assert not transport.aborted
    world.clock.now = 5.5
    connection.check(world.clock.now)
    assert transport.aborted


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_client_that_does_not_read_its_last_responses_is_disconnected(is_blocked: bool) -> None:
    """A transport that is closed waits for its client to read."""
    world = World(ConnectionLimits(unread_ms_max=1000))
    connection, transport, _ = world.connect()
    transport.unsent = 5000
    if is_blocked:
        connection.pause_writing()
    world.clock.now = 5.0
    connection.close("rejected")
    assert transport.closed
    if is_blocked:
        transport.unsent = 100
        connection.resume_writing()
    world.clock.now = 5.9
    connection.check(world.clock.now)
    world.clock.now = 6.8
    connection.check(world.clock.now)
    assert not transport.aborted
    world.clock.now = 7.0
    connection.check(world.clock.now)
    assert transport.aborted


def test_an_idle_connection_is_closed() -> None:
    world = World(ConnectionLimits(idle_ms_max=1000))
    connection, transport, _ = world.connect()
    world.clock.now = 0.5
    feed(connection, transport, frame(b"a"))
    world.clock.now = 1.4
    connection.check(world.clock.now)
    assert not transport.closed
    world.clock.now = 1.6
    connection.check(world.clock.now)
    assert transport.closed


def test_connections_are_bounded_in_total_and_per_address() -> None:
    world = World(ConnectionLimits(connections_max=3, connections_per_address_max=2))
    connections = [world.connect() for _ in range(3)]
    assert [transport.aborted for _, transport, _ in connections] == [False, False, True]
    connections[2][0].connection_lost(None)
    assert world.gate.connections == 2
    connections[0][0].connection_lost(None)
    _, transport, _ = world.connect()
    assert not transport.aborted
    assert world.gate.counters.refused == {"max.connections.per.ip": 1}


def run_with_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def frames_of(count: int) -> bytes:
    return b"".join(frame(b"%d" % (number % 10)) for number in range(count))


def test_a_long_pass_yields_to_other_connections() -> None:
    async def scenario() -> None:
        world = World(ConnectionLimits(pass_requests_max=3))
        connection, transport, handler = world.connect()
        feed(connection, transport, frames_of(8))
        assert len(handler.frames) == 3
        assert not transport.reading
        await asyncio.sleep(0)
        assert len(handler.frames) == 6
        await asyncio.sleep(0)
        assert len(handler.frames) == 8
        assert transport.reading
        assert len(transport.written) == 3

    run_with_loop(scenario)


def test_a_pass_of_slow_requests_yields_early() -> None:
    async def scenario() -> None:
        world = World()
        connection, transport, handler = world.connect()
        receive = handler.receive

        def slowly(data: memoryview) -> None:
            world.clock.now += 1.0
            receive(data)

        handler.receive = slowly  # type: ignore[method-assign]
        feed(connection, transport, frames_of(2))
        assert len(handler.frames) == 1
        await asyncio.sleep(0)
        assert len(handler.frames) == 2

    run_with_loop(scenario)


def test_a_throttled_connection_is_not_read_until_the_end_of_the_throttling() -> None:
    async def scenario() -> None:
        world = World(ConnectionLimits(idle_ms_max=10))
        connection, transport, handler = world.connect()
        connection.throttle(0.05)
        assert not transport.reading
        world.clock.now += 100
        connection.check(world.clock.now)
        assert not transport.closed, "it is throttled, not idle"
        await asyncio.sleep(0.1)
        assert transport.reading
        feed(connection, transport, frames_of(1))
        assert len(handler.frames) == 1

    run_with_loop(scenario)


def test_the_longest_throttling_counts() -> None:
    async def scenario() -> None:
        world = World()
        connection, transport, _ = world.connect()
        connection.throttle(1000)
        connection.throttle(0.001)
        await asyncio.sleep(0.05)
        assert not transport.reading
        connection.connection_lost(None)

    run_with_loop(scenario)


def test_frames_behind_the_one_that_causes_a_throttling_wait() -> None:
    async def scenario() -> None:
        world = World()
        connection, transport, handler = world.connect()
        receive = handler.receive

        def throttling(data: memoryview) -> None:
            receive(data)
            if len(handler.frames) == 1:
                connection.throttle(0.01)

        handler.receive = throttling  # type: ignore[method-assign]
        feed(connection, transport, frames_of(3))
        assert len(handler.frames) == 1
        assert transport.written == [b"<0>"]
        await asyncio.sleep(0.1)
        assert len(handler.frames) == 3

    run_with_loop(scenario)


class FixedRates:
    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry

    def enter(self, listener: str, address: str, now: float) -> Entry | None:
        return self.entry


def test_a_connection_above_the_rate_is_served_later() -> None:
    async def scenario() -> None:
        world = World()
        world.gate.rates = FixedRates(Entry(None, 0.05))
        connection, transport, _ = world.connect()
        assert not transport.reading
        assert world.gate.connections == 1
        await asyncio.sleep(0.2)
        assert transport.reading
        connection.connection_lost(None)
        assert world.gate.connections == 0

    run_with_loop(scenario)


def test_a_connection_above_the_rate_of_its_address_is_closed_after_a_pause() -> None:
    async def scenario() -> None:
        world = World()
        world.gate.rates = FixedRates(Entry("connection_creation_rate", 0.05))
        _, transport, handler = world.connect()
        assert handler is None
        assert not transport.reading
        assert not transport.aborted
        assert (world.gate.connections, world.gate.refused_open) == (0, 1)
        await asyncio.sleep(0.2)
        assert transport.aborted
        assert world.gate.refused_open == 0

    run_with_loop(scenario)


def test_connections_of_one_listener_are_bounded() -> None:
    limits = ConnectionLimits(
        connections_max=3, listener_connections_max={"A": 1}, protected_listener="I"
    )
    gate = Gate(limits)
    assert gate.admit("x", "A", 0.0) is None
    assert gate.admit("x", "A", 0.0) == Entry("max.connections", 0.0)
    assert gate.admit("x", "B", 0.0) is None
    assert gate.admit("x", "B", 0.0) is None
    assert gate.admit("x", "B", 0.0) == Entry("max.connections", 0.0)
    # Brokers reach each other, however many clients there are.
    assert gate.admit("x", "I", 0.0) is None
    gate.leave("x", "A", "client")
    gate.leave("x", "B", "client")
    assert gate.admit("x", "A", 0.0) is None


def test_a_connection_that_closes_reads_no_more_when_its_handler_releases_it() -> None:
    world = World()
    connection, transport, handler = world.connect()
    handler.hold_after = 1
    feed(connection, transport, frame(b"a") + frame(b"b"))
    transport.unsent = 1
    connection.close("idle")
    # The transport still sends, so the connection is open for the handler.
    transport.closed = False
    connection.release()
    assert not transport.reading
    assert handler.frames == [b"a"]


def test_closing_while_waiting_for_memory_reserves_nothing() -> None:
    world = World(ConnectionLimits(request_bytes_max=100))
    first, first_transport, _ = world.connect()
    second, second_transport, second_handler = world.connect()
    feed(first, first_transport, frame(b"x" * 80)[:10])
    feed(second, second_transport, frame(b"y" * 60)[:10])
    second.close("idle")
    feed(first, first_transport, frame(b"x" * 80)[10:])
    assert world.gate.reserved_bytes == 0
    assert world.gate.failures.counts == {}
    assert second_handler.frames == []


def test_a_rejected_connection_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(ConnectionLimits(connections_max=0))
    _, transport, _ = world.connect()
    assert transport.aborted
    assert world.gate.rejections.counts == {Rejection.CONNECTIONS: 1}
    assert "10.0.0.1" in caplog.text
    assert "max.connections" in caplog.text


class Range:
    """A range of a file on a disk that fails."""

    position = 0

    def __init__(self) -> None:
        self.released = 0

    def __len__(self) -> int:
        return 10

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        raise OSError("an injected fault")

    def failed(self, error: OSError) -> None: ...

    def release(self) -> None:
        self.released += 1


def test_a_response_that_cannot_be_read_closes_the_connection_and_does_not_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller may have other responses to complete."""
    world = World()
    connection, transport, _ = world.connect()
    monkeypatch.setattr(transport, "get_extra_info", lambda _: None)
    unreadable = Range()
    connection.send([b"head", unreadable])
    assert transport.aborted
    assert transport.written == []
    assert unreadable.released == 1


def test_ranges_that_are_not_sent_are_released_once() -> None:
    world = World()
    connection, transport, handler = world.connect()
    transport.unsent = 1
    queued, late = Range(), Range()
    # The sender starts when the transport's buffer is empty, which never happens here.
    connection.send([b"head", queued])
    assert queued.released == 0
    connection.connection_lost(None)
    connection.send([late])
    assert (queued.released, late.released) == (1, 1)
    assert handler.was_closed == 1

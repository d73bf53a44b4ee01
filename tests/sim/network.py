"""A simulated network: hosts, connections between them, and faults of both.

Programs see what TCP shows. Bytes arrive in order, once, after a delay, in pieces of any size. Each
direction between two hosts can be cut. Bytes that are sent in a cut direction wait and arrive after
it is healed. After `RESET_S` the sender fails with a TimeoutError, also if only the direction of
the acknowledgements is cut. Connecting needs both directions. The connections of a process that
dies are reset at once. A machine without power sends nothing. Once it has power again, it resets
former connections on which data arrives.

TCP does not duplicate data, but proxies may: `Wire.repeat` sends a request again on a connection of
its own. A client that retries a request after a lost response does the same.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final, Literal, TypeAlias, cast

from millstream.wire.api import ApiKey
from sim.loop import Process, VirtualLoop

#: Time without acknowledgement after which a sender aborts a connection.
RESET_S: Final = 1.5
DELAY_S: Final = (0.0002, 0.002)
#: Share of writes that arrive in two pieces.
_SPLIT_SHARE: Final = 0.05
_HIGH_BYTES: Final = 64 * 1024

_UNREPEATABLE: Final = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
)
#: Number of the last requests in one direction that can be repeated.
_REMEMBERED: Final = 6

Factory: TypeAlias = Callable[[], asyncio.BufferedProtocol]
_Item: TypeAlias = "bytes | Literal['fin', 'reset']"


@dataclass(slots=True)
class _Host:
    is_up: bool = True


class Wire:
    """All hosts and the links between them."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.hosts: dict[str, _Host] = {}
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.ends: dict[int, SimTransport] = {}
        self.numbers = count(1)
        #: Start of the cut of each direction that is cut.
        self.cuts: dict[tuple[str, str], float] = {}
        #: Minimum and maximum delay of slow directions.
        self.slow: dict[tuple[str, str], tuple[float, float]] = {}
        self._opened: list[asyncio.Future[None]] = []
        #: The last requests of clients in each direction: port and bytes.
        self.sent: dict[tuple[str, str], deque[tuple[int, bytes]]] = {}

    def network(self, host: str, process: Process) -> SimNetwork:
        self.hosts.setdefault(host, _Host())
        return SimNetwork(self, host, process)

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Hold all traffic in one direction between two hosts."""
        if (source, target) not in self.cuts:
            since = self.cuts[source, target] = self.loop.time()
            self.loop.call_later(RESET_S, self._time_out, source, target, since)

    def heal(self, source: str, target: str) -> None:
        if self.cuts.pop((source, target), None) is not None:
            for end in list(self.ends.values()):
                if (end.host, end.peer_host) == (source, target):
                    end.send_held()
            self._changed()

    def reset(self, source: str, target: str) -> None:
        """Break all connections between two hosts."""
        for end in list(self.ends.values()):
            if (end.host, end.peer_host) == (source, target):
                end.peer.arrive("reset")
                end.arrive("reset")

    async def repeat(self, source: str, target: str, process: Process, hold_s: float) -> None:
        """Send one of the last requests again and discard the response.

        Raises OSError if no process listens at the port any more."""
        sent = [each for each in self.sent.get((source, target), ()) if _is_repeatable(each[1])]
        if not sent:
            return
        port, data = self.random.choice(sent)
        transport = await SimNetwork(self, source, process).connect(target, port, _Sink)
        self.loop.note(f"repeat {source} {target} {len(data)} {zlib.crc32(data):08x}")
        transport.write(data)
        await asyncio.sleep(hold_s)
        transport.abort()

    def end_process(self, process: Process) -> None:
        """Close all sockets of a dead process."""
        for address in [a for a, each in self.listeners.items() if each.process is process]:
            del self.listeners[address]
        for end in [end for end in self.ends.values() if end.process is process]:
            if end.is_lost:
                continue
            end.transmit("reset")
            end.vanish(leaves_held=True)

    def power_off(self, host: str) -> None:
        self.hosts[host].is_up = False
        for address in [each for each in self.listeners if each[0] == host]:
            del self.listeners[address]
        for end in [end for end in self.ends.values() if end.host == host]:
            end.vanish()

    def power_on(self, host: str) -> None:
        self.hosts[host].is_up = True
        self._changed()

    def _time_out(self, source: str, target: str, since: float) -> None:
        if self.cuts.get((source, target)) != since:
            return
        for end in list(self.ends.values()):
            is_unsent = (end.host, end.peer_host) == (source, target) and end.held
            is_unacknowledged = (end.peer_host, end.host) == (source, target)
            if is_unsent or (is_unacknowledged and end.sent_at >= since):
                end.fail(TimeoutError("no acknowledgement"))

    def _changed(self) -> None:
        opened, self._opened = self._opened, []
        for waiter in opened:
            if not waiter.done():
                waiter.set_result(None)

    # Delivery

    def delay_s(self, source: str, target: str) -> float:
        low, high = self.slow.get((source, target), DELAY_S)
        return low + (high - low) * self.random.random()

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.cuts and self.hosts[target].is_up

    async def passage(self, source: str, target: str) -> None:
        """Wait until a packet that is sent now has arrived. May wait forever."""
        self.hosts.setdefault(target, _Host())
        await asyncio.sleep(self.delay_s(source, target))
        while not self.is_open(source, target):
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._opened.append(waiter)
            await waiter
            await asyncio.sleep(self.delay_s(source, target) + self.random.random() * 0.2)


class _Sink(asyncio.BufferedProtocol):
    """Discards what it receives."""

    def __init__(self) -> None:
        self._buffer = bytearray(4096)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer


def _is_repeatable(data: bytes) -> bool:
    """Whether a late duplicate of a request is harmless.

    It is not for offset commits and the end of a transaction whose producer keeps its epoch."""
    return int.from_bytes(data[4:6]) not in _UNREPEATABLE


class SimListener:
    """One process's listening socket."""

    def __init__(
        self, wire: Wire, address: tuple[str, int], process: Process, factory: Factory
    ) -> None:
        self._wire = wire
        self._address = address
        self.process = process
        self.factory = factory
        self.is_accepting = False

    def address(self) -> tuple[str, int]:
        return self._address

    async def start(self) -> None:
        self.is_accepting = True

    async def close(self) -> None:
        self.is_accepting = False
        if self._wire.listeners.get(self._address) is self:
            del self._wire.listeners[self._address]


class SimNetwork:
    """A process's view of the network: `env.network.Network`."""

    def __init__(self, wire: Wire, host: str, process: Process) -> None:
        self._wire = wire
        self._host = host
        self._process = process

    async def bind(self, host: str, port: int, factory: Factory) -> SimListener:
        wire = self._wire
        if port == 0:
            port = next(p for p in count(40_000) if (self._host, p) not in wire.listeners)
        address = (self._host, port)
        if address in wire.listeners:
            raise OSError(98, f"{self._host}:{port} is in use")
        listener = wire.listeners[address] = SimListener(wire, address, self._process, factory)
        return listener

    async def connect(
        self, host: str, port: int, factory: Factory, tls: object = None
    ) -> asyncio.Transport:
        wire = self._wire
        await wire.passage(self._host, host)
        listener = wire.listeners.get((host, port))
        is_accepted = listener is not None and listener.is_accepting
        await wire.passage(host, self._host)
        if not is_accepted or listener is None or listener.process.is_dead:
            raise ConnectionRefusedError(111, f"no listener at {host}:{port}")
        near = SimTransport(wire, self._host, host, self._process, port)
        far = SimTransport(wire, host, self._host, listener.process)
        near.peer, far.peer = far, near
        wire.loop.note(f"connect {self._host} {host}:{port} as {near.number}")
        # The operating system of the peer accepts, even if the process is held.
        wire.loop.call_soon(far.begin, listener.factory, context=listener.process.context)
        near.begin(factory)
        return near


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimTransport

    def __init__(
        self, wire: Wire, host: str, peer_host: str, process: Process, port: int | None = None
    ) -> None:
        super().__init__()
        self._wire = wire
        #: Port that this end has connected to; None at the accepting end.
        self._port = port
        self.host = host
        self.peer_host = peer_host
        self.process = process
        self.number = next(wire.numbers)
        self._protocol: asyncio.BufferedProtocol | None = None
        #: Sent, but held by a cut.
        self.held: list[_Item] = []
        #: In transit to this end, in order. Each item has a timer.
        self._coming: deque[_Item] = deque()
        #: Arrived, but not yet read by the program.
        self._arrived: deque[_Item] = deque()
        self._arrives_at = 0.0
        self.sent_at = 0.0
        self._is_reading = True
        self._is_closing = False
        self.is_lost = False
        #: Sent, but not yet read by the program at the other end.
        self._unread_bytes = 0
        self._limits = (_HIGH_BYTES // 4, _HIGH_BYTES)
        self._is_writing_paused = False
        wire.ends[self.number] = self

    def begin(self, factory: Factory) -> None:
        if not self.is_lost:
            self._protocol = factory()
            self._protocol.connection_made(self)
            self._deliver_received()

    # Sending

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self._is_closing or self.is_lost:
            return
        data = b"".join(list_of_data)
        self._unread_bytes += len(data)
        if self._port is not None:
            self._wire.sent.setdefault(
                (self.host, self.peer_host), deque(maxlen=_REMEMBERED)
            ).append((self._port, data))
        if len(data) > 1 and self._wire.random.random() < _SPLIT_SHARE:
            middle = self._wire.random.randrange(1, len(data))
            self.transmit(data[:middle])
            self.transmit(data[middle:])
        else:
            self.transmit(data)
        if self._unread_bytes > self._limits[1] and not self._is_writing_paused:
            self._is_writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def transmit(self, item: _Item) -> None:
        self.sent_at = self._wire.loop.time()
        if self.held or (self.host, self.peer_host) in self._wire.cuts:
            self.held.append(item)
        else:
            self._deliver(item)

    def send_held(self) -> None:
        held, self.held = self.held, []
        for item in held:
            self._deliver(item)
        if self.is_lost:
            self._wire.ends.pop(self.number, None)

    def _deliver(self, item: _Item) -> None:
        wire, peer = self._wire, self.peer
        when = max(peer._arrives_at, wire.loop.time() + wire.delay_s(self.host, self.peer_host))
        peer._arrives_at = when
        peer._coming.append(item)
        wire.loop.call_at(when, peer._come, context=wire.loop.outside)

    # Receiving

    def _come(self) -> None:
        self.arrive(self._coming.popleft())

    def arrive(self, item: _Item) -> None:
        """Receive an item at this end's host."""
        wire = self._wire
        if self.is_lost:
            if item != "reset":
                self._answer_lost()
            return
        if item == "reset":
            self._arrived.clear()
        self._arrived.append(item)
        if self.process.is_halted:
            wire.loop.call_soon(self._deliver_received, context=self.process.context)
        else:
            self.process.context.run(self._deliver_received)

    def _answer_lost(self) -> None:
        """Respond to an item for a connection that this host has closed."""
        wire = self._wire
        if wire.hosts[self.host].is_up:
            self.transmit("reset")
        else:
            wire.loop.call_later(RESET_S, self._peer_gives_up, context=wire.loop.outside)

    def _peer_gives_up(self) -> None:
        self.peer.fail(TimeoutError("no acknowledgement"))

    def _deliver_received(self) -> None:
        """Deliver received data to the program."""
        while self._arrived and not self.is_lost and self._protocol is not None:
            item = self._arrived[0]
            if isinstance(item, bytes):
                if self._is_closing:
                    self._arrived.popleft()
                    continue
                if not self._is_reading:
                    return
                self._arrived.popleft()
                self._feed(item)
            else:
                self._arrived.popleft()
                if item == "reset":
                    self._lose(ConnectionResetError(104, "the connection was reset"))
                elif not self._is_closing:
                    self._protocol.eof_received()
                    self.close()

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        assert protocol is not None
        loop = self._wire.loop
        loop.note(f"receive {self.number} {len(data)} {zlib.crc32(data):08x}")
        self.peer._read_by_peer(len(data))
        view = memoryview(data)
        while view and not self.is_lost and not self._is_closing:
            if not self._is_reading:
                self._arrived.appendleft(bytes(view))
                self.peer._unread_bytes += len(view)
                return
            buffer = memoryview(cast("bytearray", protocol.get_buffer(len(view)))).cast("B")
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            view = view[size:]
            protocol.buffer_updated(size)

    def _read_by_peer(self, size: int) -> None:
        self._unread_bytes -= size
        if self._is_writing_paused and self._unread_bytes <= self._limits[0]:
            self._is_writing_paused = False
            self._wire.loop.call_soon(self._resume_writing, context=self.process.context)

    def _resume_writing(self) -> None:
        if self._protocol is not None and not self.is_lost:
            self._protocol.resume_writing()

    # Ending

    def close(self) -> None:
        if not self._is_closing and not self.is_lost:
            self._is_closing = True
            self.transmit("fin")
            self._wire.loop.call_soon(self._lose, None, context=self.process.context)

    def abort(self) -> None:
        if not self.is_lost:
            self._is_closing = True
            self.transmit("reset")
            self._wire.loop.call_soon(self._lose, None, context=self.process.context)

    def fail(self, error: Exception) -> None:
        """End the connection with an error: the system has stopped retransmitting."""
        if not self.is_lost:
            self._wire.loop.call_soon(self._lose, error, context=self.process.context)

    def vanish(self, *, leaves_held: bool = False) -> None:
        """Drop this end without a callback. With `leaves_held`, held items are still sent."""
        self.is_lost = True
        if not leaves_held:
            self.held.clear()
        if not self.held:
            self._wire.ends.pop(self.number, None)

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.vanish(leaves_held=error is None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # The rest of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self.peer_host, self.peer.number)
        return (self.host, self.number) if name == "sockname" else default

    def is_closing(self) -> bool:
        return self._is_closing or self.is_lost

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._wire.loop.call_soon(self._deliver_received, context=self.process.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = _HIGH_BYTES if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def get_write_buffer_size(self) -> int:
        return max(self._unread_bytes, 0)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.BufferedProtocol", protocol)

"""The limits that all connections share, the memory for requests, and the receive buffer.

A frame that does not fit into the shared receive buffer gets a buffer of its own, reserved from
`request_bytes_max` before it is allocated. When no memory is left, the connection stops reading and
waits in a queue. It is called back as soon as enough memory was released. So the broker slows its
clients down instead of growing. Clients that are not authenticated have memory of their own
(`login_memory.py`).

The process has one receive buffer: a transport requests it, fills it and hands it over in one step
of the loop, so it never holds bytes of two connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.net.login_memory import LoginMemory, Owner
from millstream.net.rejection import RejectedRequestError, Rejection, Rejections

RECEIVE_BUFFER_BYTES = 256 * 1024
_POOLED_BYTES_MIN = 64 * 1024
_POOLED_BYTES_MAX = 4 * 1024 * 1024
_POOLED_BUFFERS_MAX = 4
#: The share of the memory for requests that clients may use before they are authenticated.
_LOGIN_SHARE = 1 / 8
#: Rejected connections that stay open for a pause before they are closed.
REFUSED_MAX = 1000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of clients, as configured."""

    frame_bytes_max: int = 100 * 1024 * 1024
    request_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 10_000
    connections_per_address_max: int = 10_000
    connections_per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    #: By the name of the listener; a listener that is not here has no limit of its own.
    listener_connections_max: Mapping[str, int] = field(default_factory=dict)
    #: The listener that `connections_max` does not apply to: brokers must reach each other.
    protected_listener: str | None = None
    idle_ms_max: int = 600_000
    #: Time to receive a whole frame once it has begun; a long frame gets more, by its length.
    frame_ms_max: int = 30_000
    #: Time for which a client may read none of its pending responses.
    unread_ms_max: int = 60_000
    inflight_requests_max: int = 64
    inflight_bytes_max: int = 64 * 1024 * 1024
    #: Frames of one connection that are handled before those of other connections.
    pass_requests_max: int = 100
    #: Time for a TLS handshake, and the number of handshakes in progress.
    handshake_ms_max: int = 10_000
    handshakes_max: int = 1_000


class Entry(NamedTuple):
    """How a new connection is delayed or rejected."""

    #: The limit that rejects the connection; None if it is only delayed.
    limit: str | None
    #: The time until the connection is served, or until it is closed if it is rejected.
    wait_s: float


class Admitted(NamedTuple):
    """The client of a connection that was admitted. The port is 0 if the network has none."""

    address: str
    port: int
    #: Monotonic time from which the connection is served.
    served_at: float


class EntryRates(Protocol):
    """Limits the rate of new connections."""

    def enter(self, listener: str, address: str, now: float) -> Entry | None:
        """Count a new connection; None if it is neither delayed nor rejected."""


@dataclass(slots=True)
class GateCounters:
    """Totals since the start of the broker, for the metrics."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    memory_waits: int = 0
    #: Failed TLS handshakes by reason.
    handshake_failures: Counter[str] = field(default_factory=Counter)


class Gate:
    """Admits connections and reserves request memory. Event loop only."""

    __slots__ = (
        "_addresses",
        "_listeners",
        "_pool",
        "_waiting",
        "connections",
        "counters",
        "failures",
        "handshakes",
        "limits",
        "logins",
        "on_failed_handshake",
        "rates",
        "receive_buffer",
        "refused_open",
        "rejections",
        "reserved_bytes",
    )

    def __init__(self, limits: ConnectionLimits, failures: CallbackFailures | None = None) -> None:
        self.limits = limits
        self.failures = failures or CallbackFailures()
        self.rejections = Rejections()
        self.counters = GateCounters()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        #: Bytes of frame buffers in use; at most `limits.request_bytes_max`.
        self.reserved_bytes = 0
        #: Incomplete requests of clients that are not authenticated.
        self.logins = LoginMemory()
        self.connections = 0
        #: Rejected connections that are closed after a pause; at most `REFUSED_MAX`.
        self.refused_open = 0
        #: Limits the rate of new connections; None while there is no limit.
        self.rates: EntryRates | None = None
        #: TLS handshakes in progress. Their connections count in `connections`.
        self.handshakes = 0
        #: Called with the listener, the address of the client, the kind of failure and the reason
        #: when a handshake fails.
        self.on_failed_handshake: Callable[[str, str, str, str], None] | None = None
        self._addresses: Counter[str] = Counter()
        self._listeners: Counter[str] = Counter()
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def configure(self, limits: ConnectionLimits) -> None:
        """Apply limits that were changed at run time."""
        self.limits = limits

    def accept(self, transport: asyncio.Transport, listener: str, now: float) -> Admitted | None:
        """Count a new connection. Where a limit is reached, close the connection and return
        None."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else "local"
        entry = self.admit(address, listener, now)
        if entry is not None and entry.limit is not None:
            self._refuse(transport, entry.limit, entry.wait_s, address, now)
            return None
        port = int(peer[1]) if isinstance(peer, tuple) else 0
        return Admitted(address, port, now if entry is None else now + entry.wait_s)

    def _refuse(
        self, transport: asyncio.Transport, limit: str, wait_s: float, address: str, now: float
    ) -> None:
        """Close a connection that is not admitted, after `wait_s`."""
        error = RejectedRequestError(
            Rejection.CONNECTIONS, f"{limit} is reached", api="a connection"
        )
        self.rejections.note(error, address, now)
        if wait_s <= 0 or self.refused_open >= REFUSED_MAX:
            transport.abort()
            return
        self.refused_open += 1
        transport.pause_reading()
        asyncio.get_running_loop().call_later(wait_s, self._abort_refused, transport)

    def _abort_refused(self, transport: asyncio.Transport) -> None:
        self.refused_open -= 1
        transport.abort()

    def admit(self, address: str, listener: str, now: float) -> Entry | None:
        """Count a new connection, unless it is rejected. None if it is served at once."""
        limit = self._limit(address, listener)
        entry = None if limit is None else Entry(limit, 0.0)
        if entry is None and self.rates is not None:
            entry = self.rates.enter(listener, address, now)
        if entry is not None and entry.limit is not None:
            self.counters.refused[entry.limit] += 1
            return entry
        self.connections += 1
        self._addresses[address] += 1
        self._listeners[listener] += 1
        self.counters.accepted += 1
        return entry

    def _limit(self, address: str, listener: str) -> str | None:
        """Return the limit on the number of connections that is reached."""
        limits = self.limits
        per_address = limits.connections_per_address_overrides.get(
            address, limits.connections_per_address_max
        )
        of_listener = limits.listener_connections_max.get(listener)
        if of_listener is not None and self._listeners[listener] >= of_listener:
            return "max.connections"
        if self.connections >= limits.connections_max and listener != limits.protected_listener:
            return "max.connections"
        if self._addresses[address] >= per_address:
            return "max.connections.per.ip"
        return None

    def leave(self, address: str, listener: str, reason: str) -> None:
        """Stop counting an admitted connection."""
        self.connections -= 1
        self._listeners[listener] -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self.counters.closed[reason] += 1

    def reserve(self, size: int) -> bytearray | None:
        """Return a buffer of at least `size` bytes; None if the memory for requests is used up.

        None also if other connections wait for memory, so that small requests do not starve a large
        one."""
        capacity = _capacity(size)
        if self._waiting or self.reserved_bytes + capacity > self.limits.request_bytes_max:
            return None
        return self._allocate(capacity)

    def reserve_for_login(self, owner: Owner, size: int) -> bytearray | None:
        """Return a buffer of `size` bytes for a client that is not authenticated; None if there is
        no room. The owner gives it back by `logins.release`."""
        return self.logins.reserve(owner, size, int(self.limits.request_bytes_max * _LOGIN_SHARE))

    def wait(self, size: int, ready: Callable[[], None]) -> None:
        """Call `ready` once `size` bytes are free, in the order of the calls."""
        self.counters.memory_waits += 1
        self._waiting.append((_capacity(size), ready))

    def forget(self, ready: Callable[[], None]) -> None:
        """Cancel the wait of a closed connection."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != ready)
        self._wake()

    def reserve_waited(self, size: int) -> bytearray:
        """Return the buffer for which `ready` was called."""
        return self._allocate(_capacity(size))

    def release(self, buffer: bytearray) -> None:
        """Give a reserved buffer back, and wake connections that wait for memory."""
        capacity = len(buffer)
        self.reserved_bytes -= capacity
        if _POOLED_BYTES_MIN <= capacity <= _POOLED_BYTES_MAX:
            pooled = self._pool.setdefault(capacity, [])
            if len(pooled) < _POOLED_BUFFERS_MAX:
                pooled.append(buffer)
        if self._waiting:
            self._wake()

    def _allocate(self, capacity: int) -> bytearray:
        self.reserved_bytes += capacity
        pooled = self._pool.get(capacity)
        return pooled.pop() if pooled else bytearray(capacity)

    def _wake(self) -> None:
        while self._waiting:
            capacity, ready = self._waiting[0]
            if self.reserved_bytes + capacity > self.limits.request_bytes_max:
                return
            self._waiting.popleft()
            self.failures.run(CallbackKind.CONNECTION, "request memory", ready)


def _capacity(size: int) -> int:
    """Return the size of the buffer; a power of two if it is pooled, so that it can be reused."""
    if _POOLED_BYTES_MIN <= size <= _POOLED_BYTES_MAX:
        return 1 << (size - 1).bit_length()
    return size

"""The limits that all connections share, the memory for requests, and the receive buffer.

A frame that does not fit into the shared receive buffer gets a buffer of its own, reserved from
`request_bytes_max` before it is allocated. When no memory is left, the connection stops reading and
waits in a queue. It is called back as soon as enough memory was released. So the broker slows its
clients down instead of growing.

The process has one receive buffer: a transport requests it, fills it and hands it over in one step
of the loop, so it never holds bytes of two connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.net.rejection import RejectedRequestError, Rejection, Rejections

RECEIVE_BUFFER_BYTES = 256 * 1024
_POOLED_BYTES_MIN = 64 * 1024
_POOLED_BYTES_MAX = 4 * 1024 * 1024
_POOLED_BUFFERS_MAX = 4


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of clients, as configured."""

    frame_bytes_max: int = 100 * 1024 * 1024
    request_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 10_000
    connections_per_address_max: int = 10_000
    connections_per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    idle_ms_max: int = 600_000
    #: Time to receive a whole frame once it has begun; a long frame gets more, by its length.
    frame_ms_max: int = 30_000
    #: Time for which a client may read none of its pending responses.
    unread_ms_max: int = 60_000
    inflight_requests_max: int = 64
    inflight_bytes_max: int = 64 * 1024 * 1024
    #: Time for a TLS handshake, and the number of handshakes in progress.
    handshake_ms_max: int = 10_000
    handshakes_max: int = 1_000


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
        "_pool",
        "_waiting",
        "connections",
        "counters",
        "failures",
        "handshakes",
        "limits",
        "receive_buffer",
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
        self.connections = 0
        #: TLS handshakes in progress. Their connections count in `connections`.
        self.handshakes = 0
        self._addresses: Counter[str] = Counter()
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def configure(self, limits: ConnectionLimits) -> None:
        """Apply limits that were changed at run time."""
        self.limits = limits

    def accept(self, transport: asyncio.Transport, now: float) -> tuple[str, int] | None:
        """Count a new connection, and return the client's address and port; the port is 0 if the
        network has none. Where a limit is reached, abort the connection and return None."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else "local"
        limit = self.admit(address)
        if limit is None:
            return address, int(peer[1]) if isinstance(peer, tuple) else 0
        error = RejectedRequestError(
            Rejection.CONNECTIONS, f"{limit} is reached", api="a connection"
        )
        self.rejections.note(error, address, now)
        transport.abort()
        return None

    def admit(self, address: str) -> str | None:
        """Count a new connection, or return the limit that rejects it."""
        limits = self.limits
        per_address = limits.connections_per_address_overrides.get(
            address, limits.connections_per_address_max
        )
        if self.connections >= limits.connections_max:
            reason = "max.connections"
        elif self._addresses[address] >= per_address:
            reason = "max.connections.per.ip"
        else:
            self.connections += 1
            self._addresses[address] += 1
            self.counters.accepted += 1
            return None
        self.counters.refused[reason] += 1
        return reason

    def leave(self, address: str, reason: str) -> None:
        """Stop counting an admitted connection."""
        self.connections -= 1
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

"""What all connections share: their limits, the memory for requests, and the receive buffer.

Memory. A frame that does not fit into the shared receive buffer gets a buffer of its own, reserved
from `request_bytes_max` before it is allocated. When nothing is left the connection stops reading
and waits in line; it is called back as soon as enough was given back. The broker slows its clients
down, it does not grow.

The receive buffer is one for the whole process: a transport asks for it, fills it and hands it over
in one step of the loop, so it never holds bytes of two connections.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.net.rejection import Rejections

RECEIVE_BUFFER_BYTES = 256 * 1024
_POOLED_BYTES_MIN = 64 * 1024
_POOLED_BYTES_MAX = 4 * 1024 * 1024
_POOLED_BUFFERS_MAX = 4


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on clients, as configured."""

    frame_bytes_max: int = 100 * 1024 * 1024
    request_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 10_000
    connections_per_address_max: int = 10_000
    connections_per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    idle_ms_max: int = 600_000
    #: Time for a frame that began to become whole (long ones get more, by their length).
    frame_ms_max: int = 30_000
    #: Time for which a client may read nothing of the answers that wait for it.
    unread_ms_max: int = 60_000
    inflight_requests_max: int = 64
    inflight_bytes_max: int = 64 * 1024 * 1024


@dataclass(slots=True)
class GateCounters:
    """Totals since the start, for the metrics."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    memory_waits: int = 0


class Gate:
    """Admission of connections and of request memory. Used on the event loop only."""

    __slots__ = (
        "_addresses",
        "_pool",
        "_waiting",
        "connections",
        "counters",
        "failures",
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
        #: Bytes of frame buffers handed out; at most `limits.request_bytes_max`.
        self.reserved_bytes = 0
        self.connections = 0
        self._addresses: Counter[str] = Counter()
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def configure(self, limits: ConnectionLimits) -> None:
        """Apply limits that were changed at run time."""
        self.limits = limits

    def admit(self, address: str) -> str | None:
        """Count a new connection in; or say why it is refused."""
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
        """Count an admitted connection out."""
        self.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self.counters.closed[reason] += 1

    def reserve(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes; None when memory for requests has run out, or when
        others already wait for it (so that a large request is not starved by small ones)."""
        capacity = _capacity(size)
        if self._waiting or self.reserved_bytes + capacity > self.limits.request_bytes_max:
            return None
        return self._take(capacity)

    def wait(self, size: int, ready: Callable[[], None]) -> None:
        """Have `ready` called once `size` bytes are free, in order of asking."""
        self.counters.memory_waits += 1
        self._waiting.append((_capacity(size), ready))

    def forget(self, ready: Callable[[], None]) -> None:
        """Drop a wait whose connection has gone."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != ready)
        self._wake()

    def take_waited(self, size: int) -> bytearray:
        """The buffer that a `ready` callback was called for."""
        return self._take(_capacity(size))

    def release(self, buffer: bytearray) -> None:
        capacity = len(buffer)
        self.reserved_bytes -= capacity
        if _POOLED_BYTES_MIN <= capacity <= _POOLED_BYTES_MAX:
            pooled = self._pool.setdefault(capacity, [])
            if len(pooled) < _POOLED_BUFFERS_MAX:
                pooled.append(buffer)
        if self._waiting:
            self._wake()

    def _take(self, capacity: int) -> bytearray:
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
    """Buffers in the pooled range come in powers of two, so that they can be used again."""
    if _POOLED_BYTES_MIN <= size <= _POOLED_BYTES_MAX:
        return 1 << (size - 1).bit_length()
    return size

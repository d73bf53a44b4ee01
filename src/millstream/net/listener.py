"""Accepts connections: the bound sockets, the live connections, the check for stalled clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.env.clock import Clock
from millstream.env.network import Listener, Network
from millstream.model.failure import CallbackKind
from millstream.net.connection import Connection
from millstream.net.frame_handler import FrameHandler
from millstream.net.gate import Gate
from millstream.net.tls_transport import TlsEndpoint, TlsTransport

CHECK_S = 1.0


class Acceptor:
    """The listening sockets of a broker, and the connections accepted on them."""

    __slots__ = (
        "_clock",
        "_connections",
        "_empty",
        "_gate",
        "_handshakes",
        "_listeners",
        "_network",
        "_timer",
    )

    def __init__(self, network: Network, clock: Clock, gate: Gate) -> None:
        self._network = network
        self._clock = clock
        self._gate = gate
        self._listeners: list[Listener] = []
        self._connections: dict[Connection, None] = {}
        #: Connections with TLS whose handshake is in progress, oldest first.
        self._handshakes: dict[TlsTransport, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Resolved when the last connection is closed; made by `drained`.
        self._empty: asyncio.Future[None] | None = None

    async def bind(
        self,
        host: str,
        port: int,
        make_handler: Callable[[Connection], FrameHandler],
        tls: TlsEndpoint | None = None,
        name: str = "",
    ) -> tuple[str, int]:
        """Bind an address and return it, with the real port. Raises OSError."""

        def make_connection() -> Connection:
            connection = Connection(self._gate, self._clock, make_handler, self._lost, name)
            if tls is None:
                self._connections[connection] = None
            return connection

        def make_tls_transport() -> TlsTransport:
            assert tls is not None
            transport = TlsTransport(
                self._gate,
                self._clock,
                tls,
                make_connection(),
                self._end_handshake,
                self._evict_handshake,
            )
            self._handshakes[transport] = None
            return transport

        listener = await self._network.bind(
            host, port, make_connection if tls is None else make_tls_transport
        )
        self._listeners.append(listener)
        return listener.address()

    async def start_accepting(self) -> None:
        """Accept connections on all bound sockets, and check all connections every `CHECK_S`."""
        for listener in self._listeners:
            await listener.start()
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check_all)

    async def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay open."""
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()

    def close_connections(self) -> None:
        """Close every connection after its queued responses were sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for transport in list(self._handshakes):
            transport.abort()
        for connection in list(self._connections):
            connection.close("shutdown")

    async def drained(self, wait_s_max: float) -> None:
        """Wait until all connections are closed; abort the rest after `wait_s_max`."""
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=wait_s_max)
        self.abort_connections("shutdown")

    def abort_connections(self, reason: str) -> None:
        """Abort every connection; responses that were not sent are lost."""
        for connection in list(self._connections):
            connection.abort(reason)

    def _evict_handshake(self) -> None:
        """End the oldest handshake that is in progress."""
        for transport in self._handshakes:
            if transport.evict():
                return

    def _end_handshake(self, transport: TlsTransport) -> None:
        self._handshakes.pop(transport, None)
        if transport.connection is not None:
            self._connections[transport.connection] = None

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _check_all(self) -> None:
        now = self._clock.monotonic()
        failures = self._gate.failures
        for connection in list(self._connections):
            failures.run(CallbackKind.CONNECTION, connection.address, connection.check, now)
        for transport in list(self._handshakes):
            failures.run(CallbackKind.CONNECTION, "a TLS handshake", transport.check, now)
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check_all)

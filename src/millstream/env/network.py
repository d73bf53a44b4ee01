"""The network: listening and connecting, as asyncio transports and protocols."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

#: Limits of connections with TLS that this process opens.
HANDSHAKE_S_MAX: Final = 10.0
SHUTDOWN_S_MAX: Final = 1.0


class Listener(Protocol):
    """A bound socket."""

    def address(self) -> tuple[str, int]:
        """Return the bound address; the port is never 0."""
        ...

    async def start(self) -> None:
        """Start to accept connections. Until then they are refused."""
        ...

    async def close(self) -> None:
        """Stop accepting. Accepted connections stay open."""
        ...


class Network(Protocol):
    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        """Bind to an address. Raises OSError."""
        ...

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Transport:
        """Connect, with TLS if a context is given. Raises OSError."""
        ...


class _SystemListener:
    __slots__ = ("_server",)

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        self._server.close()


class SystemNetwork:
    """TCP through the running event loop.

    Buffer sizes apply to accepted connections; -1 uses the system's default."""

    __slots__ = ("_backlog", "_receive_buffer_bytes", "_send_buffer_bytes")

    def __init__(
        self, backlog: int = 1024, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1
    ) -> None:
        self._backlog = backlog
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            factory,
            host or None,
            port,
            backlog=self._backlog,
            reuse_address=True,
            start_serving=False,
        )
        for listening in server.sockets:
            # Accepted sockets inherit both sizes. The receive buffer must be set before a client
            # connects, because it limits the TCP window of the handshake.
            self._set_buffer(listening, socket.SO_SNDBUF, self._send_buffer_bytes)
            self._set_buffer(listening, socket.SO_RCVBUF, self._receive_buffer_bytes)
        return _SystemListener(server)

    def _set_buffer(self, listening: socket.socket, option: int, size: int) -> None:
        if size >= 0:
            listening.setsockopt(socket.SOL_SOCKET, option, size)

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        if tls is None:
            transport, _ = await loop.create_connection(factory, host, port)
        else:
            transport, _ = await loop.create_connection(
                factory,
                host,
                port,
                ssl=tls,
                server_hostname=host,
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=SHUTDOWN_S_MAX,
            )
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport

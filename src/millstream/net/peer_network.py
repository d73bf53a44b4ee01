"""The network for connections to other brokers: opens a transport, logs in, hands it over.

    open    connect, with a protocol that only waits
    login   `log_in` exchanges the messages of the login through protocols of its own
    hand    the caller's protocol gets the transport, as if it had been connected just now

The caller sees a connection that is ready for requests, or an OSError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millstream.env.network import Listener, Network

#: Logs in on a transport, whose protocol it may replace. Returns the seconds for which the login is
#: valid, None for ever. Raises OSError.
LogIn = Callable[[asyncio.Transport], Awaitable[float | None]]

#: The share of a login's lifetime after which the connection is closed.
_LIFETIME_SHARE: Final = 0.8


class LoginEndedError(ConnectionError):
    """The connection is closed by this side, because its login will expire. Its owner connects
    again."""


class _Waiting(asyncio.BufferedProtocol):
    """The protocol of a transport that nobody uses yet. The other broker sends nothing."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray(64)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer


class PeerNetwork:
    """Connects to other brokers, and logs in."""

    __slots__ = ("_log_in", "_network")

    def __init__(self, network: Network, log_in: LogIn | None = None) -> None:
        self._network = network
        self._log_in = log_in

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        return await self._network.bind(host, port, factory)

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        if self._log_in is None:
            return await self._network.connect(host, port, factory)
        transport = await self._network.connect(host, port, _Waiting)
        try:
            lifetime_s = await self._log_in(transport)
        except BaseException:
            transport.abort()
            raise
        if transport.is_closing():
            raise ConnectionResetError("the other broker closed the connection after the login")
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if lifetime_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(lifetime_s * _LIFETIME_SHARE, _end, transport, protocol)
        return transport


def _end(transport: asyncio.Transport, protocol: asyncio.BufferedProtocol) -> None:
    """Close a connection whose login will expire, and tell its protocol the reason."""
    if not transport.is_closing():
        transport.set_protocol(_Waiting())
        transport.abort()
        protocol.connection_lost(LoginEndedError("the login of the connection ends"))

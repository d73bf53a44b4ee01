"""The network for connections to other brokers: TLS and the login of the inter-broker listener.

    open    connect, with TLS if the listener has it
    login   `log_in` exchanges the messages of the login through protocols of its own
    hand    the caller's protocol gets the transport, as if it had been connected just now

Callers use it like any other `Network`. They get a connection that is ready for requests, or an
OSError.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from millstream.env.network import Listener, Network

_logger = logging.getLogger(__name__)

LOG_S: Final = 10.0
#: Logs in on a transport, whose protocol it may replace. Returns the seconds for which the login is
#: valid, None for ever. Raises OSError.
LogIn = Callable[[asyncio.Transport], Awaitable[float | None]]

#: The share of a login's lifetime after which the connection is closed.
_LIFETIME_SHARE: Final = 0.8


def _no_tls() -> ssl.SSLContext | None:
    return None


class LoginEndedError(ConnectionError):
    """The connection is closed by this side, because its login will expire. Its owner connects
    again."""


class _Waiting(asyncio.BufferedProtocol):
    """The protocol of a transport that no caller uses yet. The other broker sends nothing."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray(64)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer


class PeerNetwork:
    """Connects to other brokers: `env.network.Network`."""

    __slots__ = ("_log_in", "_logged_at", "_network", "_tls")

    def __init__(
        self,
        network: Network,
        tls: Callable[[], ssl.SSLContext | None] = _no_tls,
        log_in: LogIn | None = None,
    ) -> None:
        self._network = network
        #: Returns the context of the next connection; None for connections without TLS.
        self._tls = tls
        #: None if the listener needs no login.
        self._log_in = log_in
        #: By address of a broker.
        self._logged_at: dict[str, float] = {}

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener:
        return await self._network.bind(host, port, factory)

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Transport:
        """Connect to a broker's inter-broker listener. Raises OSError; if the broker's certificate
        is not accepted, its subclass ssl.SSLError."""
        context = tls or self._tls()
        if self._log_in is None:
            return await self._open(host, port, factory, context)
        transport = await self._open(host, port, _Waiting, context)
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

    async def _open(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        context: ssl.SSLContext | None,
    ) -> asyncio.Transport:
        try:
            return await self._network.connect(host, port, factory, context)
        except ssl.SSLError as error:
            self._note(f"{host}:{port}", error)
            raise

    def _note(self, address: str, error: ssl.SSLError) -> None:
        """Log why TLS to a broker fails, once in `LOG_S` for each broker: callers retry."""
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(address, -LOG_S) < LOG_S:
            return
        self._logged_at[address] = now
        _logger.warning("no TLS connection to the broker at %s: %s", address, error)


def _end(transport: asyncio.Transport, protocol: asyncio.BufferedProtocol) -> None:
    """Close a connection whose login will expire, and tell its protocol the reason."""
    if not transport.is_closing():
        transport.set_protocol(_Waiting())
        transport.abort()
        protocol.connection_lost(LoginEndedError("the login of the connection ends"))

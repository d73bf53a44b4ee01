"""The network for connections to other brokers: TLS and the login of the inter-broker listener.

A connection is opened in three steps: the transport, with TLS if the listener has it; the login, if
the listener needs one; the caller's protocol. Callers use it like any other `Network`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from millstream.env.network import Listener, Network

_logger = logging.getLogger(__name__)

LOG_S: Final = 10.0


def _no_tls() -> ssl.SSLContext | None:
    return None


class PeerNetwork:
    """Connects to other brokers: `env.network.Network`."""

    __slots__ = ("_logged_at", "_network", "_tls")

    def __init__(
        self, network: Network, tls: Callable[[], ssl.SSLContext | None] = _no_tls
    ) -> None:
        self._network = network
        #: Returns the context of the next connection; None for connections without TLS.
        self._tls = tls
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
        """Connect to a broker's inter-broker listener. Raises OSError; a broker whose certificate
        is not accepted raises ssl.SSLError, which is one."""
        # The login of a SASL listener belongs between the transport and the caller's protocol.
        try:
            return await self._network.connect(host, port, factory, tls or self._tls())
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

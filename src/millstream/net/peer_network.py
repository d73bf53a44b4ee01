"""The network for connections to other brokers: TLS and the login of the inter-broker listener.

A connection is opened in three steps: the transport, with TLS if the listener has it; the login, if
the listener needs one; the caller's protocol. Callers use it like any other `Network`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from millstream.env.network import Listener, Network


def _no_tls() -> ssl.SSLContext | None:
    return None


class PeerNetwork:
    """Connects to other brokers: `env.network.Network`."""

    __slots__ = ("_network", "_tls")

    def __init__(
        self, network: Network, tls: Callable[[], ssl.SSLContext | None] = _no_tls
    ) -> None:
        self._network = network
        #: Returns the context of the next connection; None for connections without TLS.
        self._tls = tls

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
        return await self._network.connect(host, port, factory, tls or self._tls())

"""This broker's login at other brokers, on the inter-broker listener.

The user name and the password come from `sasl.jaas.config` of the listener and the mechanism. The
requests go through a `Peer`, which releases the transport afterwards.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.sasl_check import peer_credentials
from millstream.env.network import Network
from millstream.env.random import Random
from millstream.model.error import BrokerError, ErrorCode
from millstream.net.peer_network import PeerNetwork
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram
from millstream.replication.peer import Peer, PeerError
from millstream.security.sasl.exchange import Mechanism
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_RESPONSE_S_MAX: Final = 10.0
_RESPONSE_BYTES_MAX: Final = 64 * 1024
#: Bits of the client's part of a SCRAM nonce.
_NONCE_BITS: Final = 128


def peer_network(
    config: BrokerConfig,
    network: Network,
    tls: Callable[[], ssl.SSLContext | None],
    random: Random,
    *,
    has_threads: bool,
) -> Network:
    """Return the network for connections to other brokers. `tls` returns the context of the next
    connection; None if the inter-broker listener has no TLS."""
    listener = config.network.inter_broker_listener
    if not config.network.listener_protocols[listener].has_sasl:
        return PeerNetwork(network, tls)
    user, password = peer_credentials(config)
    login = Login(config.sasl.sasl_mechanism_inter_broker_protocol, user, password)
    peer_login = PeerLogin(login, f"broker-{config.node_id}", random, has_threads=has_threads)
    return PeerNetwork(network, tls, peer_login.log_in)


class PeerLogin:
    """Logs in to other brokers on new connections."""

    __slots__ = ("_client_id", "_has_threads", "_login", "_random")

    def __init__(
        self, login: Login, client_id: str, random: Random, *, has_threads: bool = True
    ) -> None:
        self._has_threads = has_threads
        self._random = random
        self._login = login
        self._client_id = client_id

    async def log_in(self, transport: asyncio.Transport) -> float | None:
        """Log in. Returns for how many seconds the login is valid; None is for ever.

        Raises OSError."""
        peer = Peer(self._client_id, _RESPONSE_BYTES_MAX)
        transport.set_protocol(peer)
        peer.connection_made(transport)
        try:
            lifetime_ms = await self._exchange(peer)
        except (PeerError, BrokerError, ValueError) as error:
            raise OSError(f"the login as {self._login.user} failed: {error}") from error
        return lifetime_ms / 1000 if lifetime_ms > 0 else None

    async def _exchange(self, peer: Peer) -> int:
        login = self._login
        response = await peer.call(
            SaslHandshakeRequest(mechanism=login.mechanism),
            _HANDSHAKE_VERSION,
            SaslHandshakeResponse,
            _RESPONSE_S_MAX,
        )
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(
                ErrorCode(response.error_code),
                f"the other broker supports {', '.join(response.mechanisms)}, not"
                f" {login.mechanism}",
            )
        if login.mechanism == Mechanism.PLAIN:
            message = b"\0".join([b"", login.user.encode(), login.password.encode()])
            return (await _step(peer, message)).session_lifetime_ms
        scram = Scram(login, f"{self._random.getrandbits(_NONCE_BITS):032x}")
        challenge = await _step(peer, scram.first())
        answer = partial(scram.final, challenge.auth_bytes)
        proof = await asyncio.to_thread(answer) if self._has_threads else answer()
        last = await _step(peer, proof)
        scram.check(last.auth_bytes)
        return last.session_lifetime_ms


async def _step(peer: Peer, data: bytes) -> SaslAuthenticateResponse:
    response = await peer.call(
        SaslAuthenticateRequest(auth_bytes=data),
        _AUTHENTICATE_VERSION,
        SaslAuthenticateResponse,
        _RESPONSE_S_MAX,
    )
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(response.error_code), response.error_message)
    return response

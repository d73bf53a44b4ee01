"""Effects of the broker settings for authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from harness.token_issuer import AUDIENCE, ISSUER, TokenIssuer
from millstream.broker.login import bootstrap_user
from millstream.metadata.security_record import encode_credentials, user_key
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram
from millstream.replication.peer import Peer
from millstream.security.audit_event import AuditEvent
from millstream.security.oauth import key_source
from millstream.security.sasl.exchange import SCRAM_MECHANISMS
from millstream.security.sasl.scram import make_credential
from millstream.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from settings.effect import broker_effect
from settings.world import World, connect

PORT: Final = 9093
JAAS: Final = 'M required username="carol" password="one" user_carol="one";'
TOKENS: Final = TokenIssuer()
_CALL_S_MAX: Final = 600.0


async def secure_broker(world: World, node_id: int = 1, **settings: str) -> None:
    """Start a broker with a second listener, which has SASL, and the user alice."""
    host = f"broker-{node_id}"
    given = {
        "listeners": f"PLAINTEXT://{host}:9092,SECURE://{host}:{PORT}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        **settings,
    }
    await world.start(node_id, **given)
    credentials = {
        mechanism.value: make_credential(mechanism, "pencil", b"salt", 4096)
        for mechanism in SCRAM_MECHANISMS
    }
    await world.services(node_id).catalog.alter_key(
        user_key("alice"), lambda _: encode_credentials(credentials)
    )
    await asyncio.sleep(0.1)


async def client_of(world: World) -> Peer:
    network = world.wire.network("client", world.outside)
    return await Peer.connect(network, "broker-1", PORT, "client", _CALL_S_MAX)


async def shake(peer: Peer, mechanism: str) -> SaslHandshakeResponse:
    request = SaslHandshakeRequest(mechanism=mechanism)
    return await peer.call(request, 1, SaslHandshakeResponse, _CALL_S_MAX)


async def step(peer: Peer, data: bytes) -> SaslAuthenticateResponse:
    request = SaslAuthenticateRequest(auth_bytes=data)
    return await peer.call(request, 2, SaslAuthenticateResponse, _CALL_S_MAX)


async def log_in(world: World, user: str = "alice", password: str = "pencil") -> Any:
    """Log in by PLAIN; return the response."""
    peer = await client_of(world)
    await shake(peer, "PLAIN")
    return await step(peer, f"\0{user}\0{password}".encode())


@broker_effect("sasl.enabled.mechanisms", "PLAIN", "SCRAM-SHA-256")
async def _mechanisms(world: World) -> object:
    await secure_broker(world)
    return (await shake(await client_of(world), "PLAIN")).mechanisms


class Events:
    """The events of an audit trail."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def record(self, event: AuditEvent, /) -> None:
        self.actions.append(event.action)


@broker_effect("sasl.mechanism.inter.broker.protocol", "PLAIN", "SCRAM-SHA-512")
async def _how_brokers_log_in(world: World) -> object:
    jaas = 'M required username="alice" password="pencil";'
    await secure_broker(world, **{"inter.broker.listener.name": "SECURE", "sasl.jaas.config": jaas})
    services = world.services()
    services.audit = events = Events()
    peer = await Peer.connect(services.peer_network, "broker-1", PORT, "b", _CALL_S_MAX)
    peer.close()
    return events.actions


@broker_effect("sasl.jaas.config", JAAS, 'M required user_carol="two";')
async def _users_of_plain(world: World) -> object:
    await secure_broker(world)
    return (await log_in(world, "carol", "one")).error_code


@broker_effect("bootstrap.users.file", "/one", "/two")
async def _first_users(world: World) -> object:
    with mock.patch.object(bootstrap_user, "_read", lambda path, _: f"of{path}:password\n"):
        await secure_broker(world)
    return sorted(world.services().catalog.image.users)


@broker_effect("sasl.server.max.receive.size", 1000, 100_000)
async def _large_requests_before_the_login(world: World) -> object:
    await secure_broker(world)
    line = await connect(world.wire.network("other", world.outside), ("broker-1", PORT))
    line.transport.write((5000).to_bytes(4, "big"))
    await asyncio.sleep(1)
    return line.is_lost


@broker_effect("connection.authentication.timeout.ms", 2000, 500_000)
async def _logins_that_do_not_end(world: World) -> object:
    await secure_broker(world)
    line = await connect(world.wire.network("other", world.outside), ("broker-1", PORT))
    await asyncio.sleep(20)
    return line.is_lost


async def _failure_s(world: World) -> int:
    """Return how long a failing login takes, in whole seconds."""
    began_at = world.loop.time()
    assert (await log_in(world, password="wrong")).error_code
    return round(world.loop.time() - began_at)


@broker_effect("connection.failed.authentication.delay.ms", 0, 5000)
async def _failures_are_delayed(world: World) -> object:
    await secure_broker(world)
    return await _failure_s(world)


@broker_effect("max.failed.authentications.per.ip", 1, 1000)
async def _many_failures_are_slow(world: World) -> object:
    await secure_broker(world, **{"connection.failed.authentication.delay.ms": "0"})
    return [await _failure_s(world) for _ in range(3)]


@broker_effect("connections.max.reauth.ms", 0, 5000)
async def _logins_end(world: World) -> object:
    await secure_broker(world)
    return (await log_in(world)).session_lifetime_ms


# OAuth


class Endpoint:
    """An endpoint with the keys of `TOKENS`."""

    def __init__(self) -> None:
        self.fetches = 0
        self.is_down = False

    def fetch(self, url: str) -> bytes:
        self.fetches += 1
        if self.is_down:
            raise OSError("down")
        return b'{"keys": []}' if "other" in url else TOKENS.key_set


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    with mock.patch.object(key_source, "fetch_keys", found.fetch):
        yield found


async def oauth_broker(world: World, **settings: str) -> None:
    await secure_broker(
        world,
        **{
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": "https://keys",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "connection.failed.authentication.delay.ms": "0",
            "max.failed.authentications.per.ip": "1000000",
            **settings,
        },
    )


async def user_of_token(world: World, **claims: Any) -> str:
    """Log in with a token; return the principal, or an empty text if the login failed."""
    services = world.services()
    found: list[str] = []
    events = mock.Mock()
    events.record = lambda event: found.append(event.principal)
    services.audit = events
    peer = await client_of(world)
    await send_token(world, peer, **claims)
    peer.close()
    return found[-1]


async def send_token(world: World, peer: Peer, **claims: Any) -> None:
    """Log in with a token, or fail to."""
    now_s = world.clock.wall_ms() // 1000
    token = TOKENS.token(**{"iat": now_s, "exp": now_s + 100_000, **claims})
    await shake(peer, "OAUTHBEARER")
    response = await step(peer, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    if response.auth_bytes:
        await step(peer, b"\x01")


async def observe_token(world: World, settings: dict[str, str], **claims: Any) -> object:
    with endpoint():
        await oauth_broker(world, **settings)
        return await user_of_token(world, **claims)


@broker_effect("sasl.oauthbearer.jwks.endpoint.url", "https://keys", "https://other")
async def _keys_of_tokens(world: World) -> object:
    return await observe_token(world, {})


@broker_effect("sasl.oauthbearer.expected.audience", AUDIENCE, "x,y")
async def _audience(world: World) -> object:
    return await observe_token(world, {})


@broker_effect("sasl.oauthbearer.expected.issuer", ISSUER, "https://x")
async def _issuer(world: World) -> object:
    return await observe_token(world, {})


@broker_effect("sasl.oauthbearer.clock.skew.seconds", 0, 100)
async def _clock_skew(world: World) -> object:
    return await observe_token(world, {}, exp=world.clock.wall_ms() // 1000 - 50)


@broker_effect("sasl.oauthbearer.sub.claim.name", "sub", "client_id")
async def _name_in_a_token(world: World) -> object:
    return await observe_token(world, {}, client_id="app")


@broker_effect("sasl.oauthbearer.scope.claim.name", "scope", "scp")
async def _scope_in_a_token(world: World) -> object:
    return await observe_token(world, {"sasl.oauthbearer.required.scope": "a"}, scp=["a", "b"])


@broker_effect("sasl.oauthbearer.groups.claim.name", "groups", "roles")
async def _groups_in_a_token(world: World) -> object:
    """Whether a member of the group `operators`, which may do everything, may list users."""
    with endpoint():
        rights = {"authorizer.class.name": "millstream", "super.users": "Group:operators"}
        await oauth_broker(world, **rights)
        peer = await client_of(world)
        await send_token(world, peer, roles=["operators"])
        response = await peer.call(
            DescribeUserScramCredentialsRequest(), 0, DescribeUserScramCredentialsResponse, 10.0
        )
        peer.close()
        return response.error_code


@broker_effect("sasl.oauthbearer.required.scope", "a", "a,b")
async def _required_scope(world: World) -> object:
    return await observe_token(world, {}, scope="a c")


async def _fetches(
    world: World, logins: int, pause_s: float, prepare: Callable[[Endpoint], None], **settings: str
) -> int:
    with endpoint() as keys:
        await oauth_broker(world, **settings)
        prepare(keys)
        for _ in range(logins):
            await user_of_token(world)
            await asyncio.sleep(pause_s)
        return keys.fetches


def _take_down(keys: Endpoint) -> None:
    keys.is_down = True


@broker_effect("sasl.oauthbearer.jwks.endpoint.refresh.ms", 1000, 10**7)
async def _keys_are_refreshed(world: World) -> object:
    return await _fetches(world, 5, 2.0, lambda _: None)


@broker_effect("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100, 9000)
async def _failed_fetches_are_retried(world: World) -> object:
    return await _fetches(world, 3, 1.0, _take_down)


@broker_effect("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 100, 10**6)
async def _pauses_have_a_limit(world: World) -> object:
    return await _fetches(world, 30, 1.0, _take_down)


# Delegation tokens


async def make_token(world: World) -> CreateDelegationTokenResponse:
    peer = await client_of(world)
    await shake(peer, "SCRAM-SHA-256")
    scram = Scram(Login("SCRAM-SHA-256", "alice", "pencil"), "nonce")
    challenge = await step(peer, scram.first())
    assert not (await step(peer, scram.final(challenge.auth_bytes))).error_code
    request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
    return await peer.call(request, 3, CreateDelegationTokenResponse, _CALL_S_MAX)


async def token_broker(world: World, **settings: str) -> None:
    await secure_broker(world, **{"delegation.token.secret.key": "key", **settings})


@broker_effect("delegation.token.secret.key", "one", "two")
async def _secret_of_tokens(world: World) -> object:
    await token_broker(world)
    made = await make_token(world)
    assert made.error_code == 0
    return made.hmac


@broker_effect("delegation.token.max.lifetime.ms", 50_000, 70_000)
async def _longest_lifetime_of_a_token(world: World) -> object:
    await token_broker(world)
    made = await make_token(world)
    return made.max_timestamp_ms - made.issue_timestamp_ms


@broker_effect("delegation.token.expiry.time.ms", 50_000, 70_000)
async def _lifetime_of_a_token(world: World) -> object:
    await token_broker(world)
    made = await make_token(world)
    return made.expiry_timestamp_ms - made.issue_timestamp_ms


@broker_effect("delegation.token.expiry.check.interval.ms", 1000, 10**8)
async def _expired_tokens_are_deleted(world: World) -> object:
    await token_broker(world, **{"delegation.token.expiry.time.ms": "2000"})
    await make_token(world)
    await asyncio.sleep(10)
    return len(world.services().catalog.image.tokens)

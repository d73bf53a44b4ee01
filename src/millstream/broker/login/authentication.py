"""Authentication on this broker: which mechanisms each listener has, their exchanges, the counts.

Exchanges derive keys and wait for OAuth keys in threads: PLAIN and delegation tokens in one pool,
OAUTHBEARER in another, so that a slow key set endpoint delays no other mechanism.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.broker.login.failed_login import FailedLogins
from millstream.model.jaas import parse_jaas, plain_users
from millstream.security.credential_store import CredentialStore
from millstream.security.sasl.exchange import (
    Accepted,
    AuthenticationError,
    Challenge,
    Exchange,
    Identity,
    Mechanism,
    Work,
)
from millstream.security.sasl.oauth_bearer import OAuthBearerServer
from millstream.security.sasl.plain import PlainServer
from millstream.security.sasl.scram import ScramServer

if TYPE_CHECKING:
    from millstream.broker.config.broker_config import BrokerConfig
    from millstream.broker.dispatch import ApiTable
    from millstream.env.clock import Clock
    from millstream.env.random import Random

#: Threads of each pool.
THREADS_MAX: Final = 2
#: Bits of the server's part of a SCRAM nonce.
_NONCE_BITS: Final = 160


@dataclass(slots=True)
class LoginCounters:
    """Totals since the start of the broker, by listener."""

    succeeded: Counter[str]
    failed: Counter[str]
    renewed: Counter[str]
    renewals_failed: Counter[str]
    #: Connections closed because their authentication had expired.
    expired: Counter[str]


@dataclass(frozen=True, slots=True)
class ListenerLogin:
    """The settings of one listener's logins."""

    mechanisms: tuple[Mechanism, ...]
    #: Passwords of PLAIN's users by name.
    plain_users: Mapping[str, str]
    #: Longest validity of a login by mechanism, in milliseconds; 0 is unlimited.
    session_ms_max: Mapping[Mechanism, int]


class Authentication:
    """The logins of one broker's listeners. Event loop only."""

    __slots__ = (
        "_pools",
        "_random",
        "counters",
        "credentials",
        "delay_s",
        "failures",
        "has_threads",
        "listeners",
        "login_apis",
        "login_s_max",
        "request_bytes_max",
        "validate_token",
    )

    def __init__(
        self,
        config: BrokerConfig,
        credentials: CredentialStore,
        random: Random,
        login_apis: ApiTable,
        validate_token: Callable[[str], Identity] | None,
        *,
        has_threads: bool,
    ) -> None:
        self.credentials = credentials
        self._random = random
        #: The APIs of a client that is not authenticated.
        self.login_apis = login_apis
        self.validate_token = validate_token
        self.has_threads = has_threads
        self.listeners = listener_logins(config)
        self.failures = FailedLogins(config.sasl.max_failed_authentications_per_ip)
        self.delay_s = config.sasl.connection_failed_authentication_delay_ms / 1000
        self.login_s_max = config.sasl.connection_authentication_timeout_ms / 1000
        self.request_bytes_max = config.sasl.sasl_server_max_receive_size
        self.counters = LoginCounters(Counter(), Counter(), Counter(), Counter(), Counter())
        self._pools: dict[bool, ThreadPoolExecutor] = {}

    def exchange(self, listener: str, mechanism: Mechanism) -> Exchange:
        """Return the server side of a new login."""
        match mechanism:
            case Mechanism.PLAIN:
                return PlainServer(self.listeners[listener].plain_users, self.credentials)
            case Mechanism.OAUTHBEARER:
                assert self.validate_token is not None, "the settings were checked"
                return OAuthBearerServer(self.validate_token)
        nonce = f"{self._random.getrandbits(_NONCE_BITS):040x}"
        return ScramServer(mechanism, self.credentials, nonce)

    def start(self, work: Work, mechanism: Mechanism) -> asyncio.Future[Challenge | Accepted]:
        """Run a slow step in a thread. The future may raise AuthenticationError. If it is cancelled
        while it waits for a thread, the step is not run."""
        loop = asyncio.get_running_loop()
        if not self.has_threads:
            done: asyncio.Future[Challenge | Accepted] = loop.create_future()
            try:
                done.set_result(work.run())
            except AuthenticationError as error:
                done.set_exception(error)
            return done
        is_oauth = mechanism is Mechanism.OAUTHBEARER
        pool = self._pools.get(is_oauth)
        if pool is None:
            pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="login")
            self._pools[is_oauth] = pool
        return loop.run_in_executor(pool, work.run)

    def close(self) -> None:
        """Stop the threads. Steps that have begun end by themselves."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def token_validation(config: BrokerConfig, clock: Clock) -> Callable[[str], Identity] | None:
    """Return how OAuth tokens are validated; None if no listener has OAUTHBEARER."""
    logins = listener_logins(config).values()
    if not any(Mechanism.OAUTHBEARER in login.mechanisms for login in logins):
        return None
    # Imported here, because a broker starts faster without it.
    from millstream.security.oauth.key_source import KeySource, KeyTimes
    from millstream.security.oauth.token_validator import TokenRules, TokenValidator

    sasl = config.sasl
    retry_s_max = sasl.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
    times = KeyTimes(
        refresh_s=sasl.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        retry_s=sasl.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
        retry_s_max=retry_s_max,
        unknown_s_min=retry_s_max,
    )
    rules = TokenRules(
        issuer=sasl.sasl_oauthbearer_expected_issuer or "",
        audiences=sasl.sasl_oauthbearer_expected_audience,
        clock_skew_s=sasl.sasl_oauthbearer_clock_skew_seconds,
        subject_claim=sasl.sasl_oauthbearer_sub_claim_name,
        scope_claim=sasl.sasl_oauthbearer_scope_claim_name,
        groups_claim=sasl.sasl_oauthbearer_groups_claim_name,
        scopes=sasl.sasl_oauthbearer_required_scope,
    )
    keys = KeySource(sasl.sasl_oauthbearer_jwks_endpoint_url or "", times, clock.monotonic)
    return TokenValidator(keys, rules, clock.wall_ms).validate


def listener_logins(config: BrokerConfig) -> dict[str, ListenerLogin]:
    """Return the logins of the listeners with SASL, by listener."""
    return {
        listener: _listener_login(config, listener)
        for listener, protocol in config.network.listener_protocols.items()
        if protocol.has_sasl
    }


def _listener_login(config: BrokerConfig, listener: str) -> ListenerLogin:
    enabled = config.listener_value(listener, "sasl.enabled.mechanisms")
    mechanisms = tuple(Mechanism(name) for name in enabled)
    jaas = config.mechanism_value(listener, Mechanism.PLAIN, "sasl.jaas.config")
    return ListenerLogin(
        mechanisms=mechanisms,
        plain_users=plain_users(parse_jaas(jaas)) if jaas else {},
        session_ms_max={
            mechanism: config.mechanism_value(listener, mechanism, "connections.max.reauth.ms")
            for mechanism in mechanisms
        },
    )

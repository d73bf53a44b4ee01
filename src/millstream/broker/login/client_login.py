"""The login of one connection, on a listener with SASL. Decides and counts; sessions call it.

States:

    NEW             SaslHandshake names a mechanism                      -> EXCHANGING
    EXCHANGING      SaslAuthenticate, until the mechanism accepts        -> AUTHENTICATED
    AUTHENTICATED   SaslHandshake begins a renewal (KIP-368)             -> EXCHANGING

After version 0 of SaslHandshake the messages come without SaslAuthenticate (`raw_login.py`).

A failure in any state ends in a delayed error response, after which the connection is closed. Until
the client is authenticated, and during a renewal, it may call only the APIs of the login, and
ApiVersions a few times: its response is many times longer than the request. A login that takes
longer than its time limit ends the connection.

A renewal may change neither the mechanism nor the principal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millstream.broker.context import CloseConnectionError, ConnectedClient, Context
from millstream.broker.login.failed_login import SLOW_S
from millstream.broker.login.raw_login import RawLogin
from millstream.model.error import ErrorCode
from millstream.model.principal import GROUP
from millstream.net.rejection import RejectedRequestError, Rejection
from millstream.security.audit_event import AuditEvent, AuditKind
from millstream.security.sasl.exchange import (
    Accepted,
    AuthenticationError,
    Challenge,
    Exchange,
    Identity,
    Mechanism,
    Work,
)
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from millstream.broker.login.authentication import Authentication
    from millstream.net.connection import Connection

_ResponseT = TypeVar("_ResponseT", SaslHandshakeResponse, SaslAuthenticateResponse)

#: ApiVersions requests during one login. Clients send one for each version that they try.
VERSION_REQUESTS_MAX: Final = 10
#: Shortest time between two renewals of one connection.
RENEWAL_S_MIN: Final = 1.0
#: The version of SaslHandshake from which SaslAuthenticate follows.
_AUTHENTICATE_SINCE: Final = 1


class ClientLogin:
    """The state of one connection's login."""

    __slots__ = (
        "_authentication",
        "_client",
        "_connection",
        "_exchange",
        "_is_busy",
        "_listener",
        "_mechanism",
        "_renewed_at",
        "_step",
        "_step_began_at",
        "_tasks",
        "_timer",
        "_version_requests",
        "identity",
    )

    def __init__(
        self,
        authentication: Authentication,
        listener: str,
        client: ConnectedClient,
        connection: Connection,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._authentication = authentication
        self._listener = listener
        self._client = client
        self._connection = connection
        #: The request tasks of the whole server.
        self._tasks = tasks
        self._mechanism: Mechanism | None = None
        #: The exchange in progress.
        self._exchange: Exchange | None = None
        #: Whether a step of the exchange is running.
        self._is_busy = False
        self._renewed_at = -math.inf
        #: The step that runs in a thread, or waits for one.
        self._step: asyncio.Future[Challenge | Accepted] | None = None
        self._step_began_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: ApiVersions requests since the login began.
        self._version_requests = 0
        #: Who the client is; None until it is authenticated.
        self.identity: Identity | None = None
        self._begin()

    def _begin(self) -> None:
        """Allow only the APIs of the login, for a limited time."""
        authentication = self._authentication
        self._client.apis = authentication.login_apis
        self._client.expires_at = math.inf
        self._version_requests = 0
        self._connection.frame_bytes_max = authentication.request_bytes_max
        self._timer = asyncio.get_running_loop().call_later(
            authentication.login_s_max, self._time_out
        )

    @property
    def is_in_progress(self) -> bool:
        """Whether messages of a mechanism are exchanged."""
        return self._exchange is not None

    def _time_out(self) -> None:
        self._reject("the client did not log in in time")

    def closed(self) -> None:
        """Stop the time limit and a step that runs: the connection is closed.

        A step that was not awaited counts as a failure: it has cost as much as one."""
        self._stop_timer()
        if self._step is not None:
            self._step.cancel()
            authentication = self._authentication
            authentication.counters.failed[self._listener] += 1
            authentication.failures.note(self._client.address, self._step_began_at)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note_expired(self) -> None:
        """Count a connection that is closed because its authentication has expired."""
        self._authentication.counters.expired[self._listener] += 1

    def note_version_request(self) -> None:
        """Count an ApiVersions request. Raises CloseConnectionError if there are too many."""
        self._version_requests += 1
        if self._timer is not None and self._version_requests > VERSION_REQUESTS_MAX:
            raise CloseConnectionError("too many ApiVersions requests before the login")

    # SaslHandshake

    def handshake(
        self, request: SaslHandshakeRequest, context: Context
    ) -> SaslHandshakeResponse | Coroutine[Any, Any, SaslHandshakeResponse]:
        """Begin an exchange."""
        if self._exchange is not None or self._is_busy:
            raise CloseConnectionError("a login is in progress")
        settings = self._authentication.listeners[self._listener]
        if self.identity is not None:
            now = context.services.clock.monotonic()
            if now - self._renewed_at < RENEWAL_S_MIN:
                return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            self._renewed_at = now
            self._begin()
        response = SaslHandshakeResponse(mechanisms=list(settings.mechanisms))
        if request.mechanism not in settings.mechanisms:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            reason = f"the mechanism {request.mechanism!r} is not enabled"
            return self._fail(response, reason, context)
        mechanism = Mechanism(request.mechanism)
        if self.identity is not None and mechanism is not self._mechanism:
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            reason = f"a renewal changed the mechanism to {mechanism}"
            return self._fail(response, reason, context)
        self._mechanism = mechanism
        self._exchange = self._authentication.exchange(self._listener, mechanism)
        if context.version < _AUTHENTICATE_SINCE:
            RawLogin(self, context, self._connection, self._tasks)
        return response

    # SaslAuthenticate

    def authenticate(
        self, request: SaslAuthenticateRequest, context: Context
    ) -> SaslAuthenticateResponse | Coroutine[Any, Any, SaslAuthenticateResponse]:
        """Give a message of the client to the exchange."""
        exchange, mechanism = self._exchange, self._mechanism
        if self._is_busy:
            raise CloseConnectionError("a login is in progress")
        if exchange is None or mechanism is None:
            if self.identity is not None:
                return SaslAuthenticateResponse(
                    error_code=ErrorCode.ILLEGAL_SASL_STATE,
                    error_message="SaslAuthenticate request received after successful"
                    " authentication",
                )
            raise CloseConnectionError("SaslAuthenticate came before SaslHandshake")
        failures, now = self._authentication.failures, context.services.clock.monotonic()
        if failures.is_slow(self._client.address, now):
            self._is_busy = True
            return self._authenticate_slowly(exchange, mechanism, request.auth_bytes, context)
        try:
            step = exchange.respond(request.auth_bytes)
        except AuthenticationError as error:
            return self._fail(self._error_response(mechanism), str(error), context)
        if isinstance(step, Work):
            self._is_busy = True
            return self._work(step, mechanism, context)
        return self._advance(step, mechanism, context)

    async def _authenticate_slowly(
        self, exchange: Exchange, mechanism: Mechanism, message: bytes, context: Context
    ) -> SaslAuthenticateResponse:
        failures, address = self._authentication.failures, self._client.address
        if not failures.begin_wait(address):
            return await self._close_without_response(mechanism, context)
        try:
            await asyncio.sleep(SLOW_S)
        finally:
            failures.end_wait(address)
        try:
            step = exchange.respond(message)
        except AuthenticationError as error:
            return await self._fail(self._error_response(mechanism), str(error), context)
        if isinstance(step, Work):
            return await self._work(step, mechanism, context)
        self._is_busy = False
        found = self._advance(step, mechanism, context)
        return found if isinstance(found, SaslAuthenticateResponse) else await found

    async def _close_without_response(
        self, mechanism: Mechanism, context: Context
    ) -> SaslAuthenticateResponse:
        """Close the connection without a response. Clients take that for a lost connection and
        retry; after an error response they give up, also those with the right password."""
        reason = "too many failed logins from this address"
        self._authentication.counters.failed[self._listener] += 1
        self._audit(ErrorCode.SASL_AUTHENTICATION_FAILED.name, reason, context)
        await asyncio.sleep(SLOW_S)
        self._reject(reason, context.client_id)
        # Not sent, as the connection is closed.
        return self._error_response(mechanism)

    async def _work(
        self, work: Work, mechanism: Mechanism, context: Context
    ) -> SaslAuthenticateResponse:
        self._step_began_at = context.services.clock.monotonic()
        self._step = self._authentication.start(work, mechanism)
        try:
            step = await self._step
        except AuthenticationError as error:
            self._step = None
            return await self._fail(self._error_response(mechanism), str(error), context)
        self._step = None
        self._is_busy = False
        found = self._advance(step, mechanism, context)
        return found if isinstance(found, SaslAuthenticateResponse) else await found

    def _advance(
        self, step: Challenge | Accepted, mechanism: Mechanism, context: Context
    ) -> SaslAuthenticateResponse | Coroutine[Any, Any, SaslAuthenticateResponse]:
        if isinstance(step, Challenge):
            return SaslAuthenticateResponse(auth_bytes=step.data)
        found, former = step.identity, self.identity
        if former is not None and found.principal != former.principal:
            reason = f"a renewal changed the principal from {former.principal}"
            return self._fail(self._error_response(mechanism), reason, context)
        lifetime_ms = self._lifetime_ms(found, mechanism, context.services.clock.wall_ms())
        if lifetime_ms == 0:
            reason = "the credential has expired"
            return self._fail(self._error_response(mechanism), reason, context)
        self._accept(found, lifetime_ms, context)
        return SaslAuthenticateResponse(
            auth_bytes=step.data, session_lifetime_ms=0 if lifetime_ms is None else lifetime_ms
        )

    def _lifetime_ms(self, identity: Identity, mechanism: Mechanism, now_ms: int) -> int | None:
        """Return how long the login is valid; None is for ever."""
        limit_ms = self._authentication.listeners[self._listener].session_ms_max[mechanism]
        limits = [limit_ms] if limit_ms else []
        if identity.expires_ms is not None:
            limits.append(max(identity.expires_ms - now_ms, 0))
        return min(limits, default=None)

    def _accept(self, identity: Identity, lifetime_ms: int | None, context: Context) -> None:
        counters, services = self._authentication.counters, context.services
        counts = counters.succeeded if self.identity is None else counters.renewed
        counts[self._listener] += 1
        self._stop_timer()
        self._exchange = None
        self.identity = identity
        client = self._client
        client.principal = identity.principal._replace(
            groups=tuple(f"{GROUP}:{name}" for name in identity.groups)
        )
        client.apis = services.apis
        client.expires_at = math.inf
        if lifetime_ms is not None:
            client.expires_at = services.clock.monotonic() + lifetime_ms / 1000
        self._connection.frame_bytes_max = None
        self._audit("ok", "", context)

    # Failures

    def _fail(
        self, response: _ResponseT, reason: str, context: Context
    ) -> Coroutine[Any, Any, _ResponseT]:
        """Count a failure; return the delayed response, after which the connection is closed."""
        authentication, services = self._authentication, context.services
        self._is_busy = True
        counters = authentication.counters
        counts = counters.failed if self.identity is None else counters.renewals_failed
        counts[self._listener] += 1
        authentication.failures.note(self._client.address, services.clock.monotonic())
        self._audit(ErrorCode(response.error_code).name, reason, context)
        return self._respond_late(response, reason, context.client_id)

    async def _respond_late(
        self, response: _ResponseT, reason: str, client_id: str | None
    ) -> _ResponseT:
        await asyncio.sleep(self._authentication.delay_s)
        # The session sends the response before the loop calls this.
        asyncio.get_running_loop().call_soon(self._reject, reason, client_id)
        return response

    def _error_response(self, mechanism: Mechanism) -> SaslAuthenticateResponse:
        during = "authentication" if self.identity is None else "re-authentication"
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"Authentication failed during {during} due to invalid credentials with"
            f" SASL mechanism {mechanism}",
        )

    def _reject(self, reason: str, client_id: str | None = None) -> None:
        self._connection.reject(
            RejectedRequestError(Rejection.AUTHENTICATION, reason, client_id, "a login")
        )

    def _audit(self, outcome: str, detail: str, context: Context) -> None:
        identity = self.identity
        context.services.audit.record(
            AuditEvent(
                AuditKind.AUTHENTICATION,
                self._mechanism or "",
                "" if identity is None else str(identity.principal),
                self._client.address,
                context.client_id or "",
                f"listener:{self._listener}",
                outcome,
                detail,
            )
        )

"""The session of one connection: reads requests, and sends responses in the order of the requests.

A request is handled as soon as it is read, even while earlier requests wait (a long Fetch, a
Produce that waits for replicas). Its response is held back until the earlier responses are sent. At
`inflight_requests_max` requests in progress, or `inflight_bytes_max` bytes of responses held back,
the connection is not read.

The session owns the replies of its requests. When the client disconnects, the session cancels the
open replies and releases the files of responses that were not sent.

A request that cannot be parsed is rejected, and its connection is closed. A request whose handler
or callback raises gets an error response, and the connection stays open; if there is no error
response, the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from millstream.broker.audit.audited import Recorder
from millstream.broker.audit.certificate_login import record_login
from millstream.broker.context import (
    AccessDeniedError,
    CloseConnectionError,
    ConnectedClient,
    Context,
    Services,
)
from millstream.broker.dispatch import Api
from millstream.broker.error_response import error_response
from millstream.broker.login.client_login import ClientLogin
from millstream.broker.quota.client_throttle import ClientThrottle, milliseconds
from millstream.broker.quota.work_time import MeasuredWork
from millstream.log.reading.slice import LogSlice
from millstream.model.failure import CallbackKind
from millstream.model.reply import Reply, code_of
from millstream.net.connection import Connection
from millstream.net.file_sender import Item, release
from millstream.net.gate import ConnectionLimits
from millstream.net.rejection import RejectedRequestError, Rejection
from millstream.security.quota.limiter import PERCENT, LimitedMeter
from millstream.wire.api import ApiKey
from millstream.wire.framing import RequestHeader, frame_response, parse_request_header
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import Message

#: Maximum size of requests other than Produce, which alone carries records. Decoded, the many small
#: parts of a longer request would take far more memory than its bytes.
OTHER_REQUEST_BYTES_MAX = 8 * 1024 * 1024


class _Slot:
    """A request without a response. The `Receiver` of its reply.

    `segments` is set once the response is encoded and waits for earlier responses."""

    __slots__ = (
        "_session",
        "api",
        "header",
        "is_waiting",
        "local_s",
        "meter",
        "received_at",
        "reply",
        "response",
        "segments",
        "started_at",
        "throttle_ms",
    )

    def __init__(
        self,
        session: Session,
        api: Api,
        header: RequestHeader,
        received_at: float,
        started_at: float,
    ) -> None:
        self._session = session
        self.api = api
        self.header = header
        self.received_at = received_at
        self.started_at = started_at
        #: Duration of the handler's call; set when it has returned.
        self.local_s: float
        #: Whether the handler has returned without a response.
        self.is_waiting = False
        #: Set while the request waits for it.
        self.reply: Reply[Any] | None = None
        #: The response, if the reply ended before the handler returned.
        self.response: Message | None = None
        self.segments: list[Item] | None = None
        #: The time for which the client is throttled because of this request.
        self.throttle_ms = 0
        #: The client's quota on request time; None if it has none. Set when charged.
        self.meter: LimitedMeter | None = None

    def receive(self, result: Message, /) -> None:
        if self.is_waiting:
            self._session.complete(self, result)
        else:
            self.response = result

    def failed(self, kind: str, error: Exception, /) -> None:
        self._session.note_failure(self, kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        self._session.abandon(self, kind, error)


class Session:
    """Handles the frames of one connection (see `net.frame_handler.FrameHandler`)."""

    __slots__ = (
        "_client",
        "_clock",
        "_connection",
        "_is_closed",
        "_is_held",
        "_kept_bytes",
        "_limits",
        "_listener",
        "_services",
        "_slots",
        "_tasks",
    )

    def __init__(
        self,
        connection: Connection,
        services: Services,
        listener: str,
        limits: ConnectionLimits,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._connection = connection
        self._client = ConnectedClient(connection.address, connection.port)
        self._client.principal = connection.principal
        self._services = services
        self._client.apis = services.apis
        authentication = services.authentication
        if authentication is not None and listener in authentication.listeners:
            self._client.login = ClientLogin(
                authentication, listener, self._client, connection, tasks
            )
        record_login(services.audit, connection.principal, connection.address, listener)
        self._clock = services.clock
        self._listener = listener
        self._limits = limits
        #: The request tasks of the whole server, which waits for them at shutdown.
        self._tasks = tasks
        #: Requests in progress, oldest first.
        self._slots: deque[_Slot] = deque()
        self._kept_bytes = 0
        self._is_held = False
        self._is_closed = False

    def receive(self, frame: memoryview) -> None:
        try:
            header = parse_request_header(frame)
        except DecodeError as problem:
            raise RejectedRequestError(Rejection.HEADER, str(problem)) from problem
        client = self._client
        api = client.apis.get(header.api_key)
        if api is None:
            raise self._unknown_api(header)
        if self._connection.received_at > client.expires_at and api.key != ApiKey.SASL_HANDSHAKE:
            raise self._expired(header, api)
        if len(frame) > OTHER_REQUEST_BYTES_MAX and api.key != ApiKey.PRODUCE:
            raise _rejection(
                Rejection.SIZE,
                f"{len(frame)} bytes; at most {OTHER_REQUEST_BYTES_MAX} are allowed",
                header,
                api,
            )
        received_at = self._connection.received_at
        slot = _Slot(self, api, header, received_at, self._clock.monotonic())
        self._services.check_lease()
        version = header.api_version
        if not api.version_min <= version <= api.version_max:
            if api.key != ApiKey.API_VERSIONS:
                raise _rejection(
                    Rejection.VERSION, f"version {version} is not supported", header, api
                )
            request: Message | None = None
        else:
            try:
                request = api.request_codec(version).decode(frame, header.body_position)
            except DecodeError as problem:
                text = f"version {version}: {problem}"
                raise _rejection(Rejection.BODY, text, header, api) from problem
        context = Context(
            self._services,
            self._listener,
            version,
            header.client_id,
            self._client,
            received_at,
            slot,
            api.name,
        )
        self._handle(slot, request, context, len(frame))

    def _unknown_api(self, header: RequestHeader) -> RejectedRequestError:
        kind, reason = Rejection.API, f"API key {header.api_key} is not supported"
        if self._services.apis.get(header.api_key) is not None:
            kind = Rejection.AUTHENTICATION
            reason = f"API key {header.api_key} came before the login"
        return RejectedRequestError(kind, reason, header.client_id)

    def _expired(self, header: RequestHeader, api: Api) -> RejectedRequestError:
        if self._client.login is not None:
            self._client.login.note_expired()
        return _rejection(Rejection.AUTHENTICATION, "the authentication has expired", header, api)

    def _handle(
        self, slot: _Slot, request: Message | None, context: Context, frame_bytes: int
    ) -> None:
        try:
            outcome = slot.api.handle(request, context)
        except CloseConnectionError as reason:
            self._connection.reject(
                _rejection(Rejection.HANDLER, str(reason), slot.header, slot.api)
            )
            return
        except Exception as error:  # noqa: BLE001  # logged and counted
            slot.local_s = self._clock.monotonic() - slot.started_at
            if self._services.quotas is not None:
                self._charge(self._services.quotas, slot, request, context, frame_bytes)
            self._reject_failed(slot, request, context, error)
            return
        now = self._clock.monotonic()
        slot.local_s = now - slot.started_at
        if self._services.quotas is not None:
            self._charge(self._services.quotas, slot, request, context, frame_bytes)
        if type(outcome) is slot.api.response:
            self._respond(slot, outcome, now)
        elif outcome is None:
            self._observe(slot, now)
        elif type(outcome) is Reply:
            response, slot.response = slot.response, None
            if outcome.is_open:
                # An audited change is recorded once it ends, also without its client.
                if type(context.receiver) is not Recorder:
                    slot.reply = outcome
                self._enqueue(slot)
            elif response is not None:
                self._respond(slot, response, now)
            # Otherwise the request was abandoned, and the connection is closed.
        else:
            self._enqueue(slot)
            task = asyncio.get_running_loop().create_task(
                self._await(slot, cast("Coroutine[Any, Any, Message]", outcome), request, context)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _respond(self, slot: _Slot, response: Message, now: float) -> None:
        """Send the response of a request whose handler has just returned."""
        if self._slots:
            self._enqueue(slot)
            self.complete(slot, response)
            return
        # The usual case: no earlier response is pending.
        if self._services.quotas is not None:
            self._show_throttle(slot, response)
        try:
            segments = (
                _encode(slot, response)
                if slot.meter is None
                else self._encode_charged(slot, slot.meter, response)
            )
        except Exception as error:  # noqa: BLE001  # logged, and ends the connection
            self.abandon(slot, CallbackKind.HANDLER, error)
            return
        self._connection.send(segments)
        self._observe(slot, now)

    def _charge(
        self,
        quotas: ClientThrottle,
        slot: _Slot,
        request: Message | None,
        context: Context,
        frame_bytes: int,
    ) -> None:
        """Charge a request that was handled to the quotas of the client."""
        slot.meter = quotas.request_meter(request, context)
        self._throttle(slot, quotas.charge(request, context, frame_bytes, slot.local_s))

    def _throttle(self, slot: _Slot, throttle_ms: int) -> None:
        if throttle_ms > slot.throttle_ms and not self._is_closed:
            slot.throttle_ms = throttle_ms
            self._connection.throttle(throttle_ms / 1000)

    def _encode_charged(self, slot: _Slot, meter: LimitedMeter, response: Message) -> list[Item]:
        """Encode a response. The time counts as the client's, for its next requests."""
        began = self._clock.monotonic()
        try:
            return _encode(slot, response)
        finally:
            now = self._clock.monotonic()
            meter.record((now - began) * PERCENT, now)

    def _show_throttle(self, slot: _Slot, response: Message) -> None:
        """Put the throttle time into a response, and throttle the client as its handler decided."""
        decided_ms: int = getattr(response, "throttle_time_ms", 0)
        if decided_ms:
            self._connection.throttle(decided_ms / 1000)
        if slot.throttle_ms > decided_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = slot.throttle_ms

    async def _await(
        self,
        slot: _Slot,
        coroutine: Coroutine[Any, Any, Message],
        request: Message | None,
        context: Context,
    ) -> None:
        # The task continues if the client disconnects: an admin request is completed once begun.
        try:
            if slot.meter is None:
                response = await coroutine
            else:
                response = await self._charged(slot, slot.meter, coroutine)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self._reject_failed(slot, request, context, error)
            return
        self.complete(slot, response)

    async def _charged(
        self, slot: _Slot, meter: LimitedMeter, coroutine: Coroutine[Any, Any, Message]
    ) -> Message:
        """Await the response, and charge the time for which the coroutine ran."""
        work = MeasuredWork(coroutine, self._clock)
        try:
            return await work
        finally:
            throttle_s = meter.charge(work.seconds * PERCENT, self._clock.monotonic())
            self._throttle(slot, milliseconds(throttle_s))

    def _reject_failed(
        self, slot: _Slot, request: Message | None, context: Context, error: Exception
    ) -> None:
        """Send an error response to a request whose handler raised, or close the connection if
        there is no error response."""
        is_denial = isinstance(error, AccessDeniedError)
        if self._is_closed:
            if not is_denial:
                self.note_failure(slot, CallbackKind.HANDLER, error)
            return
        response = None
        if request is not None:
            response = error_response(slot.api, request, context, code_of(error))
        if response is None:
            self.abandon(slot, CallbackKind.HANDLER, error)
            return
        if is_denial:
            slot.api.metrics.errors[code_of(error)] += 1
        else:
            self.note_failure(slot, CallbackKind.HANDLER, error)
        if slot.is_waiting:
            self.complete(slot, response)
        else:
            self._respond(slot, response, self._clock.monotonic())

    def _enqueue(self, slot: _Slot) -> None:
        slot.is_waiting = True
        self._slots.append(slot)
        if len(self._slots) >= self._limits.inflight_requests_max and not self._is_held:
            self._is_held = True
            self._connection.hold()

    def complete(self, slot: _Slot, response: Message) -> None:
        """Encode a response. If it is the oldest one, send it and the responses held back behind
        it."""
        if self._is_closed:
            return
        slot.reply = None
        if self._services.quotas is not None:
            self._show_throttle(slot, response)
        try:
            slot.segments = (
                _encode(slot, response)
                if slot.meter is None
                else self._encode_charged(slot, slot.meter, response)
            )
        except Exception as error:  # noqa: BLE001  # logged, and ends the connection
            self.abandon(slot, CallbackKind.HANDLER, error)
            return
        slots = self._slots
        if slots[0] is not slot:
            self._kept_bytes += sum(map(len, slot.segments))
            if self._kept_bytes > self._limits.inflight_bytes_max and not self._is_held:
                self._is_held = True
                self._connection.hold()
            return
        while slots and (segments := slots[0].segments) is not None:
            done = slots.popleft()
            if done is not slot:
                self._kept_bytes -= sum(map(len, segments))
            self._connection.send(segments)
            self._observe(done, self._clock.monotonic())
        self._release_if_possible()

    def _observe(self, slot: _Slot, now: float) -> None:
        received_at = slot.received_at
        slot.api.metrics.count_response(
            slot.started_at - received_at, slot.local_s, now - received_at
        )

    def _release_if_possible(self) -> None:
        if (
            self._is_held
            and len(self._slots) < self._limits.inflight_requests_max
            and self._kept_bytes <= self._limits.inflight_bytes_max
        ):
            self._is_held = False
            self._connection.release()

    def note_failure(self, slot: _Slot, kind: str, error: Exception) -> None:
        """Log and count a failure of a request."""
        header = slot.header
        self._services.failures.note(
            kind,
            error,
            f"{slot.api.name} version {header.api_version} from {self._connection.address}"
            f" (client {header.client_id!r})",
        )
        slot.api.metrics.errors[-1] += 1

    def abandon(self, slot: _Slot, kind: str, error: Exception) -> None:
        """Report a failure and close the connection: the request gets no response."""
        self.note_failure(slot, kind, error)
        self._connection.close("error")

    def is_idle(self) -> bool:
        return not self._slots

    def closed(self) -> None:
        self._is_closed = True
        if self._client.login is not None:
            self._client.login.closed()
        slots, self._slots = self._slots, deque()
        for slot in slots:
            reply, slot.reply = slot.reply, None
            if reply is not None:
                reply.cancel()
            if slot.segments is not None:
                release(slot.segments)
        if self._client.client_instance_id is not None:
            telemetry = self._services.telemetry
            assert telemetry is not None, "it assigned the client instance id"
            telemetry.disconnect(self._client)


def _rejection(kind: Rejection, text: str, header: RequestHeader, api: Api) -> RejectedRequestError:
    return RejectedRequestError(kind, text, header.client_id, api.name)


def _encode(slot: _Slot, response: Message) -> list[Item]:
    """Return the frame of a response. Its files stay open until they are released.

    Raises the errors of the codec, and KAFKA_STORAGE_ERROR if a file cannot be opened."""
    api, header = slot.api, slot.header
    version = header.api_version
    if not api.version_min <= version <= api.version_max:
        # ApiVersions: a client that sent an unknown version expects a response of version 0.
        version = 0
    body = api.response_codec(version).encode(response)
    segments = frame_response(api.key, version, header.correlation_id, body)
    if api.sends_files:
        return _hold_files(segments)
    return segments  # type: ignore[return-value]  # all of them are in memory


def _hold_files(segments: list[Any]) -> list[Item]:
    """Replace each slice of a log, in place, with a range of a file that stays open until it is
    released."""
    for position, item in enumerate(segments):
        if isinstance(item, LogSlice):
            try:
                segments[position] = item.held()
            except BaseException:
                release(segments[:position])
                raise
    return segments

"""One client's conversation: requests in, answers out in the order of the requests.

A request is handled as soon as it is read, even while earlier ones still wait (a long Fetch, a
Produce that waits for replicas); its answer is kept back until theirs have left. What is in flight
is bounded: at `inflight_requests_max` requests, or `inflight_bytes_max` bytes of answers kept back,
the connection is held and reads no more.

A request that can't be parsed, or that makes a handler fail, costs this connection and nothing
else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from millstream.broker.context import CloseConnectionError, Context, Peer, Services
from millstream.broker.deferred import Deferred
from millstream.broker.dispatch import Api, ApiTable
from millstream.net.connection import Connection
from millstream.net.file_sender import Item
from millstream.net.gate import Limits
from millstream.wire.api import ApiKey
from millstream.wire.framing import RequestHeader, frame_response, parse_request_header

_log = logging.getLogger(__name__)

#: Only Produce carries records. Any other request this long is made to hurt: decoded, its many
#: small parts would take far more memory than its bytes.
OTHER_REQUEST_BYTES_MAX = 8 * 1024 * 1024


class _Slot:
    """A request that was not answered yet. `segments` is set once its answer is ready."""

    __slots__ = ("api", "deferred", "header", "local_s", "received_at", "segments", "started_at")

    def __init__(self, api: Api, header: RequestHeader, received_at: float) -> None:
        self.api = api
        self.header = header
        self.received_at = received_at
        self.started_at = 0.0
        self.local_s = 0.0
        self.deferred: Deferred | None = None
        self.segments: list[Item] | None = None


class Session:
    """The handler of one connection's frames (see `net.connection.Handler`)."""

    __slots__ = (
        "_apis",
        "_clock",
        "_connection",
        "_is_closed",
        "_is_held",
        "_kept_bytes",
        "_limits",
        "_listener",
        "_peer",
        "_services",
        "_slots",
        "_tasks",
    )

    def __init__(
        self,
        connection: Connection,
        services: Services,
        listener: str,
        limits: Limits,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._connection = connection
        self._peer = Peer(connection.address, connection.port)
        self._services = services
        self._apis: ApiTable = services.apis
        self._clock = services.clock
        self._listener = listener
        self._limits = limits
        #: The server's set of running requests: it waits for them at shutdown.
        self._tasks = tasks
        #: Unanswered requests, oldest first.
        self._slots: deque[_Slot] = deque()
        self._kept_bytes = 0
        self._is_held = False
        self._is_closed = False

    def receive(self, frame: memoryview) -> None:
        header = parse_request_header(frame)
        api = self._apis.get(header.api_key)
        if api is None:
            raise ValueError(f"API key {header.api_key} is not supported")
        if len(frame) > OTHER_REQUEST_BYTES_MAX and api.key != ApiKey.PRODUCE:
            raise ValueError(f"a request of {len(frame)} bytes for {api.key.name}")
        slot = _Slot(api, header, self._connection.received_at)
        slot.started_at = self._clock.monotonic()
        self._services.check_lease()
        version = header.api_version
        if not api.version_min <= version <= api.version_max:
            if api.key != ApiKey.API_VERSIONS:
                raise ValueError(f"{api.key.name} has no version {version}")
            request: Any = None
        else:
            request = api.request_codec(version).decode(frame, header.body_position)
        context = Context(
            self._services,
            self._listener,
            version,
            header.client_id,
            self._peer,
            slot.received_at,
        )
        self._handle(slot, request, context)

    def _handle(self, slot: _Slot, request: Any, context: Context) -> None:
        try:
            outcome = slot.api.handle(request, context)
        except CloseConnectionError as reason:
            self._connection.close(str(reason))
            return
        except Exception:  # noqa: BLE001  # logged by _fail, and ends the connection
            self._fail(slot)
            return
        now = self._clock.monotonic()
        slot.local_s = now - slot.started_at
        if outcome.__class__ is slot.api.response:
            if self._slots:
                self._enqueue(slot)
                self._complete(slot, outcome)
            else:
                self._answer_now(slot, outcome, now)
        elif outcome is None:
            self._observe(slot, now)
        elif isinstance(outcome, Deferred):
            slot.deferred = outcome
            self._enqueue(slot)
            outcome.then(lambda: self._complete(slot, outcome.response))
        else:
            self._enqueue(slot)
            task = asyncio.get_running_loop().create_task(self._await(slot, outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _answer_now(self, slot: _Slot, response: Any, now: float) -> None:
        """The usual case: the answer is there and no other one has to leave before it."""
        try:
            segments = _encode(slot, response)
        except Exception:  # noqa: BLE001  # logged by _fail, and ends the connection
            self._fail(slot)
            return
        self._connection.send(segments)
        self._observe(slot, now)

    async def _await(self, slot: _Slot, coroutine: Coroutine[Any, Any, Any]) -> None:
        # Goes on when the client disconnects: an admin request that was begun is finished.
        try:
            response = await coroutine
        except Exception:  # noqa: BLE001  # logged by _fail, and ends the connection
            self._fail(slot)
            return
        self._complete(slot, response)

    def _enqueue(self, slot: _Slot) -> None:
        self._slots.append(slot)
        if len(self._slots) >= self._limits.inflight_requests_max and not self._is_held:
            self._is_held = True
            self._connection.hold()

    def _complete(self, slot: _Slot, response: Any) -> None:
        """Encode the answer; send it, and those it held back, once it is its turn."""
        if self._is_closed:
            return
        slot.deferred = None
        try:
            slot.segments = _encode(slot, response)
        except Exception:  # noqa: BLE001  # logged by _fail, and ends the connection
            self._fail(slot)
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
        slot.api.metrics.answered(slot.started_at - received_at, slot.local_s, now - received_at)

    def _release_if_possible(self) -> None:
        if (
            self._is_held
            and len(self._slots) < self._limits.inflight_requests_max
            and self._kept_bytes <= self._limits.inflight_bytes_max
        ):
            self._is_held = False
            self._connection.release()

    def _fail(self, slot: _Slot) -> None:
        header = slot.header
        _log.exception(
            "%s v%d from %s (client id %r) failed; its connection is closed",
            slot.api.key.name,
            header.api_version,
            self._connection.address,
            header.client_id,
        )
        slot.api.metrics.errors[-1] += 1
        self._connection.close("error")

    def is_idle(self) -> bool:
        return not self._slots

    def closed(self) -> None:
        self._is_closed = True
        for slot in self._slots:
            if slot.deferred is not None:
                slot.deferred.cancel()
        self._slots.clear()
        if self._peer.client_instance_id is not None:
            telemetry = self._services.telemetry
            assert telemetry is not None, "it has given the client its id"
            telemetry.disconnect(self._peer)


def _encode(slot: _Slot, response: Any) -> list[Item]:
    api, header = slot.api, slot.header
    version = header.api_version
    if not api.version_min <= version <= api.version_max:
        # ApiVersions: the client can't know our versions yet and reads version 0 then.
        version = 0
    body = api.response_codec(version).encode(response)
    return cast("list[Item]", frame_response(api.key, version, header.correlation_id, body))

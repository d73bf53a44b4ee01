"""Records the changes that clients request, around the handlers of changing APIs.

The entry of an API that changes something says how to find the changes (`ApiEntry.audit`). With
auditing enabled, `audited` wraps the handler of such an API in the table of APIs. Other APIs, and
brokers without auditing, pay nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.model.reply import Receiver, Reply, code_of
from millstream.security.audit_event import AuditEvent, AuditKind
from millstream.wire.schema import Message

if TYPE_CHECKING:
    from millstream.broker.dispatch import DispatchedHandler, Outcome

_logger = logging.getLogger(__name__)

OK: Final = "ok"
#: How the client ids of brokers begin.
BROKER_CLIENT_ID: Final = "broker-"
#: An API that operators use to abort a transaction, and brokers for every transaction. Requests of
#: brokers are not recorded. Whoever has the right to send it could claim to be a broker.
_BROKERS_SEND: Final = "WriteTxnMarkers"


class Change(NamedTuple):
    """A change that a client requested."""

    #: Such as `topic:orders`.
    resource: str
    #: The error code of the response; 0 if the change was made.
    code: int
    detail: str = ""


FindChanges = Callable[[Any, Any], Iterable[Change]]


def audited(name: str, handle: DispatchedHandler, find: FindChanges) -> DispatchedHandler:
    """Return a handler that records the changes of each request once its response is ready."""

    def audited_handle(request: Message | None, context: Context) -> Outcome[Message]:
        if name == _BROKERS_SEND and (context.client_id or "").startswith(BROKER_CLIENT_ID):
            return handle(request, context)
        recorder = _Recorder(name, find, request, context)
        context.receiver = recorder
        try:
            outcome = handle(request, context)
        except Exception as error:
            recorder.record_error(code_of(error))
            raise
        if outcome is None or isinstance(outcome, Reply):
            return outcome
        if isinstance(outcome, Coroutine):
            return _await_recorded(outcome, recorder)
        recorder.record(outcome)
        return outcome

    return audited_handle


async def _await_recorded(outcome: Coroutine[Any, Any, Message], recorder: _Recorder) -> Message:
    try:
        response = await outcome
    except Exception as error:
        recorder.record_error(code_of(error))
        raise
    recorder.record(response)
    return response


class _Recorder:
    """Records the changes of one request. The `Receiver` of its reply, in front of the session."""

    __slots__ = ("_context", "_find", "_name", "_receiver", "_request")

    def __init__(
        self, name: str, find: FindChanges, request: Message | None, context: Context
    ) -> None:
        self._name = name
        self._find = find
        self._request = request
        self._context = context
        self._receiver: Receiver = context.receiver

    def receive(self, result: Any, /) -> None:
        self.record(result)
        self._receiver.receive(result)

    def failed(self, kind: str, error: Exception, /) -> None:
        self._receiver.failed(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        self.record_error(code_of(error))
        self._receiver.abandon(kind, error)

    def record(self, response: Message) -> None:
        try:
            changes = list(self._find(self._request, response))
        except Exception:  # an audit must not fail the request that it records
            _logger.exception("the changes of a %s request cannot be recorded", self._name)
            changes = [Change("", ErrorCode.NONE, "its changes are unknown")]
        for change in changes:
            self._put(change)

    def record_error(self, code: ErrorCode) -> None:
        self._put(Change("", code))

    def _put(self, change: Change) -> None:
        client = self._context.client
        self._context.services.audit.record(
            AuditEvent(
                AuditKind.CHANGE,
                self._name,
                str(client.principal),
                client.address,
                self._context.client_id or "",
                change.resource,
                outcome_of(change.code),
                change.detail,
            )
        )


def outcome_of(code: int) -> str:
    """Return the outcome of an event: `ok`, or the name of an error code."""
    if code == ErrorCode.NONE:
        return OK
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)

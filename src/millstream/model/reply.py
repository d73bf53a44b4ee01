"""A single-shot object through which a request that waits gets its response.

A handler that has to wait creates a `Reply` and passes it to the part of the broker that decides.
The reply ends in exactly one of these ways, and ignores every later call:

    deliver   the result is known: `respond` builds the response from the result
    fail      the request is rejected: `reject` builds the response from the error code
    crash     serving the request raised: like `fail`, and the failure is reported
    cancel    the client disconnected: there is no response

A reply that ends drops all its references. So it keeps no object alive, and leaves no reference
cycle for the garbage collector. However the reply ends, `on_end` is called first. It releases what
the wait holds, such as timers and watches.

No method raises. If building the response fails, the client gets an error response. If building the
error response fails too, the receiver abandons the request.

The result goes to a `Receiver`. For a whole response, the receiver is the session. For one part of
a response, it is the object that assembles the parts. For a step that no client waits for, it is
`CallbackFailures`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from millstream.model.error import BrokerError, ErrorCode

T = TypeVar("T")


class ReplyKind(StrEnum):
    """All kinds of replies, as the metrics name them.

    `tests/broker/test_fault_injection.py` has a scenario for each kind.
    """

    PRODUCE = "produce"
    TRANSACTIONAL_PRODUCE = "transactional_produce"
    FETCH = "fetch"
    REPLICA_FETCH = "replica_fetch"
    JOIN_GROUP = "join_group"
    SYNC_GROUP = "sync_group"
    LEAVE_GROUP = "leave_group"
    CONSUMER_GROUP_HEARTBEAT = "consumer_group_heartbeat"
    OFFSET_COMMIT = "offset_commit"
    OFFSET_FETCH = "offset_fetch"
    OFFSET_DELETE = "offset_delete"
    DELETE_GROUPS = "delete_groups"
    TXN_OFFSET_COMMIT = "txn_offset_commit"
    ADD_PARTITIONS_TO_TXN = "add_partitions_to_txn"
    ADD_PARTITIONS_AFTER_END = "add_partitions_after_end"
    ADD_OFFSETS_TO_TXN = "add_offsets_to_txn"
    INIT_PRODUCER_ID = "init_producer_id"
    END_TXN = "end_txn"
    WRITE_TXN_MARKERS = "write_txn_markers"
    #: Any response that a test holds back (`millstream.testing`).
    DELAYED = "delayed"
    #: An internal step: a transaction's coordinator admits partitions.
    ADMISSION = "admission"
    #: An internal step: the decision on a transaction is committed, so its markers may be sent.
    TRANSACTION_DECISION = "transaction_decision"
    #: An internal step: a marker has reached a partition.
    TRANSACTION_MARKER = "transaction_marker"


class Receiver(Protocol):
    """Receives the result of a reply. No method raises."""

    def receive(self, result: Any, /) -> None:
        """Accept the response that `respond` or `reject` built. Called at most once."""
        ...

    def failed(self, kind: str, error: Exception, /) -> None:
        """Report a failure."""
        ...

    def abandon(self, kind: str, error: Exception, /) -> None:
        """Abandon the request: building its error response failed too."""
        ...


class Reply(Generic[T]):
    """One response that is delivered later. `T` is the type of the result. Event loop only."""

    __slots__ = ("_receiver", "_reject", "_respond", "kind", "on_end")

    def __init__(
        self,
        kind: ReplyKind,
        receiver: Receiver,
        reject: Callable[[ErrorCode], Any],
        respond: Callable[[T], Any] | None = None,
    ) -> None:
        """Create an open reply. Without `respond`, the delivered value is the response."""
        self.kind = kind
        #: None once the reply has ended.
        self._receiver: Receiver | None = receiver
        self._reject: Callable[[ErrorCode], Any] | None = reject
        self._respond = respond
        #: Called once, when the reply ends.
        self.on_end: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the request still waits."""
        return self._receiver is not None

    def reject_by(self, reject: Callable[[ErrorCode], Any]) -> None:
        """Build error responses with `reject` from now on."""
        if self._receiver is not None:
            self._reject = reject

    def deliver(self, value: T) -> None:
        """Send the response that `respond` builds from `value`."""
        receiver, reject, respond = self._receiver, self._reject, self._respond
        if receiver is None:
            return
        self._end(receiver)
        if respond is None:
            receiver.receive(value)
            return
        try:
            response = respond(value)
        except Exception as error:  # noqa: BLE001  # reported, and responded to
            receiver.failed(self.kind, error)
            self._reject_with(receiver, reject, code_of(error))
        else:
            receiver.receive(response)

    def fail(self, code: ErrorCode) -> None:
        """Reject the request with an error code."""
        receiver, reject = self._receiver, self._reject
        if receiver is not None:
            self._end(receiver)
            self._reject_with(receiver, reject, code)

    def crash(self, error: Exception) -> None:
        """Report a failure in serving the request, and send an error response."""
        receiver, reject = self._receiver, self._reject
        if receiver is not None:
            self._end(receiver)
            receiver.failed(self.kind, error)
            self._reject_with(receiver, reject, code_of(error))

    def cancel(self) -> None:
        """End without a response: the client disconnected."""
        receiver = self._receiver
        if receiver is not None:
            self._end(receiver)

    def run(self, callback: Callable[[], None]) -> None:
        """Call `callback`, such as a timer's, if the request still waits. If the callback raises,
        this request gets an error response."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            callback()
        except Exception as error:  # noqa: BLE001  # reported, and responded to
            if self._receiver is not None:
                self.crash(error)
            else:
                receiver.failed(self.kind, error)

    def _end(self, receiver: Receiver) -> None:
        on_end = self.on_end
        self._receiver = self._reject = self._respond = self.on_end = None
        if on_end is not None:
            try:
                on_end()
            except Exception as error:  # noqa: BLE001  # reported; the response is still sent
                receiver.failed(self.kind, error)

    def _reject_with(
        self, receiver: Receiver, reject: Callable[[ErrorCode], Any] | None, code: ErrorCode
    ) -> None:
        assert reject is not None, "an open reply has `reject`"
        try:
            response = reject(code)
        except Exception as error:  # noqa: BLE001  # reported by the receiver
            receiver.abandon(self.kind, error)
        else:
            receiver.receive(response)


def code_of(error: Exception) -> ErrorCode:
    """Return the error code for a client whose request failed with `error`."""
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR

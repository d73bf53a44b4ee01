"""The response to one waiting request: given once, by whoever knows the result, and then cleared.

A handler that has to wait makes a `Reply` and hands it to the part of the broker that decides. The
reply ends in exactly one of these ways, and ignores everything that comes later:

    deliver   the result is known: `respond` makes the response of it
    fail      the request is rejected with an error code: `refuse` makes the response of it
    crash     something raised while the request was served: as `fail`, and the failure is reported
    cancel    the client disconnected: there is no response

At its end a reply drops all that it refers to, so nothing lives longer than the response, and no
reference cycle is left for the garbage collector. `on_end` is called first, however the reply ends:
it gives back what the wait holds (timers, watches).

No method raises. If making the response fails, the client gets an error response. If that fails as
well, the receiver is told to abandon the request.

The result goes to a `Receiver`. That of a whole response is the session. A reply may also be one
part of a response, or a step that no client waits for; then its receiver is whoever puts the parts
together, or `CallbackFailures`.
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
    #: A step of the broker's own: a transaction's coordinator admits partitions.
    ADMISSION = "admission"
    #: The same: the decision on a transaction is committed, so its markers may be sent.
    TRANSACTION_DECISION = "transaction_decision"
    #: The same: a marker has reached a partition.
    TRANSACTION_MARKER = "transaction_marker"


class Receiver(Protocol):
    """Takes the result of a reply. No method raises."""

    def receive(self, result: Any, /) -> None:
        """Take what `respond` or `refuse` made. Called once."""
        ...

    def failed(self, kind: str, error: Exception, /) -> None:
        """Report a failure. An error response follows, or `abandon`."""
        ...

    def abandon(self, kind: str, error: Exception, /) -> None:
        """Give the request up: not even an error response can be made."""
        ...


class Reply(Generic[T]):
    """One response that is given later. `T` is what `deliver` takes. Event loop only."""

    __slots__ = ("_receiver", "_refuse", "_respond", "kind", "on_end")

    def __init__(
        self,
        kind: ReplyKind,
        receiver: Receiver,
        refuse: Callable[[ErrorCode], Any],
        respond: Callable[[T], Any] | None = None,
    ) -> None:
        """Without `respond`, the value delivered is the response."""
        self.kind = kind
        #: None once the reply has ended.
        self._receiver: Receiver | None = receiver
        self._refuse: Callable[[ErrorCode], Any] | None = refuse
        self._respond = respond
        #: Called once, when the reply ends.
        self.on_end: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the request still waits."""
        return self._receiver is not None

    def refuse_by(self, refuse: Callable[[ErrorCode], Any]) -> None:
        """Make error responses in another way from now on: the request has got further."""
        if self._receiver is not None:
            self._refuse = refuse

    def deliver(self, value: T) -> None:
        """Give the response that `respond` makes of `value`."""
        receiver, refuse, respond = self._receiver, self._refuse, self._respond
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
            self._refuse_with(receiver, refuse, code_of(error))
        else:
            receiver.receive(response)

    def fail(self, code: ErrorCode) -> None:
        """Reject the request with an error code."""
        receiver, refuse = self._receiver, self._refuse
        if receiver is not None:
            self._end(receiver)
            self._refuse_with(receiver, refuse, code)

    def crash(self, error: Exception) -> None:
        """Report a failure while the request was served, and respond with an error."""
        receiver, refuse = self._receiver, self._refuse
        if receiver is not None:
            self._end(receiver)
            receiver.failed(self.kind, error)
            self._refuse_with(receiver, refuse, code_of(error))

    def cancel(self) -> None:
        """End without a response: the client disconnected."""
        receiver = self._receiver
        if receiver is not None:
            self._end(receiver)

    def run(self, callback: Callable[[], None]) -> None:
        """Call `callback`, such as a timer's, while the request waits. If it raises, this request
        gets an error response."""
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
        self._receiver = self._refuse = self._respond = self.on_end = None
        if on_end is not None:
            try:
                on_end()
            except Exception as error:  # noqa: BLE001  # reported; the response is given all the same
                receiver.failed(self.kind, error)

    def _refuse_with(
        self, receiver: Receiver, refuse: Callable[[ErrorCode], Any] | None, code: ErrorCode
    ) -> None:
        assert refuse is not None, "a reply that is open has it"
        try:
            response = refuse(code)
        except Exception as error:  # noqa: BLE001  # reported by the receiver
            receiver.abandon(self.kind, error)
        else:
            receiver.receive(response)


def code_of(error: Exception) -> ErrorCode:
    """The error code for a client whose request ended with `error`."""
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR

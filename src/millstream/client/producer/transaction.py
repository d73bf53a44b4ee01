"""One transaction of a producer: what it sends and the offsets it commits become visible together.

    open --commit--> committed        open --abort, error--> aborted
    open --commit, no answer--> unknown --commit--> committed | aborted

`TransactionDriver` is the one of a producer, in librdkafka's words: retriable errors are retried
until the time is up, abortable ones abort. Its calls block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum, auto
from types import TracebackType
from typing import Any, Final, Protocol, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Handle

from millstream.client.error import (
    BrokerError,
    ClientError,
    OutcomeUnknown,
    TransactionAborted,
    UsageError,
    error_of,
    from_kafka,
    is_timeout,
)
from millstream.client.producer.delivery import Delivery
from millstream.client.record import Partition, row_of

TIMEOUT_S: Final = 60.0
_ARRIVAL_S_MAX: Final = 1.0


class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    def group_metadata(self) -> Any: ...

    def offsets(self) -> Mapping[Partition, int]:
        """The next offset to read after what was processed, by partition."""


class State(StrEnum):
    NONE = auto()
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    BROKEN = auto()


class TransactionDriver:
    """The transactions of one producer, one after the other."""

    def __init__(self, handle: Handle, allow: Callable[[bool], None]) -> None:
        self._handle = handle
        #: Told whether records may be sent now.
        self._allow = allow
        self._is_ready = False
        self.state = State.NONE
        #: What the transaction is once the call that ends it was interrupted; NONE before.
        self._if_interrupted = State.NONE
        allow(False)

    def begin(self) -> None:
        if self.state is State.OPEN:
            raise UsageError("The producer has an open transaction: end it before the next.")
        if self.state is State.UNKNOWN:
            raise UsageError(
                "Whether the last transaction was committed is not known yet: call its commit() "
                "again before the next one."
            )
        if not self._is_ready:
            self._insist(self._handle.init_transactions, "Asking for the transactional id")
            self._is_ready = True
        self._insist(lambda _timeout_s: self._handle.begin_transaction(), "Beginning a transaction")
        self.state = State.OPEN
        self._if_interrupted = State.NONE
        self._allow(True)

    def add_offsets(self, offsets: Mapping[Partition, int], metadata: Any) -> None:
        if self.state is not State.OPEN:
            raise UsageError(f"The transaction is {self.state}: offsets belong into an open one.")
        rows = [row_of(partition, offset) for partition, offset in offsets.items()]
        if rows:
            self._insist(
                lambda left: self._handle.send_offsets_to_transaction(rows, metadata, left),
                "Adding offsets to the transaction",
            )

    def commit(self, timeout_s: float) -> None:
        if self.state not in (State.OPEN, State.UNKNOWN):
            raise UsageError(f"The transaction is {self.state}: it cannot be committed.")
        self._allow(False)
        self._if_interrupted = State.UNKNOWN
        try:
            self._insist(self._handle.commit_transaction, "Committing the transaction", timeout_s)
        except TransactionAborted:
            self._abort()
            raise
        except TimeoutError as error:
            self.state = State.UNKNOWN
            raise OutcomeUnknown(
                f"The commit was not answered in {timeout_s} s: it may have happened, or may yet. "
                "Call commit() of this transaction again to learn which."
            ) from error
        self.state = State.COMMITTED

    def abort(self) -> None:
        if self.state not in (State.OPEN, State.UNKNOWN):
            raise UsageError(f"The transaction is {self.state}: it cannot be aborted.")
        self._allow(False)
        if len(self._handle):
            # librdkafka may ask to end a transaction that its coordinator has not heard of yet, and
            # is broken by the answer. Records that have arrived are proof that it has.
            self._insist(lambda _timeout_s: self._handle.flush(_ARRIVAL_S_MAX), "Aborting")
        self._abort()

    def _abort(self) -> None:
        interrupted, self._if_interrupted = self._if_interrupted, State.ABORTED
        try:
            self._insist(self._handle.abort_transaction, "Aborting the transaction")
        except BrokerError as error:
            # Ctrl-C in an earlier call that ended it: librdkafka has none to abort any more.
            if error.code != KafkaError._STATE or interrupted is State.NONE:  # noqa: SLF001
                raise
            self.state = interrupted
        else:
            self.state = State.ABORTED

    def _insist(
        self, call: Callable[[float], object], what: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                call(max(0.0, deadline - time.monotonic()))
            except KafkaException as exception:
                error = error_of(exception)
                may_retry = error.retriable() or is_timeout(error)
                if may_retry and time.monotonic() < deadline:
                    continue
                raise self._failure(error, what, is_late=may_retry) from exception
            else:
                return

    def _failure(self, error: KafkaError, what: str, *, is_late: bool) -> ClientError:
        if error.txn_requires_abort():
            return from_kafka(error, what, TransactionAborted)
        if error.fatal():
            self.state = State.BROKEN
        failure = from_kafka(error, what)
        if is_late and isinstance(failure, BrokerError):
            return from_kafka(KafkaError(KafkaError._TIMED_OUT, error.str()), what)  # noqa: SLF001
        return failure


class Transaction:
    """Commits at the end of its `with` block, aborts if that ends with an exception."""

    def __init__(self, driver: TransactionDriver, send: Callable[..., Delivery]) -> None:
        self._driver = driver
        #: As the producer's.
        self.send = send
        self._ended: State | None = None

    @property
    def state(self) -> State:
        return self._ended or self._driver.state

    def send_offsets(
        self, source: OffsetSource | Any, offsets: Mapping[Partition, int] | None = None
    ) -> None:
        """Commit with the transaction what `source`, a consumer, has processed; or `offsets`."""
        self._check()
        self._driver.add_offsets(
            source.offsets() if offsets is None else offsets, source.group_metadata()
        )

    def commit(self, timeout_s: float = TIMEOUT_S) -> None:
        """Make it visible; OutcomeUnknown if the brokers do not say in time whether it is."""
        self._check()
        self._end(lambda: self._driver.commit(timeout_s))

    def abort(self) -> None:
        """Nothing of it will be seen by readers of committed records."""
        self._check()
        self._end(self._driver.abort)

    def _check(self) -> None:
        if self._ended is not None:
            raise UsageError(f"The transaction is {self._ended}: begin another one.")

    def _end(self, call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            if self._driver.state in (State.COMMITTED, State.ABORTED, State.BROKEN):
                self._ended = self._driver.state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended is not None:
            return
        if error is None:
            self.commit()
        elif self.state is State.OPEN:
            try:
                self.abort()
            except ClientError as failure:
                error.add_note(f"and the transaction could not be aborted: {failure}")

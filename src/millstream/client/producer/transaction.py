"""A producer's transactions: the records sent and the offsets added become visible together.

    open --commit--> committed        open --abort, error--> aborted
    open --commit, no response--> unknown --commit--> committed | aborted

`TransactionDriver` drives the transactions of one producer. It retries retriable errors until the
timeout, and aborts after abortable ones. Its calls block.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from enum import StrEnum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as RdKafkaProducer

from millstream.client.error import (
    BrokerError,
    MillstreamError,
    OutcomeUnknown,
    TransactionAborted,
    UsageError,
    error_of,
    from_kafka,
    is_timeout,
    librdkafka_error,
)
from millstream.client.old_name import rejects_old_names
from millstream.client.producer.delivery import Delivery
from millstream.client.record import Partition, row_of
from millstream.client.schedule import Headers
from millstream.client.serializer import KeySent, ValueSent

TIMEOUT_S: Final = 60.0
_ARRIVAL_S_MAX: Final = 1.0


class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    def group_metadata(self) -> Any:
        """Return what the coordinator needs to identify the group member."""

    def offsets(self) -> Mapping[Partition, int]:
        """Return the next offset to read after the processed records, by partition."""


class State(StrEnum):
    """The state of a transaction. BROKEN: the producer can only be closed."""

    NONE = auto()
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    BROKEN = auto()


class TransactionDriver:
    """Runs the transactions of one producer, one after the other."""

    def __init__(self, rdkafka: RdKafkaProducer, set_open: Callable[[bool], None]) -> None:
        self._rdkafka = rdkafka
        #: Called with whether records may be sent now.
        self._set_open = set_open
        self._is_ready = False
        self.state = State.NONE
        #: The state after an interrupted commit or abort; NONE before.
        self._if_interrupted = State.NONE
        set_open(False)

    def begin(self) -> None:
        """Begin a transaction. The first one registers the transactional id."""
        if self.state is State.OPEN:
            raise UsageError(
                "The producer has an open transaction: end it before you begin another one."
            )
        if self.state is State.UNKNOWN:
            raise UsageError(
                "The outcome of the last transaction is unknown: call its commit() again "
                "before the next one."
            )
        if not self._is_ready:
            self._retry(self._rdkafka.init_transactions, "Asking for the transactional id")
            self._is_ready = True
        self._retry(lambda _timeout_s: self._rdkafka.begin_transaction(), "Beginning a transaction")
        self.state = State.OPEN
        self._if_interrupted = State.NONE
        self._set_open(True)

    def add_offsets(self, offsets: Mapping[Partition, int], metadata: Any) -> None:
        """Add offsets, which are committed with the transaction."""
        if self.state is not State.OPEN:
            raise UsageError(f"The transaction is {self.state}: offsets need an open one.")
        rows = [row_of(partition, offset) for partition, offset in offsets.items()]
        if rows:
            self._retry(
                lambda left: self._rdkafka.send_offsets_to_transaction(rows, metadata, left),
                "Adding offsets to the transaction",
            )

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction, or ask again for the outcome of an earlier commit.

        Raises TransactionAborted once it is aborted, and OutcomeUnknown after the timeout.
        """
        if self.state not in (State.OPEN, State.UNKNOWN):
            raise UsageError(f"The transaction is {self.state}: it cannot be committed.")
        self._set_open(False)
        self._if_interrupted = State.UNKNOWN
        try:
            self._retry(self._rdkafka.commit_transaction, "Committing the transaction", timeout_s)
        except TransactionAborted:
            self._abort()
            raise
        except TimeoutError as error:
            self.state = State.UNKNOWN
            raise OutcomeUnknown(
                f"The commit got no response in {timeout_s} s: it may have happened, or may "
                "still happen. Call commit() of this transaction again to learn which."
            ) from error
        self.state = State.COMMITTED

    def abort(self) -> None:
        """Abort the transaction."""
        if self.state not in (State.OPEN, State.UNKNOWN):
            raise UsageError(f"The transaction is {self.state}: it cannot be aborted.")
        self._set_open(False)
        if len(self._rdkafka):
            # librdkafka may ask to end a transaction that its coordinator does not know yet, and
            # the response breaks the producer. Records that have arrived prove that the coordinator
            # knows it.
            self._retry(lambda _timeout_s: self._rdkafka.flush(_ARRIVAL_S_MAX), "Aborting")
        self._abort()

    def _abort(self) -> None:
        interrupted, self._if_interrupted = self._if_interrupted, State.ABORTED
        try:
            self._retry(self._rdkafka.abort_transaction, "Aborting the transaction")
        except BrokerError as error:
            # Ctrl-C interrupted an earlier call that ended the transaction: librdkafka has none to
            # abort.
            if error.code != KafkaError._STATE or interrupted is State.NONE:  # noqa: SLF001
                raise
            self.state = interrupted
        else:
            self.state = State.ABORTED

    def _retry(
        self, call: Callable[[float], object], what: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Call until it succeeds, fails for good, or the timeout passes."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                call(max(0.0, deadline - time.monotonic()))
            except (KafkaException, SystemError) as exception:
                error = error_of(librdkafka_error(exception))
                may_retry = error.retriable() or is_timeout(error)
                if may_retry and time.monotonic() < deadline:
                    continue
                raise self._failure(error, what, is_late=may_retry) from exception
            else:
                return

    def _failure(self, error: KafkaError, what: str, *, is_late: bool) -> MillstreamError:
        if error.txn_requires_abort():
            return from_kafka(error, what, TransactionAborted)
        if error.fatal():
            self.state = State.BROKEN
        failure = from_kafka(error, what)
        if is_late and isinstance(failure, BrokerError):
            return from_kafka(KafkaError(KafkaError._TIMED_OUT, error.str()), what)  # noqa: SLF001
        return failure


class Transaction(Generic[KeySent, ValueSent]):
    """Commits at the end of its `with` block. An exception aborts it."""

    def __init__(self, driver: TransactionDriver, send: Callable[..., Delivery]) -> None:
        self._driver = driver
        #: The producer's own method: a method around it would cost time for each record.
        self.send = send  # type: ignore[method-assign]
        self._ended: State | None = None

    if TYPE_CHECKING:

        def send(
            self,
            topic: str,
            value: ValueSent | None,
            *,
            key: KeySent | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            delay: dt.timedelta | float | None = None,
            deliver_at: dt.datetime | int | None = None,
        ) -> Delivery: ...

    @property
    def state(self) -> State:
        """The state of this transaction."""
        return self._ended or self._driver.state

    def send_offsets(
        self, source: OffsetSource | Any, offsets: Mapping[Partition, int] | None = None
    ) -> None:
        """Commit the offsets that `source`, a consumer, has processed with the transaction; or
        `offsets`.
        """
        self._check()
        self._driver.add_offsets(
            source.offsets() if offsets is None else offsets, source.group_metadata()
        )

    @rejects_old_names
    def commit(self, timeout: float = TIMEOUT_S) -> None:
        """Commit. Raises OutcomeUnknown if the coordinator does not respond in time."""
        self._check()
        self._end(lambda: self._driver.commit(timeout))

    def abort(self) -> None:
        """Abort: read-committed consumers see nothing of the transaction."""
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
            except MillstreamError as failure:
                error.add_note(f"The transaction could not be aborted: {failure}")

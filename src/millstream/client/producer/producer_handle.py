"""One librdkafka producer with its delivery reports: which thread dispatches them, and when.

librdkafka sends on its own threads. Delivery reports wait in its queue until a thread polls.
Polling calls back into Python once per record and switches threads in between: a second thread
would cost the sending one most of its speed. So a thread that sends polls now and then. A thread
that waits polls while it waits; if several wait, one polls for all. A dispatcher thread runs only
for deliveries with callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as RdKafkaProducer

from millstream.client.connection_error import ConnectionErrors, with_errors
from millstream.client.error import (
    ClosedError,
    DeliveryError,
    TimedOut,
    UsageError,
    from_kafka,
    librdkafka_error,
    reason_of,
    settings_error,
)
from millstream.client.producer.delivery import Delivery, delivery_type

_logger = logging.getLogger(__name__)

#: Waits are split into slices, so that signals are handled and no thread sleeps past a report that
#: another thread dispatched.
SLICE_S: Final = 0.1
_DISPATCH_S: Final = 0.005
_DISPATCH_IDLE_S: Final = 0.1
_FLUSH_S_MAX: Final = 30.0
#: Failed deliveries that are kept for `flush`. Further ones are only counted.
_FAILURES_KEPT_MAX: Final = 1000
#: The application gave these up itself: by an abort, or a close with a timeout.
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def open_handle(properties: dict[str, Any]) -> RdKafkaProducer:
    """Return a librdkafka producer with these properties."""
    try:
        return RdKafkaProducer(properties, logger=_logger)
    except KafkaException as error:
        raise settings_error(error, "producer") from error


class ProducerHandle:
    """Sends records and dispatches their delivery reports.

    `produce` is librdkafka's, or a function that raises. `delivery` is the class of the futures.
    """

    def __init__(
        self,
        properties: dict[str, Any],
        base: type[Delivery],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = loop
        self.errors = ConnectionErrors()
        self.rdkafka = open_handle(with_errors(properties, self.errors))
        self.produce: Callable[..., None] = self.rdkafka.produce
        self.delivery: type[Delivery] = delivery_type(base, self, loop)
        self._dispatch_lock = threading.Lock()
        self.errors.serve = self.dispatch_reports
        self._dispatch_thread: int | None = None
        self._dispatched = threading.Condition(threading.Lock())
        self._failures: dict[Delivery, None] = {}
        self._failures_dropped = 0
        self._closed = threading.Event()
        self._dispatcher: threading.Thread | None = None
        self._finalizer = weakref.finalize(self, _flush_unclosed, self.rdkafka)

    def __len__(self) -> int:
        """Return the number of records and reports in flight."""
        return len(self.rdkafka)

    # Delivery reports

    def dispatch_reports(self, timeout_s: float = 0.0) -> bool:
        """Dispatch the reports in the queue, or wait for the first one.

        Returns False without doing anything if another thread dispatches.
        """
        if not self._dispatch_lock.acquire(blocking=False):
            return False
        self._dispatch_thread = threading.get_ident()
        try:
            self.rdkafka.poll(timeout_s)
        except (KafkaException, SystemError) as error:
            raise from_kafka(librdkafka_error(error), "The producer failed") from error
        finally:
            self._dispatch_thread = None
            self._dispatch_lock.release()
        with self._dispatched:
            self._dispatched.notify_all()
        return True

    def wait_until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Dispatch reports until `done()`. False after the timeout."""
        if self._dispatch_thread == threading.get_ident():
            raise UsageError("A delivery's callback cannot wait for another delivery.")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not done():
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if left <= 0:
                return False
            if not self.dispatch_reports(left):
                with self._dispatched:
                    self._dispatched.wait(left)
        return True

    def start_dispatcher(self) -> None:
        """Dispatch reports from now on even if no thread waits for them."""
        if self._dispatcher is None:
            # The thread must not keep an unused producer alive.
            arguments = (weakref.ref(self), self._closed)
            self._dispatcher = threading.Thread(
                target=_dispatch_while_open,
                args=arguments,
                name="millstream-deliveries",
                daemon=True,
            )
            self._dispatcher.start()

    def dispatch_always(self) -> None:
        """Dispatch also while no record is in flight: statistics arrive then as well."""
        self.start_dispatcher()

    def record_failure(self, delivery: Delivery, error: KafkaError) -> None:
        """Keep a failed delivery for `flush` to raise. Purged records do not count."""
        if error.code() in _PURGED:
            return
        if len(self._failures) < _FAILURES_KEPT_MAX:
            self._failures[delivery] = None
        else:
            self._failures_dropped += 1

    def forget_failure(self, delivery: Delivery) -> None:
        """Drop a failure that the application has seen."""
        self._failures.pop(delivery, None)

    # Shutdown

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all records are delivered or expired. Raise failures that were not seen."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while left := self._flush(SLICE_S):
            if deadline is not None and time.monotonic() > deadline:
                raise self.flush_timeout(left, timeout_s)
        self.raise_failures()

    def flush_timeout(self, left: int, timeout_s: float | None) -> TimedOut:
        """Return the error for records that are not delivered in time."""
        error = TimedOut(f"{left} records are not delivered after {timeout_s} s.")
        self.errors.explain(error)
        return error

    def _flush(self, timeout_s: float) -> int:
        try:
            return self.rdkafka.flush(timeout_s)
        except (KafkaException, SystemError) as error:
            # librdkafka raises a fatal error from the next call, whichever it is.
            raise from_kafka(librdkafka_error(error), "The producer failed") from error

    def raise_failures(self) -> None:
        """Raise one error for all failed deliveries that the application has not seen."""
        count = len(self._failures) + self._failures_dropped
        if not count:
            return
        first = next(iter(self._failures), None)
        self._failures.clear()
        self._failures_dropped = 0
        reason = first.exception() if first is not None else None
        name, code = (reason.name, reason.code) if reason is not None else ("", 0)
        raise DeliveryError(
            f"{count} records whose deliveries were not checked failed; the first: {reason}",
            name,
            code,
        )

    def reject_sends(self, error: Callable[[], Exception]) -> None:
        """Make `produce` raise `error()` from now on."""

        def produce(*_arguments: Any, **_keywords: Any) -> NoReturn:
            raise error()

        self.produce = produce

    def begin_closing(self) -> None:
        """Reject further records."""
        self.reject_sends(closed_error)

    def close(self, *, is_broken: bool = False) -> None:
        """Purge the records in flight, resolve their deliveries as failed, and close librdkafka's
        producer.

        A fenced producer cannot be closed, only released.
        """
        if len(self.rdkafka):
            self.rdkafka.purge()
            try:
                self.rdkafka.flush(_FLUSH_S_MAX)
            except (KafkaException, SystemError) as error:
                _logger.warning("Closing a producer: %s", reason_of(librdkafka_error(error)))
        self._closed.set()
        self._finalizer.detach()
        if self._dispatcher is not None and self._dispatcher is not threading.current_thread():
            self._dispatcher.join()
        if not is_broken:
            with contextlib.suppress(AttributeError):
                # Before version 2.13, confluent-kafka has no `close`.
                self.rdkafka.close()


def closed_error() -> ClosedError:
    """Return the error for a closed producer."""
    return ClosedError("The producer is closed: create another one to send more.")


def delivery_error(error: KafkaException, what: str) -> Exception:
    """Return the error for a record that librdkafka rejected."""
    return from_kafka(error, what, DeliveryError)


def _dispatch_while_open(reference: weakref.ref[ProducerHandle], closed: threading.Event) -> None:
    pause = _DISPATCH_S
    while not closed.wait(pause):
        handle = reference()
        if handle is None:
            return
        pause = _DISPATCH_S if len(handle) else _DISPATCH_IDLE_S
        handle.dispatch_reports()


def _flush_unclosed(rdkafka: RdKafkaProducer) -> None:
    """Send the records of a producer that was not closed, also at the end of the program."""
    try:
        left = rdkafka.flush(_FLUSH_S_MAX)
    except (KafkaException, SystemError) as error:
        reason = reason_of(librdkafka_error(error))
        _logger.error("A producer was not closed before the program ended: %s.", reason)
        return
    if left:
        _logger.error("%d records were not delivered before the program ended.", left)

"""The future of one record that was sent. It costs almost nothing while no thread waits for it.

The delivery itself is librdkafka's delivery callback. It has no lock, no condition and no list of
callbacks. A new delivery is an object without any attribute set; once it has them, it is done. A
delivery with callbacks changes its class to one whose call also runs them.

A thread that asks for reports dispatches them itself: `result()` does. So no second thread competes
with the sending one for the interpreter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Protocol

from confluent_kafka import KafkaError, Message

from millstream.client.connection_error import ConnectionErrors
from millstream.client.error import BrokerError, DeliveryError, TimedOut, UsageError, from_kafka
from millstream.client.old_name import rejects_old_names
from millstream.client.record import RecordMetadata, metadata_of

DoneCallback = Callable[["Delivery"], object]


class ReportDispatcher(Protocol):
    """What a delivery needs of its producer handle."""

    errors: ConnectionErrors

    def dispatch_reports(self) -> bool:
        """Dispatch the reports in the queue. False if another thread does."""

    def wait_until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Dispatch reports until `done()`. False after the timeout."""

    def record_failure(self, delivery: Delivery, error: KafkaError) -> None:
        """Keep a failed delivery that the application has not seen."""

    def forget_failure(self, delivery: Delivery) -> None:
        """Drop a failure that the application has seen."""

    def start_dispatcher(self) -> None:
        """Dispatch reports from now on even if no thread waits."""


class Delivery:
    """The future of a sent record."""

    __slots__ = ("_callbacks", "_error", "_message")

    _dispatcher: ClassVar[ReportDispatcher]
    #: The class with callbacks of these deliveries; that class refers to itself.
    _with_callbacks: ClassVar[type[Delivery]]

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Store librdkafka's delivery report."""
        self._error = error
        self._message = message
        if error is not None:
            self._dispatcher.record_failure(self, error)

    def done(self) -> bool:
        """Whether the record was delivered or expired. Does not wait."""
        if not hasattr(self, "_message"):
            self._dispatcher.dispatch_reports()
        return hasattr(self, "_message")

    @rejects_old_names
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the report. Return the record's position, or raise a DeliveryError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return metadata_of(self._message)

    @rejects_old_names
    def exception(self, timeout: float | None = None) -> BrokerError | None:
        """Wait for the report. Return None if the record was delivered."""
        if not self._is_done() and not self._dispatcher.wait_until(self._is_done, timeout):
            raise TimedOut(f"The record was neither delivered nor expired in {timeout} s.")
        if self._error is None:
            return None
        self._dispatcher.forget_failure(self)
        error = from_kafka(self._error, "The record was not delivered", DeliveryError)
        assert isinstance(error, BrokerError)
        self._dispatcher.errors.explain(error)
        return error

    def report(self) -> tuple[KafkaError | None, Message]:
        """Return the report of a delivery that is done. A failure still counts as not seen."""
        return self._error, self._message

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(delivery)` when it is done; at once if it is already."""
        with _CALLBACKS_LOCK:
            if type(self) is not self._with_callbacks:
                self._callbacks: list[DoneCallback] = []
                # A report may arrive on another thread meanwhile; hence the check below.
                self.__class__ = self._with_callbacks
            self._callbacks.append(callback)
        if self._is_done():
            self._notify()
        else:
            self._dispatcher.start_dispatcher()

    def _is_done(self) -> bool:
        return hasattr(self, "_message")

    def _notify(self) -> None:
        with _CALLBACKS_LOCK:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __repr__(self) -> str:
        if not self._is_done():
            return "<Delivery pending>"
        return f"<Delivery failed: {self._error}>" if self._error else "<Delivery done>"


class AsyncDelivery(Delivery):
    """A delivery that is awaited on the event loop of its producer."""

    __slots__ = ()

    _loop: ClassVar[asyncio.AbstractEventLoop]
    _loop_thread: ClassVar[int]

    @rejects_old_names
    def exception(self, timeout: float | None = None) -> BrokerError | None:
        """Return None if the record was delivered. On the event loop the delivery must be done."""
        if not self._is_done() and threading.get_ident() == self._loop_thread:
            raise UsageError("The record is not delivered yet: await the delivery.")
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._is_done():
            if asyncio.get_running_loop() is not self._loop:
                raise UsageError(
                    "This delivery belongs to another event loop: await it where it was sent."
                )
            waiter: asyncio.Future[None] = self._loop.create_future()
            self.add_done_callback(lambda _: self._wake(waiter))
            yield from waiter.__await__()
        return self.result()

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        """Resolve the waiter. Reports of an aborted transaction arrive on another thread."""
        if threading.get_ident() == self._loop_thread:
            _resolve(waiter)
        else:
            self._loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


#: Guards the callback lists of all deliveries. They are rare and short.
_CALLBACKS_LOCK = threading.Lock()


def delivery_type(
    base: type[Delivery],
    dispatcher: ReportDispatcher,
    loop: asyncio.AbstractEventLoop | None = None,
) -> type[Delivery]:
    """Return the class of one producer's deliveries. The class, not each delivery, refers to the
    producer.
    """
    shared = {"_dispatcher": dispatcher, "_loop": loop, "_loop_thread": threading.get_ident()}
    plain: Any = type(base.__name__, (base,), {"__slots__": (), **shared})

    def report(self: Delivery, error: KafkaError | None, message: Message) -> None:
        base.__call__(self, error, message)
        self._notify()

    with_callbacks: Any = type(base.__name__, (plain,), {"__slots__": (), "__call__": report})
    plain._with_callbacks = with_callbacks._with_callbacks = with_callbacks  # noqa: SLF001
    made: type[Delivery] = plain
    return made

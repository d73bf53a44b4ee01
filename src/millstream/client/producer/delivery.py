"""The future of one record that was sent, made to cost next to nothing while nobody waits for it.

The delivery itself is what librdkafka calls back. It has no lock, no condition and no list of
callbacks: a fresh one is an object without any attribute set, and being settled is having them.
One that somebody listens to changes its class to one whose call also tells the listeners.

Delivery reports are handed out by whoever asks the pump for them, so that no second thread
competes for the interpreter with one that sends: `result()` does so itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Protocol

from confluent_kafka import KafkaError, Message

from millstream.client.error import BrokerError, DeliveryError, TimedOut, UsageError, from_kafka
from millstream.client.record import RecordMetadata, metadata_of

Listener = Callable[["Delivery"], object]


class Reports(Protocol):
    """What a delivery needs of the producer it belongs to."""

    def serve(self) -> bool:
        """Hand out the reports that are there; whether it was our turn."""

    def wait(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Hand out reports until `done`; whether it came to that in time."""

    def failed(self, delivery: Delivery, error: KafkaError) -> None:
        """The record was not delivered, and nobody knows yet."""

    def noticed(self, delivery: Delivery) -> None:
        """Somebody knows."""

    def listen(self) -> None:
        """Hand out reports from now on also when nobody waits."""


class Delivery:
    """Where a record has gone, as soon as the brokers have said so."""

    __slots__ = ("_error", "_listeners", "_message")

    _reports: ClassVar[Reports]
    #: The class of the same deliveries once somebody listens; that class is its own.
    _heard: ClassVar[type[Delivery]]

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's report."""
        self._error = error
        self._message = message
        if error is not None:
            self._reports.failed(self, error)

    def done(self) -> bool:
        """Whether the record was delivered or given up. Does not wait."""
        if not hasattr(self, "_message"):
            self._reports.serve()
        return hasattr(self, "_message")

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the brokers; where the record is, or a DeliveryError."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return metadata_of(self._message)

    def exception(self, timeout_s: float | None = None) -> BrokerError | None:
        """Wait for the brokers; None if the record was delivered."""
        if not self._is_settled() and not self._reports.wait(self._is_settled, timeout_s):
            raise TimedOut(f"The record was neither delivered nor given up in {timeout_s} s.")
        if self._error is None:
            return None
        self._reports.noticed(self)
        error = from_kafka(self._error, "The record was not delivered", DeliveryError)
        assert isinstance(error, BrokerError)
        return error

    def add_done_callback(self, listener: Listener) -> None:
        """Call `listener(delivery)` when it is settled; at once if it is already."""
        with _LISTENING:
            if type(self) is not self._heard:
                self._listeners: list[Listener] = []
                # A report may come in on another thread meanwhile; hence the look below.
                self.__class__ = self._heard
            self._listeners.append(listener)
        if self._is_settled():
            self._tell()
        else:
            self._reports.listen()

    def _is_settled(self) -> bool:
        return hasattr(self, "_message")

    def _tell(self) -> None:
        with _LISTENING:
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    def __repr__(self) -> str:
        if not self._is_settled():
            return "<Delivery pending>"
        return f"<Delivery failed: {self._error}>" if self._error else "<Delivery done>"


class AsyncDelivery(Delivery):
    """A delivery to be awaited, on the event loop of its producer."""

    __slots__ = ()

    _loop: ClassVar[asyncio.AbstractEventLoop]
    _loop_thread: ClassVar[int]

    def exception(self, timeout_s: float | None = None) -> BrokerError | None:
        """None if the record was delivered. On the loop, only once the delivery is done."""
        if not self._is_settled() and threading.get_ident() == self._loop_thread:
            raise UsageError("The record is not delivered yet: await the delivery.")
        return super().exception(timeout_s)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._is_settled():
            if asyncio.get_running_loop() is not self._loop:
                raise UsageError(
                    "This delivery belongs to another event loop: await it where it was sent."
                )
            waiter: asyncio.Future[None] = self._loop.create_future()
            self.add_done_callback(lambda _: self._wake(waiter))
            yield from waiter.__await__()
        return self.result()

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        """Reports come on the loop, but those of an aborted transaction on a thread."""
        if threading.get_ident() == self._loop_thread:
            _settle(waiter)
        else:
            self._loop.call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


#: Guards the lists of listeners, of all deliveries: they are rare, and short.
_LISTENING = threading.Lock()


def delivery_type(
    base: type[Delivery], reports: Reports, loop: asyncio.AbstractEventLoop | None = None
) -> type[Delivery]:
    """The class of one producer's deliveries: whom they belong to is not written into each."""
    shared = {"_reports": reports, "_loop": loop, "_loop_thread": threading.get_ident()}
    plain: Any = type(base.__name__, (base,), {"__slots__": (), **shared})

    def report(self: Delivery, error: KafkaError | None, message: Message) -> None:
        base.__call__(self, error, message)
        self._tell()

    heard: Any = type(base.__name__, (plain,), {"__slots__": (), "__call__": report})
    plain._heard = heard._heard = heard  # noqa: SLF001
    made: type[Delivery] = plain
    return made

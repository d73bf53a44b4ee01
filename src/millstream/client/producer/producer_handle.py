"""One producer of librdkafka with its delivery reports: who gets them, and when.

librdkafka sends on threads of its own; reports wait in its queue until somebody polls. Polling
calls back into Python once a record, and gives the interpreter away in between: on a second thread
that would cost a sending one most of its speed. So whoever sends polls now and then, whoever waits
polls while waiting (one of them, the others look on), and a thread of our own runs only for
deliveries with callbacks.

A producer has a lane for its own `acks`, and one more for each other that `send` is asked for.
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
from confluent_kafka import Producer as Handle

from millstream.client.error import (
    ClosedError,
    DeliveryError,
    TimedOut,
    UsageError,
    from_kafka,
    settings_error,
)
from millstream.client.producer.delivery import Delivery, delivery_type

LOGGER: Final = logging.getLogger("millstream.client")
#: A wait is cut in slices, so that signals are handled and nobody sleeps past another's report.
SLICE_S: Final = 0.1
_TICK_S: Final = 0.005
_IDLE_TICK_S: Final = 0.1
_TAIL_S_MAX: Final = 30.0
#: Failed deliveries that are kept for `flush` to speak of; the rest are only counted.
_FAILURES_KEPT_MAX: Final = 1000
#: By somebody who knows: an abort, or a close that did not wait.
_GIVEN_UP: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def open_handle(properties: dict[str, Any]) -> Handle:
    try:
        return Handle(properties, logger=LOGGER)
    except KafkaException as error:
        raise settings_error(error, "producer") from error


class Lane:
    """`produce` is librdkafka's, or what refuses in its place; `delivery` makes a future."""

    def __init__(
        self,
        properties: dict[str, Any],
        base: type[Delivery],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = loop
        self.handle = open_handle(properties)
        self.produce: Callable[..., None] = self.handle.produce
        self.delivery: type[Delivery] = delivery_type(base, self, loop)
        self._serving = threading.Lock()
        self._serving_thread: int | None = None
        self._served = threading.Condition(threading.Lock())
        self._failures: dict[Delivery, None] = {}
        self._failures_more = 0
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None
        self._tail = weakref.finalize(self, _flush_tail, self.handle)

    def __len__(self) -> int:
        """Records and reports on their way."""
        return len(self.handle)

    # Reports

    def serve(self, timeout_s: float = 0.0) -> bool:
        """Hand out the reports that are there, or the first to come; whether it was our turn."""
        if not self._serving.acquire(blocking=False):
            return False
        self._serving_thread = threading.get_ident()
        try:
            self.handle.poll(timeout_s)
        except KafkaException as error:
            raise from_kafka(error, "The producer cannot go on") from error
        finally:
            self._serving_thread = None
            self._serving.release()
        with self._served:
            self._served.notify_all()
        return True

    def wait(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        if self._serving_thread == threading.get_ident():
            raise UsageError("A delivery's callback cannot wait for another delivery.")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not done():
            left = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if left <= 0:
                return False
            if not self.serve(left):
                with self._served:
                    self._served.wait(left)
        return True

    def listen(self) -> None:
        if self._ticker is None:
            # It must not keep a forgotten producer alive.
            arguments = (weakref.ref(self), self._closed)
            self._ticker = threading.Thread(
                target=_tick, args=arguments, name="millstream-deliveries", daemon=True
            )
            self._ticker.start()

    def failed(self, delivery: Delivery, error: KafkaError) -> None:
        if error.code() in _GIVEN_UP:
            return
        if len(self._failures) < _FAILURES_KEPT_MAX:
            self._failures[delivery] = None
        else:
            self._failures_more += 1

    def noticed(self, delivery: Delivery) -> None:
        self._failures.pop(delivery, None)

    # The end

    def flush(self, timeout_s: float | None) -> None:
        """Until everything is delivered or given up; what failed unnoticed is raised here."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while left := self._flush(SLICE_S):
            if deadline is not None and time.monotonic() > deadline:
                raise TimedOut(f"{left} records are not delivered after {timeout_s} s.")
        self.raise_failures()

    def _flush(self, timeout_s: float) -> int:
        try:
            return self.handle.flush(timeout_s)
        except KafkaException as error:
            # librdkafka raises what is fatal from whatever call comes next.
            raise from_kafka(error, "The producer cannot go on") from error

    def raise_failures(self) -> None:
        count = len(self._failures) + self._failures_more
        if not count:
            return
        first = next(iter(self._failures), None)
        self._failures.clear()
        self._failures_more = 0
        reason = first.exception() if first is not None else None
        name, code = (reason.name, reason.code) if reason is not None else ("", 0)
        raise DeliveryError(
            f"{count} records that nobody asked about were not delivered; the first: {reason}",
            name,
            code,
        )

    def refuse(self, error: Callable[[], Exception]) -> None:
        """From now on sending raises."""

        def produce(*_arguments: Any, **_keywords: Any) -> NoReturn:
            raise error()

        self.produce = produce

    def begin_closing(self) -> None:
        self.refuse(closed)

    def close(self, *, is_broken: bool = False) -> None:
        """What is still on its way is given up, and its deliveries told so. Waits for that.

        A handle that was fenced cannot be closed, only let go.
        """
        if len(self.handle):
            self.handle.purge()
            try:
                self.handle.flush(_TAIL_S_MAX)
            except KafkaException as error:
                LOGGER.warning("closing a producer: %s", error)
        self._closed.set()
        self._tail.detach()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join()
        if not is_broken:
            with contextlib.suppress(AttributeError):
                # Releases of confluent-kafka before 2.13 end with their last use.
                self.handle.close()


def closed() -> ClosedError:
    return ClosedError("The producer is closed: make another one to send more.")


def failure(error: KafkaException, what: str) -> Exception:
    return from_kafka(error, what, DeliveryError)


def _tick(reference: weakref.ref[Lane], closed: threading.Event) -> None:
    pause = _TICK_S
    while not closed.wait(pause):
        lane = reference()
        if lane is None:
            return
        pause = _TICK_S if len(lane) else _IDLE_TICK_S
        lane.serve()


def _flush_tail(handle: Handle) -> None:
    """A producer that nobody closed: what it holds is still sent, also at the program's end."""
    left = handle.flush(_TAIL_S_MAX)
    if left:
        LOGGER.error("%d records were not delivered before the program ended", left)

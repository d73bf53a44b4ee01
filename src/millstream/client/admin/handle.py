"""librdkafka's admin client behind an `Admin`, with the client's errors.

A call waits in slices and polls librdkafka in between, so that an `error_cb` in `config` runs, and
an exception that it raises ends the call.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.client.admin.result import Outcome
from millstream.client.connection_error import ConnectionErrors, with_errors
from millstream.client.error import (
    ClosedError,
    MillstreamError,
    TimedOut,
    settings_error,
    translated,
)

_logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

#: The interval at which a waiting call polls librdkafka's callbacks.
_SLICE_S: Final = 0.02
#: librdkafka ends a request at its timeout. The wait for its report is this much longer.
_GRACE_S: Final = 5.0


class AdminHandle:
    """One librdkafka client. Any thread may use it."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._errors = ConnectionErrors()
        self._properties = with_errors({"logger": _logger, **properties}, self._errors)
        #: Whether errors name the last connection error. A callback in `config` gets it instead.
        self._explains = "error_cb" not in properties
        try:
            self._client: AdminClient | None = AdminClient(self._properties)
        except KafkaException as error:
            raise settings_error(error, "admin client") from error
        client = self._client
        self._errors.serve = lambda: client.poll(0)

    @property
    def client(self) -> AdminClient:
        """librdkafka's client. Raises ClosedError."""
        if self._client is None:
            raise ClosedError("The admin client is closed: create another one.")
        return self._client

    def close(self) -> None:
        """Release librdkafka's client. Waits until its threads have ended.

        A call in progress on another thread keeps the client until it returns.
        """
        self._errors.serve = lambda: None
        self._client = None

    @contextmanager
    def translating(self, what: str) -> Iterator[None]:
        """Raise librdkafka's errors in the block as the client's. `what` names the operation."""
        explaining = self._errors.explaining() if self._explains else nullcontext()
        with explaining, translated(what):
            yield

    def result(self, future: Future[Any], what: str, timeout: float) -> Any:
        """Wait for one response. `what` names the operation in an error."""
        client = self.client
        deadline = time.monotonic() + timeout + _GRACE_S
        with self.translating(what):
            while True:
                try:
                    return future.result(_SLICE_S)
                except concurrent.futures.TimeoutError:
                    if time.monotonic() > deadline:
                        raise TimedOut(f"{what}: no response within {timeout:g} s.") from None
                client.poll(0)

    def outcomes(
        self,
        futures: Mapping[K, Future[Any]],
        what: Callable[[K], str],
        timeout: float,
        convert: Callable[[Any], T],
    ) -> dict[K, Outcome[T]]:
        """Wait for all responses. Return the converted response or the error of each."""
        found: dict[K, Outcome[T]] = {}
        for key, future in futures.items():
            try:
                found[key] = convert(self.result(future, what(key), timeout))
            except MillstreamError as error:
                found[key] = error
        return found

    @property
    def properties(self) -> dict[str, Any]:
        """The client's properties. Raises ClosedError."""
        _ = self.client
        return self._properties


def outcome_of(call: Callable[[], T]) -> Outcome[T]:
    """Return the result of the call, or the error that it raises."""
    try:
        return call()
    except MillstreamError as error:
        return error


def single(outcome: Outcome[T]) -> T:
    """Return the result of an operation on one item, or raise its error."""
    if isinstance(outcome, MillstreamError):
        raise outcome
    return outcome

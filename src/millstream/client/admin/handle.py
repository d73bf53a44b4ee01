"""librdkafka's admin client and the protocol client behind an `Admin`, with the client's errors.

A call waits in slices and polls librdkafka in between, so that an `error_cb` in `config` runs, and
an exception that it raises ends the call.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream.client.admin.result import Outcome
from millstream.client.error import (
    BrokerError,
    ClosedError,
    TimedOut,
    UsageError,
    from_kafka,
    settings_error,
)
from millstream.client.error import ClientError as MillstreamError
from millstream.model.error import BrokerError as ProtocolRejection
from millstream.model.error import ErrorCode
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.cluster_client import ClusterClient
from millstream.protocol.connection_setting import connection_settings
from millstream.protocol.error import ConnectionLost, SettingError, Unavailable

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
        self._properties = {"logger": _logger, **properties}
        try:
            self._client: AdminClient | None = AdminClient(self._properties)
        except KafkaException as error:
            raise settings_error(error, "admin client") from error

    @property
    def client(self) -> AdminClient:
        """librdkafka's client. Raises ClosedError."""
        if self._client is None:
            raise ClosedError("The admin client is closed: create another one.")
        return self._client

    def close(self) -> None:
        """Release librdkafka's client."""
        self._client = None

    # Responses of librdkafka

    def result(self, future: Future[Any], what: str, timeout: float) -> Any:
        """Wait for one response. `what` names the operation in an error."""
        client = self.client
        deadline = time.monotonic() + timeout + _GRACE_S
        while True:
            try:
                return future.result(_SLICE_S)
            except concurrent.futures.TimeoutError:
                if time.monotonic() > deadline:
                    raise TimedOut(f"{what}: no response within {timeout:g} s.") from None
            except KafkaException as error:
                raise from_kafka(error, what) from error
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

    # Requests that librdkafka does not have

    @contextmanager
    def cluster(self, what: str, timeout: float) -> Iterator[ClusterClient]:
        """Connect a protocol client with the same properties, for the block.

        Its errors become the client's. It belongs to the calling thread."""
        _ = self.client  # raises if closed
        try:
            with ClusterClient(self._settings(timeout)) as cluster:
                yield cluster
        except SettingError as error:
            raise UsageError(f"{what}: {error}.") from error
        except Unavailable as error:
            raise TimedOut(f"{what}: {error}.") from error
        except ConnectionLost as error:
            raise BrokerError(f"{what}: {error}.", "_TRANSPORT", KafkaError._TRANSPORT) from error  # noqa: SLF001
        except ProtocolRejection as error:
            raise rejection(error.code, what) from error

    def _settings(self, timeout: float) -> Any:
        timeout_ms = str(max(1, int(timeout * 1000)))
        properties = {
            "request.timeout.ms": timeout_ms,
            "socket.connection.setup.timeout.ms": timeout_ms,
            "default.api.timeout.ms": timeout_ms,
        }
        for name, value in self._properties.items():
            if isinstance(value, bool):
                properties[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                properties[name] = str(value)
        return connection_settings(ClientProperties(properties))


def rejection(code: int, what: str, message: str | None = None) -> BrokerError:
    """Return the exception for an error code of the protocol."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    reason = (message or str(KafkaError(code).str())).rstrip(".").removeprefix("Broker: ")
    return BrokerError(f"{what}: {reason} ({name}).", name, int(code))


def single(outcome: Outcome[T]) -> T:
    """Return the result of an operation on one item, or raise its error."""
    if isinstance(outcome, MillstreamError):
        raise outcome
    return outcome

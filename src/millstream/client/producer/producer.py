"""The producer for threads: `send` returns a future for each record."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Generic, Never, Self, Unpack

from confluent_kafka import KafkaException

from millstream.client.error import BufferFull, MillstreamError
from millstream.client.old_name import rejects_old_names
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.producer_core import ProducerCore
from millstream.client.producer.producer_handle import SLICE_S, ProducerHandle
from millstream.client.producer.transaction import State, Transaction, TransactionDriver
from millstream.client.record import RecordMetadata
from millstream.client.schedule import Headers, later
from millstream.client.serializer import KeySent, ValueSent
from millstream.client.setting import ProducerOptions, ProducerSettings
from millstream.client.tracing.producer_tracing import traced_send
from millstream.client.wrong_argument import documented, reject_arguments

#: A sending thread dispatches reports after this many records.
DISPATCH_EVERY: Final = 256
#: The wait while another thread dispatches reports, and so makes room.
_OTHER_DISPATCHER_S: Final = 0.001


class Producer(Generic[KeySent, ValueSent]):
    """Sends records. Retries keep their order and make no duplicates.

    >>> with Producer() as producer:
    ...     delivery = producer.send("orders", "2 apples", key="alice")
    ...     metadata = delivery.result()
    >>> metadata.topic
    'orders'

    `send` returns at once with a `Delivery`, a future. The end of the `with` block, `flush()` and
    `close()` wait until all records are delivered, and raise failures that were not checked.
    `bootstrap_servers` defaults to $MILLSTREAM_BOOTSTRAP_SERVERS, then to 127.0.0.1:9092. The
    keywords are those of `ProducerSettings`. Times are in seconds, except `linger_ms`. All methods
    may be called from any thread. Type checkers infer `Producer[K, V]` from the serializers.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        **options: Unpack[ProducerOptions[KeySent, ValueSent]],
    ) -> None:
        self._core = ProducerCore(bootstrap_servers, ProducerSettings.of(options), Delivery)
        self._handle = self._core.handle
        self._needs_prepare = self._core.needs_prepare
        self._undispatched = 0
        traced = traced_send(self.send, *self._core.tracing)
        if traced is not None:
            self.send = traced  # type: ignore[method-assign]

    @documented
    def send(
        self,
        topic: str,
        value: ValueSent | None,
        *extra: Never,
        key: KeySent | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        delay: dt.timedelta | float | None = None,
        deliver_at: dt.datetime | int | None = None,
        acks: None = None,
    ) -> Delivery:
        """Send one record. `timestamp` is in milliseconds since 1970 and defaults to now.

        Key and value are bytes, strings or None, or what the serializers encode. If the buffer is
        full, `send` waits up to `buffer_timeout`, then raises BufferFull.

        With `deliver_at` (a datetime, or milliseconds since 1970) or `delay` (seconds, or a
        timedelta) the record waits in `<topic>.scheduled` until the topic's workers process it at
        that time.
        """
        if extra or acks is not None:
            reject_arguments(Producer.send, extra, {"acks": acks})
        target = topic
        if deliver_at is not None or delay is not None:
            topic, headers, timestamp = later(topic, headers, deliver_at, delay)
        handle = self._handle
        if self._needs_prepare:
            count = self._core.fetch_count(topic) if self._core.needs_count(partition) else None
            value, key, headers, partition = self._core.prepare(
                target, value, key, headers, partition, count
            )
        delivery = handle.delivery()
        number = -1 if partition is None else partition
        try:
            if headers is None and timestamp is None:
                handle.produce(topic, value, key, number, delivery)
            else:
                more = {"headers": headers, "timestamp": timestamp or 0}
                handle.produce(topic, value, key, number, delivery, **more)
        except BufferError:
            record = (topic, value, key, number, delivery)
            more = {"headers": headers, "timestamp": timestamp or 0}
            self._send_when_room(handle, record, more)
        except (TypeError, ValueError, KafkaException) as error:
            if isinstance(error, MillstreamError):
                raise
            self._core.raise_rejected(error, topic, key, value)
        self._undispatched += 1
        if self._undispatched >= DISPATCH_EVERY:
            self._undispatched = 0
            handle.dispatch_reports()
        return delivery

    @documented
    def send_and_wait(
        self, topic: str, value: ValueSent | None, *extra: Never, **keywords: Any
    ) -> RecordMetadata:
        """Send a record and wait until it is delivered. The keywords are those of `send`."""
        return self.send(topic, value, *extra, **keywords).result()

    @rejects_old_names
    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record is delivered or expired."""
        self._handle.flush(timeout)

    def refresh(self, topic: str) -> None:
        """Fetch the metadata of a topic now. If the topic was deleted, its pending records fail."""
        self._core.refresh(topic)

    def transaction(self) -> Transaction[KeySent, ValueSent]:
        """Begin a transaction; needs a producer with a `transactional_id`.

        >>> with Producer(transactional_id="billing-1") as producer:
        ...     with producer.transaction() as txn:
        ...         _ = txn.send("bills", "2 apples: 3.00", key="alice")
        ...         _ = txn.send("stock", "-2", key="apples")
        >>> txn.state
        <State.COMMITTED: 'committed'>
        """
        return Transaction(self._core.begin(), self.send)

    @property
    def transactions(self) -> TransactionDriver | None:
        """The driver that a consumer with delivery="exactly_once" uses; None without a
        transactional id.
        """
        return self._core.driver

    @rejects_old_names
    def close(self, timeout: float | None = None) -> None:
        """Deliver pending records, abort an open transaction, and close. Later calls do nothing."""
        if self._core.is_closed:
            return
        try:
            driver = self._core.driver
            if driver is not None and driver.state is State.OPEN:
                driver.abort()
            if driver is None or driver.state is not State.BROKEN:
                self.flush(timeout)
        finally:
            self._core.close()

    def __len__(self) -> int:
        """Return the number of records and reports in flight."""
        return len(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send_when_room(
        self, handle: ProducerHandle, arguments: tuple[Any, ...], more: dict[str, Any]
    ) -> None:
        """Wait for room in the buffer, and send."""
        timeout_s = self._core.settings.buffer_timeout
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if not handle.dispatch_reports(min(left, SLICE_S)):
                time.sleep(_OTHER_DISPATCHER_S)
            try:
                handle.produce(*arguments, **more)
            except BufferError:
                continue
            return
        raise buffer_full(handle, timeout_s)


def buffer_full(handle: ProducerHandle, timeout_s: float) -> BufferFull:
    """Return the error for a buffer that stayed full."""
    return BufferFull(
        f"{len(handle)} records wait for the brokers, and there was no room for {timeout_s} s. "
        "Send slower, or raise buffer_records, buffer_bytes or buffer_timeout."
    )

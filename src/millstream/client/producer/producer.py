"""The producer: records in, futures out."""

from __future__ import annotations

import datetime as dt
import time
from types import TracebackType
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaException

from millstream.client.error import BufferFull, ClientError
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.producer_core import ProducerCore
from millstream.client.producer.producer_handle import SLICE_S, Lane
from millstream.client.producer.transaction import State, Transaction, TransactionDriver
from millstream.client.schedule import Headers, later
from millstream.client.setting import Acks, ProducerOptions, ProducerSettings

#: After so many records whoever sends hands out the reports that have come in.
SERVE_EVERY: Final = 256
#: Where another thread hands out reports, and so makes room.
_OTHERS_TURN_S: Final = 0.001


class Producer:
    """Sends records; retries without duplicates and in order, until each is in its topic.

    >>> with Producer() as producer:
    ...     delivery = producer.send("orders", "alice", "2 apples")
    ...     metadata = delivery.result()
    >>> metadata.topic
    'orders'

    `send` returns at once with a `Delivery`, a future. Leaving the `with` block, `flush()` and
    `close()` wait until everything is delivered, and raise what failed and nobody asked about.
    `servers` defaults to $MILLSTREAM_BOOTSTRAP_SERVERS, then to 127.0.0.1:9092; the keywords are
    those of `ProducerSettings`. All methods may be called from any thread.
    """

    def __init__(self, servers: str | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._core = ProducerCore(servers, ProducerSettings.of(options), Delivery)
        self._lane = self._core.lane
        self._is_prepared = self._core.is_prepared
        self._unserved = 0

    def send(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        acks: Acks | None = None,
        timestamp: int | None = None,
        deliver_at: dt.datetime | int | None = None,
        delay: dt.timedelta | float | None = None,
    ) -> Delivery:
        """Send one record. `timestamp` is in milliseconds since 1970; without, it is now.

        Key and value are bytes, strings or None, or whatever the serializers take. When the buffer
        is full this waits up to `buffer_timeout_s`, then raises BufferFull. Records with other
        `acks` than the producer's go a way of their own: they may overtake, and be overtaken.

        With `deliver_at` (a datetime, or milliseconds since 1970) or `delay` (seconds, or a
        timedelta) it waits in `<topic>.scheduled`, for the workers of the topic to take it then.
        """
        if deliver_at is not None or delay is not None:
            topic, headers, timestamp = later(topic, headers, deliver_at, delay)
        lane = self._lane
        if self._is_prepared or acks is not None:
            count = self._core.counts.of(topic) if self._core.needs_count(partition) else None
            lane, key, value, partition = self._core.prepare(
                topic, key, value, partition, acks, count
            )
        delivery = lane.delivery()
        number = -1 if partition is None else partition
        try:
            if headers is None and timestamp is None:
                lane.produce(topic, value, key, number, delivery)
            else:
                more = {"headers": headers, "timestamp": timestamp or 0}
                lane.produce(topic, value, key, number, delivery, **more)
        except BufferError:
            self._send_later(lane, delivery, topic, key, value, number, headers, timestamp)
        except (TypeError, ValueError, KafkaException) as error:
            if isinstance(error, ClientError):
                raise
            self._core.explain(error, topic, key, value)
        self._unserved += 1
        if self._unserved >= SERVE_EVERY:
            self._unserved = 0
            lane.serve()
        return delivery

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record is delivered or given up."""
        for lane in self._core.lanes:
            lane.flush(timeout_s)

    def refresh(self, topic: str) -> None:
        """Ask the brokers for a topic now. If it was deleted, records that wait for it fail."""
        self._core.refresh(topic)

    def transaction(self) -> Transaction:
        """Begin a transaction; needs a producer with a `transactional_id`.

        >>> with Producer(transactional_id="billing-1") as producer:
        ...     with producer.transaction() as txn:
        ...         _ = txn.send("bills", "alice", "2 apples: 3.00")
        ...         _ = txn.send("stock", "apples", "-2")
        >>> txn.state
        <State.COMMITTED: 'committed'>
        """
        return Transaction(self._core.begin(), self.send)

    @property
    def transactions(self) -> TransactionDriver | None:
        """What a consumer with delivery="exactly_once" drives; None without a transactional id."""
        return self._core.driver

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what is there and end. An open transaction is aborted. Twice is once."""
        if self._core.is_closed:
            return
        try:
            driver = self._core.driver
            if driver is not None and driver.state is State.OPEN:
                driver.abort()
            if driver is None or driver.state is not State.BROKEN:
                self.flush(timeout_s)
        finally:
            self._core.close()

    def __len__(self) -> int:
        """Records and reports on their way."""
        return sum(map(len, self._core.lanes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send_later(
        self,
        lane: Lane,
        delivery: Delivery,
        topic: str,
        key: Any,
        value: Any,
        partition: int,
        headers: Headers | None,
        timestamp: int | None,
    ) -> None:
        """Wait for room in the buffer."""
        timeout_s = self._core.settings.buffer_timeout_s
        deadline = time.monotonic() + timeout_s
        more = {"headers": headers, "timestamp": timestamp or 0}
        while (left := deadline - time.monotonic()) > 0:
            if not lane.serve(min(left, SLICE_S)):
                time.sleep(_OTHERS_TURN_S)
            try:
                lane.produce(topic, value, key, partition, delivery, **more)
            except BufferError:
                continue
            return
        raise full(lane, timeout_s)


def full(lane: Lane, timeout_s: float) -> BufferFull:
    return BufferFull(
        f"{len(lane)} records wait for the brokers, and no room came free in {timeout_s} s. Send "
        "slower, or raise buffer_records, buffer_bytes or buffer_timeout_s."
    )

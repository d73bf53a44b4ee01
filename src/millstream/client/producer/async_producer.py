"""The producer for asyncio: the same records and futures, awaited on one event loop.

While records are in flight, a timer of the event loop dispatches their reports. Calls that wait for
brokers (metadata, transactions, closing) run on threads. The event loop itself only calls `produce`
and `poll(0)` of librdkafka, which never wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Generic, Never, Self, Unpack, cast

from confluent_kafka import KafkaException

from millstream.client.error import MillstreamError, UsageError
from millstream.client.old_name import rejects_old_names
from millstream.client.producer.async_transaction import AsyncTransaction
from millstream.client.producer.delivery import AsyncDelivery
from millstream.client.producer.producer import DISPATCH_EVERY, buffer_full
from millstream.client.producer.producer_core import ProducerCore
from millstream.client.producer.producer_handle import ProducerHandle
from millstream.client.producer.transaction import State, TransactionDriver
from millstream.client.record import RecordMetadata
from millstream.client.schedule import Headers, later
from millstream.client.serializer import KeySent, ValueSent
from millstream.client.setting import ProducerOptions, ProducerSettings
from millstream.client.shielded_call import shielded
from millstream.client.tracing.producer_tracing import traced_async_send
from millstream.client.wrong_argument import documented, reject_arguments

_TICK_S: Final = 0.001
_TICK_IDLE_S: Final = 0.1


class AsyncProducer(Generic[KeySent, ValueSent]):
    """`Producer` for asyncio; see there. Create and use it on one event loop.

    >>> async def main():
    ...     async with AsyncProducer() as producer:
    ...         delivery = await producer.send("orders", "2 apples", key="alice")
    ...         metadata = await delivery
    ...         print(metadata.topic)
    >>> asyncio.run(main())
    orders
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        **options: Unpack[ProducerOptions[KeySent, ValueSent]],
    ) -> None:
        self._loop = running_loop("AsyncProducer")
        self._core = ProducerCore(
            bootstrap_servers,
            ProducerSettings.of(options),
            AsyncDelivery,
            _LoopProducerHandle,
            self._loop,
        )
        self._handle = self._core.handle
        self._needs_prepare = self._core.needs_prepare
        self._undispatched = 0
        #: Pending requests for the number of partitions of a topic.
        self._count_requests: dict[str, asyncio.Future[int]] = {}
        self._ended: concurrent.futures.Future[None] | None = None
        traced = traced_async_send(self.send, *self._core.tracing)
        if traced is not None:
            self.send = traced  # type: ignore[method-assign, assignment]

    @documented
    async def send(
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
    ) -> AsyncDelivery:
        """As `Producer.send`. Awaiting it waits for room in the buffer; awaiting its result waits
        for the brokers.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop("AsyncProducer")
        if extra or acks is not None:
            reject_arguments(AsyncProducer.send, extra, {"acks": acks})
        target = topic
        if deliver_at is not None or delay is not None:
            topic, headers, timestamp = later(topic, headers, deliver_at, delay)
        handle = self._handle
        if self._needs_prepare:
            count = await self._count(topic) if self._core.needs_count(partition) else None
            record = (target, value, key, headers, partition, count)
            if self._core.must_load(target):
                call = self._loop.run_in_executor(None, self._core.prepare, *record)
                value, key, headers, partition = await shielded(call)
            else:
                value, key, headers, partition = self._core.prepare(*record)
        delivery = handle.delivery()
        number = -1 if partition is None else partition
        more = (
            {}
            if headers is None and timestamp is None
            else {"headers": headers, "timestamp": timestamp or 0}
        )
        try:
            handle.produce(topic, value, key, number, delivery, **more)
        except BufferError:
            await self._send_when_room(handle, (topic, value, key, number, delivery), more)
        except (TypeError, ValueError, KafkaException) as error:
            if isinstance(error, MillstreamError):
                raise
            self._core.raise_rejected(error, topic, key, value)
        self._undispatched += 1
        if self._undispatched >= DISPATCH_EVERY:
            self._undispatched = 0
            handle.dispatch_reports()
            # Many sends in a row must not keep other tasks from running.
            await asyncio.sleep(0)
        return cast("AsyncDelivery", delivery)

    @documented
    async def send_and_wait(
        self, topic: str, value: ValueSent | None, *extra: Never, **keywords: Any
    ) -> RecordMetadata:
        """Send a record and wait until it is delivered. The keywords are those of `send`."""
        return await (await self.send(topic, value, *extra, **keywords))

    @rejects_old_names
    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 -- as the sync method
    ) -> None:
        """Wait until every record is delivered or expired."""
        deadline = None if timeout is None else self._loop.time() + timeout
        handle = self._handle
        while len(handle):
            handle.dispatch_reports()
            if deadline is not None and self._loop.time() > deadline:
                raise handle.flush_timeout(len(handle), timeout)
            await asyncio.sleep(_TICK_S)
        handle.raise_failures()

    async def refresh(self, topic: str) -> None:
        """As `Producer.refresh`."""
        await asyncio.to_thread(self._core.refresh, topic)

    def transaction(self) -> AsyncTransaction[KeySent, ValueSent]:
        """Return a transaction, which begins with its `async with` block.

        >>> async def main():
        ...     async with AsyncProducer(transactional_id="billing-2") as producer:
        ...         async with producer.transaction() as txn:
        ...             await txn.send("bills", "2 apples: 3.00", key="alice")
        ...         print(txn.state)
        >>> asyncio.run(main())
        committed
        """
        return AsyncTransaction(self._core.begin, self.send, self.flush)

    @property
    def transactions(self) -> TransactionDriver | None:
        """The driver that a consumer with delivery="exactly_once" uses; None without a
        transactional id.
        """
        return self._core.driver

    @rejects_old_names
    async def close(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 -- as the sync method
    ) -> None:
        """Deliver pending records, abort an open transaction, and close. Later calls do nothing."""
        if self._ended is None:
            try:
                driver = self._core.driver
                if driver is not None and driver.state is State.OPEN:
                    await asyncio.to_thread(driver.abort)
                if driver is None or driver.state is not State.BROKEN:
                    await self.flush(timeout)
            finally:
                await self._end()
        else:
            await self._end()

    async def _end(self) -> None:
        """Close librdkafka's producers on a thread, which continues if this call is cancelled."""
        if self._ended is None:
            self._core.begin_closing()
            thread = concurrent.futures.ThreadPoolExecutor(1, "millstream-producer")
            self._ended = thread.submit(self._core.finish_closing)
            thread.shutdown(wait=False)
        await shielded(asyncio.wrap_future(self._ended))

    async def _send_when_room(
        self, handle: ProducerHandle, arguments: tuple[Any, ...], more: dict[str, Any]
    ) -> None:
        """Wait for room in the buffer, and send."""
        timeout_s = self._core.settings.buffer_timeout
        deadline = self._loop.time() + timeout_s
        while self._loop.time() < deadline:
            handle.dispatch_reports()
            await asyncio.sleep(_TICK_S)
            try:
                handle.produce(*arguments, **more)
            except BufferError:
                continue
            return
        raise buffer_full(handle, timeout_s)

    async def _count(self, topic: str) -> int:
        """Return the number of partitions. Concurrent sends to one topic share a request."""
        known = self._core.partition_counts.known(topic)
        if known is not None:
            return known
        request = self._count_requests.get(topic)
        if request is None:
            request = self._loop.run_in_executor(None, self._core.partition_counts.of, topic)
            self._count_requests[topic] = request
            request.add_done_callback(lambda _: self._count_requests.pop(topic, None))
        return await shielded(request)

    def __len__(self) -> int:
        """Return the number of records and reports in flight."""
        return len(self._handle)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class _LoopProducerHandle(ProducerHandle):
    """Dispatches reports by a timer of the event loop while records are in flight."""

    _timer: asyncio.TimerHandle | None = None

    _is_over = False
    _dispatches_always = False

    def start_dispatcher(self) -> None:
        self._dispatch_in(_TICK_S)

    def _dispatch_in(self, seconds: float) -> None:
        if self._timer is not None and self._timer.when() > self._now() + seconds:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self.loop is not None and not self._is_over:
            self._timer = self.loop.call_later(seconds, self._tick)

    def _now(self) -> float:
        assert self.loop is not None
        return self.loop.time()

    def dispatch_always(self) -> None:
        self._dispatches_always = True
        self.start_dispatcher()

    def _tick(self) -> None:
        self._timer = None
        self.dispatch_reports()
        if len(self):
            self.start_dispatcher()
        elif self._dispatches_always:
            self._dispatch_in(_TICK_IDLE_S)

    def begin_closing(self) -> None:
        super().begin_closing()
        # On the event loop, before a thread closes the handle: the timer must not find it closed.
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def running_loop(who: str) -> asyncio.AbstractEventLoop:
    """Return the running event loop, or raise."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{who} is for asyncio: create it inside a coroutine, as in asyncio.run(main())."
        ) from None


def other_loop(who: str) -> UsageError:
    """Return the error for a client that is used on another event loop."""
    return UsageError(
        f"This {who} belongs to another event loop: create one for each loop, and use it there."
    )

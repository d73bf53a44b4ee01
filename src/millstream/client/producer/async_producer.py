"""The producer for asyncio: the same records and futures, awaited on one event loop.

While records are on their way a timer of the loop hands out the reports that have come in. Calls
that wait for the brokers (metadata, transactions, the end) run on threads: the loop itself only
calls `produce` and `poll(0)` of librdkafka, which never wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast

from confluent_kafka import KafkaException

from millstream.client.error import ClientError, TimedOut, UsageError
from millstream.client.producer.async_transaction import AsyncTransaction
from millstream.client.producer.delivery import AsyncDelivery
from millstream.client.producer.producer import SERVE_EVERY, full
from millstream.client.producer.producer_core import ProducerCore
from millstream.client.producer.producer_handle import Lane
from millstream.client.producer.transaction import State, TransactionDriver
from millstream.client.record import RecordMetadata
from millstream.client.schedule import Headers, later
from millstream.client.setting import Acks, ProducerOptions, ProducerSettings

_TICK_S: Final = 0.001


class AsyncProducer:
    """`Producer` for asyncio; see there. Made and used on one event loop.

    >>> async def main():
    ...     async with AsyncProducer() as producer:
    ...         delivery = await producer.send("orders", "alice", "2 apples")
    ...         metadata = await delivery
    ...         print(metadata.topic)
    >>> asyncio.run(main())
    orders
    """

    def __init__(self, servers: str | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._loop = running_loop("AsyncProducer")
        self._core = ProducerCore(
            servers, ProducerSettings.of(options), AsyncDelivery, _LoopLane, self._loop
        )
        self._lane = self._core.lane
        self._is_prepared = self._core.is_prepared
        self._unserved = 0
        #: Requests for the number of partitions of a topic that are pending.
        self._asked: dict[str, asyncio.Future[int]] = {}
        self._ended: concurrent.futures.Future[None] | None = None

    async def send(
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
    ) -> AsyncDelivery:
        """As `Producer.send`. Awaiting this waits for room in the buffer, awaiting what it returns
        for the brokers."""
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop("AsyncProducer")
        if deliver_at is not None or delay is not None:
            topic, headers, timestamp = later(topic, headers, deliver_at, delay)
        lane = self._lane
        if self._is_prepared or acks is not None:
            count = await self._count(topic) if self._core.needs_count(partition) else None
            lane, key, value, partition = self._core.prepare(
                topic, key, value, partition, acks, count
            )
        delivery = lane.delivery()
        number = -1 if partition is None else partition
        more = (
            {}
            if headers is None and timestamp is None
            else {"headers": headers, "timestamp": timestamp or 0}
        )
        deadline = None
        while True:
            try:
                lane.produce(topic, value, key, number, delivery, **more)
                break
            except BufferError:
                timeout_s = self._core.settings.buffer_timeout_s
                deadline = deadline or self._loop.time() + timeout_s
                if self._loop.time() >= deadline:
                    raise full(lane, timeout_s) from None
                lane.serve()
                await asyncio.sleep(_TICK_S)
            except (TypeError, ValueError, KafkaException) as error:
                if isinstance(error, ClientError):
                    raise
                self._core.explain(error, topic, key, value)
        self._unserved += 1
        if self._unserved >= SERVE_EVERY:
            self._unserved = 0
            lane.serve()
            # Many sends in a row must not keep others from running.
            await asyncio.sleep(0)
        return cast("AsyncDelivery", delivery)

    async def send_and_wait(self, topic: str, *arguments: Any, **keywords: Any) -> RecordMetadata:
        """`send`, and wait until the record is delivered."""
        return await (await self.send(topic, *arguments, **keywords))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record is delivered or given up."""
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        for lane in self._core.lanes:
            while len(lane):
                lane.serve()
                if deadline is not None and self._loop.time() > deadline:
                    raise TimedOut(f"{len(lane)} records are not delivered after {timeout_s} s.")
                await asyncio.sleep(_TICK_S)
            lane.raise_failures()

    def transaction(self) -> AsyncTransaction:
        """A transaction, which begins with its `async with` block.

        >>> async def main():
        ...     async with AsyncProducer(transactional_id="billing-2") as producer:
        ...         async with producer.transaction() as txn:
        ...             await txn.send("bills", "alice", "2 apples: 3.00")
        ...         print(txn.state)
        >>> asyncio.run(main())
        committed
        """
        return AsyncTransaction(self._core.begin, self.send, self.flush)

    @property
    def transactions(self) -> TransactionDriver | None:
        """What a consumer with delivery="exactly_once" drives; None without a transactional id."""
        return self._core.driver

    async def close(self, timeout_s: float | None = None) -> None:
        """Deliver what is there and end. An open transaction is aborted. Twice is once."""
        if self._ended is None:
            try:
                driver = self._core.driver
                if driver is not None and driver.state is State.OPEN:
                    await asyncio.to_thread(driver.abort)
                if driver is None or driver.state is not State.BROKEN:
                    await self.flush(timeout_s)
            finally:
                await self._end()
        else:
            await self._end()

    async def _end(self) -> None:
        """Close librdkafka's producers on a thread. If this is cancelled, the thread goes on."""
        if self._ended is None:
            self._core.begin_closing()
            thread = concurrent.futures.ThreadPoolExecutor(1, "millstream-producer")
            self._ended = thread.submit(self._core.finish_closing)
            thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._ended))

    async def _count(self, topic: str) -> int:
        """The number of partitions. Sends that wait for the same topic share one request."""
        known = self._core.counts.known(topic)
        if known is not None:
            return known
        asked = self._asked.get(topic)
        if asked is None:
            asked = self._loop.run_in_executor(None, self._core.counts.of, topic)
            self._asked[topic] = asked
            asked.add_done_callback(lambda _: self._asked.pop(topic, None))
        return await asyncio.shield(asked)

    def __len__(self) -> int:
        """Records and reports on their way."""
        return sum(map(len, self._core.lanes))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class _LoopLane(Lane):
    """Hands out reports by a timer of the loop, while somebody listens and records are out."""

    _timer: asyncio.TimerHandle | None = None

    _is_over = False

    def listen(self) -> None:
        if self._timer is None and self.loop is not None and not self._is_over:
            self._timer = self.loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.serve()
        if len(self):
            self.listen()

    def begin_closing(self) -> None:
        super().begin_closing()
        # On the loop, before a thread closes the handle: a tick must not find it closed.
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def running_loop(who: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{who} is for asyncio: make it inside a coroutine, for example in asyncio.run(main())."
        ) from None


def other_loop(who: str) -> UsageError:
    return UsageError(
        f"This {who} belongs to another event loop: make one for each loop, and use it there."
    )

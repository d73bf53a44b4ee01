"""The consumer for asyncio: the same core on one thread of its own, awaited on one event loop.

Every call of librdkafka that may wait runs on the thread. The event loop itself only hands out
records that the thread made ready, and reads state that is locked only briefly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import functools
import re
import threading
import time as clock
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from millstream.client.consumer.consumer import (
    RECORDS_MAX,
    consumer_over,
    count_of,
    milliseconds_of,
    required,
)
from millstream.client.consumer.consumer_core import ConsumerCore, SeekOffset
from millstream.client.consumer.consumer_handle import SLICE_S
from millstream.client.consumer.subscription import subscription_of
from millstream.client.error import ClosedError
from millstream.client.old_name import rejects_old_names
from millstream.client.producer.async_producer import other_loop, running_loop
from millstream.client.record import Partition, Record, Records
from millstream.client.serializer import KeyRead, ValueRead
from millstream.client.setting import ConsumerOptions, ConsumerSettings
from millstream.client.shielded_call import shielded

Result = TypeVar("Result")
#: Records that one call of the thread fetches. Polls that find some need no call.
_AHEAD: Final = 4000


class AsyncConsumer(Generic[KeyRead, ValueRead]):
    """`Consumer` for asyncio; see there. Create and use it on one event loop.

    >>> async def main():
    ...     async with AsyncProducer() as producer:
    ...         await producer.send_and_wait("crates", "7 pears", key="alice")
    ...     async with AsyncConsumer(group_id="pear-counters", topics=["crates"]) as consumer:
    ...         async for record in consumer:
    ...             print(record.value)
    ...             break
    >>> asyncio.run(main())
    b'7 pears'

    Callbacks for rebalances are plain functions. They run on the consumer's thread and get a
    `Consumer`, whose methods need no `await`. A cancelled `poll` loses nothing: its records come
    with the next one. Without a `group_id` the partitions of the topics are known after the first
    awaited call, or inside `async with`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        group_id: str | None = None,
        **options: Unpack[ConsumerOptions[KeyRead, ValueRead]],
    ) -> None:
        self._loop = running_loop("AsyncConsumer")
        self._core = ConsumerCore(
            bootstrap_servers,
            group_id,
            subscription_of(topics, pattern),
            ConsumerSettings.of(options),
        )
        self._core.load_ahead()
        self._core.owner = consumer_over(self._core)
        self._thread = ThreadPoolExecutor(1, "millstream-consumer")
        self._started = self._thread.submit(self._core.start)
        self._ended: concurrent.futures.Future[None] | None = None

    @rejects_old_names
    async def poll(
        self,
        max_records: int = RECORDS_MAX,
        timeout: float = 1.0,  # noqa: ASYNC109 -- as the sync method
    ) -> Records[KeyRead, ValueRead]:
        """Return up to `max_records` records as soon as there are some; none after `timeout`."""
        count = count_of(max_records)
        self._check_loop()
        # Many polls in a row must not keep other tasks from running.
        await asyncio.sleep(0)
        deadline = clock.monotonic() + timeout
        while (ready := self._core.poll_ready(count)) is None:
            left = max(0.0, deadline - clock.monotonic())
            if not await self._make_ready(count, left) or self._core.is_closing:
                return self._core.no_records()
        # Handed out on the event loop, right before this returns: a poll that is cancelled before
        # leaves all records pending.
        return ready

    async def _make_ready(self, count: int, timeout_s: float) -> bool:
        is_over = threading.Event()
        ahead = max(0, _AHEAD - count)
        call = functools.partial(self._core.make_ready, count, timeout_s, ahead, is_over.is_set)
        try:
            return await self._call(call)
        finally:
            is_over.set()

    async def __aiter__(self) -> AsyncIterator[Record[KeyRead, ValueRead]]:
        """Yield records one by one until the consumer is closed."""
        while not self._core.is_closing:
            try:
                batch = await self.poll(RECORDS_MAX, SLICE_S)
            except ClosedError:
                return
            for record in self._core.iterate_batch(batch):
                yield record

    async def subscribe(
        self,
        topics: Sequence[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """As `Consumer.subscribe`."""
        subscription = required(topics, pattern)
        await self._call(lambda: self._core.subscribe(subscription))

    async def unsubscribe(self) -> None:
        """As `Consumer.unsubscribe`."""
        await self._call(self._core.unsubscribe)

    async def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """As `Consumer.commit`."""
        await self._call(lambda: self._core.commit(records))

    async def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: SeekOffset | None = None,
        time: dt.datetime | int | None = None,
    ) -> None:
        """As `Consumer.seek`."""
        time_ms = milliseconds_of(time)
        await self._call(lambda: self._core.seek(topic, partition, offset, time_ms))

    async def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record of a partition that the consumer hands out."""
        return await self._call(lambda: self._core.position(topic, partition))

    async def pause(self, topic: str, partition: int | None = None) -> None:
        """Hand out no records of the topic or partition until `resume`."""
        await self._call(lambda: self._core.pause(topic, partition))

    async def resume(self, topic: str, partition: int | None = None) -> None:
        """Hand out records of the topic or partition again."""
        await self._call(lambda: self._core.resume(topic, partition))

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are assigned to this consumer."""
        return frozenset(self._core.assignment.partitions)

    @property
    def ended(self) -> frozenset[Partition]:
        """The assigned partitions that were read to their end at least once.

        Their records up to there were handed out. librdkafka reports ends only with
        `config={"enable.partition.eof": True}`.
        """
        return self._core.ended

    async def committed(self) -> dict[Partition, int]:
        """Return the group's committed offsets of this consumer's partitions."""
        return await self._call(self._core.committed)

    def offsets(self) -> dict[Partition, int]:
        """Return the next offsets after the handed-out records that are not committed."""
        return self._core.offsets()

    def group_metadata(self) -> Any:
        """Return what a transaction needs to commit offsets for this member; see `send_offsets`."""
        return self._core.group_metadata()

    async def close(self) -> None:
        """Commit processed records and leave the group. Further calls do nothing."""
        await self._close(is_failing=False)

    async def __aenter__(self) -> Self:
        try:
            await self._call(lambda: None)
        except BaseException:
            await self._close(is_failing=True)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(is_failing=error is not None)

    async def _close(self, *, is_failing: bool) -> None:
        # A call in progress on the thread ends soon once closing has begun.
        if self._core.begin_closing():
            finish = functools.partial(self._core.finish_closing, is_failing=is_failing)
            self._ended = self._thread.submit(finish)
            self._thread.shutdown(wait=False)
        assert self._ended is not None
        await shielded(asyncio.wrap_future(self._ended))

    async def _call(self, call: Callable[[], Result]) -> Result:
        self._check_loop()
        self._core.check_open()

        def run() -> Result:
            # The thread has run `start` before: this raises its error, and never waits.
            self._started.result()
            return call()

        return await shielded(self._loop.run_in_executor(self._thread, run))

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop("AsyncConsumer")

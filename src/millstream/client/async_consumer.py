"""The consumer for asyncio: the same core, on one thread of its own, awaited on one event loop."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from millstream.client.async_producer import other_loop, running_loop
from millstream.client.consumer import RECORDS_MAX, count_of, milliseconds_of, topics_of
from millstream.client.consumer_core import ConsumerCore, Position
from millstream.client.consumer_handle import SLICE_S
from millstream.client.record import Partition, Record, Records
from millstream.client.setting import ConsumerOptions, ConsumerSettings

Answer = TypeVar("Answer")
#: Records that come with one call of the thread; polls that find some need no call.
_AHEAD: Final = 4000


class AsyncConsumer:
    """`Consumer` for asyncio; see there. Made and used on one event loop.

    >>> async def main():
    ...     async with AsyncProducer() as producer:
    ...         await producer.send_and_wait("crates", "alice", "7 pears")
    ...     async with AsyncConsumer(group="pear-counters", topics=["crates"]) as consumer:
    ...         async for record in consumer:
    ...             print(record.value)
    ...             break
    >>> asyncio.run(main())
    b'7 pears'

    Callbacks for rebalances are plain functions and run on the consumer's thread. A `poll` that is
    cancelled loses nothing: its records come with the next.
    """

    def __init__(
        self,
        servers: str | None = None,
        *,
        topics: Sequence[str],
        group: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._loop = running_loop("AsyncConsumer")
        self._core = ConsumerCore(
            servers, group, topics_of(topics), ConsumerSettings.of(options), self
        )
        self._thread = ThreadPoolExecutor(1, "millstream-consumer")

    async def poll(self, max_records: int = RECORDS_MAX, timeout_s: float = 1.0) -> Records:
        """Records as soon as there are some, at most `max_records`; none after `timeout_s`."""
        count = count_of(max_records)
        if asyncio.get_running_loop() is self._loop:
            # Many polls in a row must not keep others from running.
            await asyncio.sleep(0)
            ready = self._core.take_ready(count)
            if ready is not None:
                return ready
        ticket = _Ticket(self._core.hand_back)
        ahead = max(0, _AHEAD - count)
        take = functools.partial(self._core.take, count, timeout_s, ahead, ticket.is_over)
        try:
            return await self._call(lambda: ticket.fill(take))
        except asyncio.CancelledError:
            ticket.cancel()
            raise

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records one by one, until the consumer is closed."""
        while not self._core.is_closing:
            batch = await self.poll(RECORDS_MAX, SLICE_S)
            for record in self._core.step(batch):
                yield record

    async def commit(self, records: Record | Iterable[Record] | None = None) -> None:
        """Commit what was handed out, up to and with the present record; or up to `records`."""
        await self._call(lambda: self._core.commit(records))

    async def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: Position | None = None,
        time: dt.datetime | int | None = None,
    ) -> None:
        """As `Consumer.seek`."""
        time_ms = milliseconds_of(time)
        await self._call(lambda: self._core.seek(topic, partition, offset, time_ms))

    async def pause(self, topic: str, partition: int | None = None) -> None:
        """Hand out nothing more of it until `resume`."""
        await self._call(lambda: self._core.pause(topic, partition))

    async def resume(self, topic: str, partition: int | None = None) -> None:
        await self._call(lambda: self._core.resume(topic, partition))

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this consumer has now."""
        return frozenset(self._core.assignment.partitions)

    async def committed(self) -> dict[Partition, int]:
        """The group's committed offsets, of the partitions that this consumer has."""
        return await self._call(self._core.committed)

    def offsets(self) -> dict[Partition, int]:
        """The next offsets after what was handed out and not committed yet."""
        return self._core.offsets()

    def group_metadata(self) -> Any:
        """What a transaction needs to commit offsets for this member; see `send_offsets`."""
        return self._core.group_metadata()

    async def close(self) -> None:
        """Commit what was processed and leave the group. Twice is once."""
        await self._close(is_failing=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(is_failing=error is not None)

    async def _close(self, *, is_failing: bool) -> None:
        if self._core.is_closed:
            return
        # A poll that runs on the thread ends soon once the core is told; hence not in turn.
        await asyncio.to_thread(self._core.close, is_failing=is_failing)
        self._thread.shutdown(wait=False)

    async def _call(self, call: Callable[[], Answer]) -> Answer:
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop("AsyncConsumer")
        if self._core.is_closed:
            self._core.check_open()
        return await asyncio.shield(self._loop.run_in_executor(self._thread, call))


class _Ticket:
    """Of one poll: its records go to whoever asked, or back if nobody waits any more."""

    def __init__(self, hand_back: Callable[[], None]) -> None:
        self._hand_back = hand_back
        self._lock = threading.Lock()
        self._is_filled = self._is_cancelled = False

    def fill(self, take: Callable[[], Records]) -> Records:
        records = take()
        with self._lock:
            self._is_filled = True
            if self._is_cancelled:
                self._hand_back()
        return records

    def is_over(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._is_filled:
                self._hand_back()

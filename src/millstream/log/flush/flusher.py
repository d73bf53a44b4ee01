"""Group commit: one thread that flushes all logs of the broker.

All requests that arrive while a round of syncs runs share the next round, so the rate of
acknowledged appends does not depend on the duration of one sync. A log whose flush raises fails its
own request; the other logs of the round continue.

All flushes of a process go through one `Flusher`: tickets of one log must not run concurrently.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from typing import Final, TypeAlias

from millstream.log.flush.ticket import FlushTicket
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode

_logger = logging.getLogger(__name__)

_Waiting: TypeAlias = dict[PartitionLog, asyncio.Future[int]]
_Round: TypeAlias = list[tuple[PartitionLog, FlushTicket, asyncio.Future[int]]]

#: Most logs of one round: each pins a few descriptors while it is synced.
_ROUND_LOGS_MAX: Final = 128


class Flusher:
    """Flushes logs in rounds. Used from the event loop.

    `is_threaded=False` syncs on the loop itself, for the simulator.
    """

    __slots__ = ("_is_running", "_is_threaded", "_loop", "_queue", "_thread", "_waiting")

    def __init__(self, *, is_threaded: bool = True) -> None:
        self._is_threaded = is_threaded
        self._waiting: _Waiting = {}
        #: Whether a round is in progress. Rounds never overlap.
        self._is_running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def request(self, log: PartitionLog) -> asyncio.Future[int]:
        """Flush `log`. The future returns the recovery point, or raises BrokerError.

        All callers of the same round share the future: shield it before cancelling it.
        """
        future = self._waiting.get(log)
        if future is None or future.cancelled():
            if self._loop is None:
                self._start(asyncio.get_running_loop())
            assert self._loop is not None
            future = self._waiting[log] = self._loop.create_future()
            if not self._is_running:
                self._is_running = True
                # Not at once: other batches of the same socket read join the round.
                self._loop.call_soon(self._begin_round)
        return future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._is_threaded:
            self._thread = threading.Thread(target=self._run, name="log-flusher", daemon=True)
            self._thread.start()

    def _begin_round(self) -> None:
        waiting, chosen = self._waiting, list(self._waiting)[:_ROUND_LOGS_MAX]
        requests = [(log, waiting.pop(log)) for log in chosen]
        begun: _Round = []
        for log, future in requests:
            try:
                ticket = log.begin_flush()
            except Exception as error:  # noqa: BLE001  # the future raises it
                _fail(log, future, error)
                continue
            if ticket is not None:
                begun.append((log, ticket, future))
            elif not future.done():
                future.set_result(log.recovery_point)
        if not begun:
            self._next_round()
        elif self._is_threaded:
            self._queue.put(begun)
        else:
            for _, ticket, _ in begun:
                ticket.run()
            self._finish_round(begun)

    def _next_round(self) -> None:
        self._is_running = bool(self._waiting)
        if self._waiting:
            assert self._loop is not None
            self._loop.call_soon(self._begin_round)

    def _run(self) -> None:
        """Run the tickets of each round, in the thread."""
        while (begun := self._queue.get()) is not None:
            for _, ticket, _ in begun:
                ticket.run()
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._finish_round, begun)
            except RuntimeError:
                return  # the loop was closed: no caller is left

    def _finish_round(self, begun: _Round) -> None:
        for log, ticket, future in begun:
            try:
                log.finish_flush(ticket)
            except Exception as error:  # noqa: BLE001  # the future raises it
                _fail(log, future, error)
            else:
                if not future.done():
                    future.set_result(log.recovery_point)
        self._next_round()

    async def close(self) -> None:
        """Finish all requested flushes, then end the thread."""
        while self._is_running or self._waiting:
            pending = [asyncio.shield(future) for future in self._waiting.values()]
            await asyncio.gather(*pending, return_exceptions=True)
            await asyncio.sleep(0.001 if self._is_running else 0)
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._loop = None


def _fail(log: PartitionLog, future: asyncio.Future[int], error: Exception) -> None:
    if not isinstance(error, BrokerError):
        _logger.error("the flush of %s failed", log.topic_partition, exc_info=error)
        error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the flush failed: {error!r}")
    if not future.done():
        future.set_exception(error)
        # Marks the error as retrieved: a caller need not wait, and it was logged.
        future.exception()

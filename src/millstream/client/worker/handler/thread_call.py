"""Calls plain functions on threads, for workers whose other handlers are coroutine functions.

The worker limits the number of handlers that run at once, and so the number of busy threads. A call
past its deadline keeps its thread until the function returns. The threads are daemons: a function
that never returns does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

#: An idle thread ends after this time.
_IDLE_S: Final = 10.0

Call: TypeAlias = Callable[[], None]


class CallThreads:
    """Daemon threads that make calls. A call takes an idle thread, or else a new one."""

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        #: One permit for each thread that waits for a call.
        self._idle = threading.Semaphore(0)

    def asynchronous(self, function: Callable[[Any], T]) -> Callable[[Any], Coroutine[Any, Any, T]]:
        """Return a coroutine function that calls `function` on a thread.

        The function sees the context variables of its caller. A cancelled call stops waiting."""

        async def call(argument: Any) -> T:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
            context = contextvars.copy_context()

            def run() -> None:
                result: tuple[T | None, BaseException | None]
                try:
                    result = context.run(function, argument), None
                except BaseException as error:  # noqa: BLE001 -- sys.exit() too ends only the call
                    result = None, error
                _report(loop, ended, result)

            self._start(run)
            value, error = await ended
            if error is not None:
                raise error
            return value  # type: ignore[return-value]

        return call

    def _start(self, call: Call) -> None:
        if self._idle.acquire(blocking=False):
            self._calls.put(call)
        else:
            threading.Thread(
                target=self._run, args=(call,), name="millstream-worker-call", daemon=True
            ).start()

    def _run(self, call: Call) -> None:
        while True:
            call()
            # An idle thread must not keep the last job.
            del call
            self._idle.release()
            try:
                call = self._calls.get(timeout=self._idle_s)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                # A caller has taken the permit of this thread, and puts its call.
                call = self._calls.get()


def _report(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any], result: Any) -> None:
    """Set the result of a future of another thread's event loop."""

    def report() -> None:
        if not ended.done():
            ended.set_result(result)

    try:
        loop.call_soon_threadsafe(report)
    except RuntimeError:
        # The event loop is closed: the worker has stopped, and nothing waits for the call.
        return

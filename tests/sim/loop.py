"""An event loop on virtual time, shared by the processes of a simulated cluster.

Time stands still while a callback is ready, and jumps to the next timer when none is. Callbacks run
in the order in which they were scheduled, so a run depends only on its seed. The work of threads
runs inline, and its caller resumes after the time that the work takes.

A `Process` stands for one operating-system process. Tasks and callbacks inherit the process of the
context that starts them. The loop can pause a process, as SIGSTOP or a blocking disk call does, or
kill it. No code of a dead process runs again, not even its `finally` blocks.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

START_S: Final = 1000.0
#: Number of callbacks at one instant after which a run is considered stuck.
_TURNS_MAX: Final = 200_000

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class StuckError(Exception):
    """No callback is left to run, or time does not advance."""


class Trace:
    """A digest of all events, to compare runs. With `keeps_lines` also their text."""

    __slots__ = ("digest", "lines")

    def __init__(self, *, keeps_lines: bool = False) -> None:
        self.digest = 0
        self.lines: list[str] | None = [] if keeps_lines else None

    def add(self, now: float, what: str) -> None:
        line = f"{now:.6f} {what}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.lines is not None:
            self.lines.append(line)


class Process:
    """One process: running, held for one or more reasons, or dead."""

    __slots__ = ("_holds", "_kept", "_loop", "_thread_s", "context", "is_dead", "name")

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.is_dead = False
        self._holds = 0
        #: Callbacks that became due while it was held, in order.
        self._kept: deque[_Handle] = deque()
        #: Time that the current work of a thread has taken; None outside such work.
        self._thread_s: float | None = None
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)

    @property
    def is_halted(self) -> bool:
        return self.is_dead or self._holds > 0

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine in this process."""
        return self._loop.create_task(work, context=self.context)

    def hold(self) -> None:
        self._holds += 1
        self._loop.halted += 1

    def release(self) -> None:
        self._holds -= 1
        self._loop.halted -= 1
        if self._holds == 0 and not self.is_dead:
            self._loop.requeue(self._kept)

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self._loop.halted += 1

    def keep(self, handle: _Handle) -> None:
        # Callbacks of dead processes too: dropping them would run finalizers during the run.
        self._kept.append(handle)

    def block(self, seconds: float) -> None:
        """Block for `seconds`: the process, or only the thread that makes the call."""
        if self._thread_s is not None:
            self._thread_s += seconds
        elif seconds > 0:
            self.hold()
            self._loop.call_later(seconds, self.release, context=self._loop.outside)

    def run_as_thread(self, work: Callable[[], _T]) -> tuple[_T, float]:
        """Run the work of a thread. Return its result and the time that it blocked."""
        before, self._thread_s = self._thread_s, 0.0
        try:
            return work(), self._thread_s
        finally:
            self._thread_s = before


class _Handle(asyncio.Handle):
    """A scheduled callback. It is also the handle of its timer."""

    __slots__ = ("_when",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._when = when

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


def _nothing() -> None:
    """Replaces a cancelled callback, so that the callback can be freed."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time. It collects unhandled errors in `errors`."""

    def __init__(self, trace: Trace | None = None) -> None:
        super().__init__()
        self._now = START_S
        self._turns = 0
        self._ready: deque[_Handle] = deque()
        #: A heap. Timers of the same instant stay in the order of scheduling.
        self._timers: list[tuple[float, int, _Handle]] = []
        self._order = count()
        self.trace = trace or Trace()
        #: Number of holds and deaths of all processes. Usually zero.
        self.halted = 0
        #: The context of callbacks that belong to no process: network and faults.
        self.outside = contextvars.Context()
        self.errors: list[str] = []
        self.set_exception_handler(self._collect)

    def time(self) -> float:
        return self._now

    def note(self, what: str) -> None:
        self.trace.add(self._now, what)

    def process(self, name: str) -> Process:
        return Process(self, name)

    def requeue(self, handles: deque[_Handle]) -> None:
        self._ready.extend(handles)
        handles.clear()

    def _collect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")
        if error is not None and self.trace.lines is not None:
            self.trace.lines.extend(traceback.format_exception(error))

    # Overridden for speed: the base class makes checks that a run does not need

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    # Abstract in the base class

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise StuckError("nothing is left that could run")
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self._turns = 0
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        self._turns += len(ready)
        if self._turns > _TURNS_MAX:
            self._turns = 0
            raise StuckError(f"time stands still at {self._now}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            if self.halted:
                process = context.get(CURRENT)
                if process is not None and process.is_halted:
                    process.keep(handle)
                    continue
            try:
                context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 - reported as unhandled
                what = getattr(handle._callback, "__qualname__", "a callback")
                self.call_exception_handler({"message": what, "exception": error})

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        """Do nothing: no selector waits in another thread."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        process = CURRENT.get()
        future: asyncio.Future[_T] = self.create_future()
        took_s = 0.0
        try:
            if process is None:
                result = func(*args)
            else:
                result, took_s = process.run_as_thread(lambda: func(*args))
        except Exception as error:  # noqa: BLE001 - set on the future
            self.call_soon(_resolve, future.set_exception, future, error)
        else:
            self.call_later(took_s, _resolve, future.set_result, future, result)
        return future


def _resolve(how: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        how(outcome)

"""Who runs the handlers: threads, or tasks on an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, Protocol

from millstream.client.error import UsageError
from millstream.client.worker.job import Job
from millstream.client.worker.job_queue import Desk
from millstream.client.worker.policy import Verdict

Handler = Callable[[Job], Any]


class Runner(Protocol):
    def start(self) -> None: ...

    def abandon(self, jobs: list[Job]) -> None:
        """Their time is over: others run in their place."""

    def stop(self) -> None:
        """The desk is closed; what still runs is left alone."""


def runner_for(handler: Handler, desk: Desk, concurrency: int) -> Runner:
    if is_coroutine(handler):
        return TaskRunner(handler, desk, concurrency)
    return ThreadRunner(handler, desk, concurrency)


def check_handler(handler: object) -> None:
    if not callable(handler):
        raise UsageError(f"The handler {handler!r} is not callable: give a function of one job.")


def is_coroutine(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 -- a class may have an async one
    )


def verdict_of(job: Job, error: BaseException | None) -> Verdict:
    """What the handler said, or else how it ended."""
    if job.verdict is not None:
        return job.verdict
    return Verdict("ack") if error is None else Verdict("nack", None, error)


class ThreadRunner:
    """Threads are daemons: a handler that never comes back does not keep the process."""

    def __init__(self, handler: Handler, desk: Desk, concurrency: int) -> None:
        self._handler = handler
        self._desk = desk
        self._concurrency = concurrency
        self._count = 0

    def start(self) -> None:
        for _ in range(self._concurrency):
            self._add()

    def abandon(self, jobs: list[Job]) -> None:
        for _ in jobs:
            self._add()

    def stop(self) -> None:
        """Threads end at the desk."""

    def _add(self) -> None:
        self._count += 1
        name = f"millstream-worker-{self._count}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self._desk.take()) is not None:
            error: BaseException | None = None
            try:
                self._handler(job)
            except BaseException as failure:  # noqa: BLE001 -- sys.exit() too ends only the attempt
                error = failure
            if not self._desk.settle(job, verdict_of(job, error)):
                # Its time was over, and another thread has its place.
                return


class TaskRunner:
    def __init__(self, handler: Handler, desk: Desk, concurrency: int) -> None:
        self._handler = handler
        self._desk = desk
        self._concurrency = concurrency
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._is_filling = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="millstream-worker-tasks", daemon=True
        )

    def start(self) -> None:
        self._desk.on_ready = self._poke
        self._thread.start()
        self._poke()

    def abandon(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(self._cancel, jobs)

    def stop(self) -> None:
        self._desk.on_ready = None
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _poke(self) -> None:
        if not self._is_filling:
            self._is_filling = True
            self._loop.call_soon_threadsafe(self._fill)

    def _fill(self) -> None:
        self._is_filling = False
        while len(self._tasks) < self._concurrency and (job := self._desk.take_now()) is not None:
            self._tasks[job] = self._loop.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            await self._handler(job)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 -- told in its verdict
            error = failure
        self._tasks.pop(job, None)
        self._desk.settle(job, verdict_of(job, error))
        self._fill()

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            task = self._tasks.pop(job, None)
            if task is not None:
                task.cancel()
        self._fill()

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

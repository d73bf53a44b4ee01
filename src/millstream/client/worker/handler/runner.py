"""Runs the handlers: on threads, or as tasks on an event loop of their own."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal, Protocol

from millstream.client.worker.failure import InvalidPayload
from millstream.client.worker.handler.routes import Handler, is_coroutine
from millstream.client.worker.message.job import Job
from millstream.client.worker.policy.policy import AttemptResult
from millstream.client.worker.queue.job_queue import JobQueue


class Runner(Protocol):
    """Runs handlers for the jobs of a queue."""

    def start(self) -> None:
        """Start to take jobs."""

    def abandon(self, jobs: list[Job]) -> None:
        """Stop waiting for jobs past their deadline, and run other jobs instead."""

    def stop(self) -> None:
        """Stop. The queue is closed, and handlers that still run are not waited for."""


def runner_for(handler: Handler, queue: JobQueue, concurrency: int) -> Runner:
    """Return the runner for a handler: tasks for a coroutine function, else threads."""
    if is_coroutine(handler):
        return TaskRunner(handler, queue, concurrency)
    return ThreadRunner(handler, queue, concurrency)


def result_of(job: Job, error: BaseException | None) -> AttemptResult:
    """Return the result that the handler set, or else the one that its end implies."""
    if job.result is not None:
        return job.result
    if error is None:
        return AttemptResult("ack")
    # A further attempt would find the same bytes.
    kind: Literal["reject", "nack"] = "reject" if isinstance(error, InvalidPayload) else "nack"
    return AttemptResult(kind, None, error)


class ThreadRunner:
    """Runs handlers on daemon threads: a handler that never returns does not keep the process
    alive.
    """

    def __init__(self, handler: Handler, queue: JobQueue, concurrency: int) -> None:
        self._handler = handler
        self._queue = queue
        self._concurrency = concurrency
        self._count = 0

    def start(self) -> None:
        for _ in range(self._concurrency):
            self._add()

    def abandon(self, jobs: list[Job]) -> None:
        for _ in jobs:
            self._add()

    def stop(self) -> None:
        """Do nothing: the threads end when the queue returns no job."""

    def _add(self) -> None:
        self._count += 1
        name = f"millstream-worker-{self._count}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self._queue.next_job()) is not None:
            error: BaseException | None = None
            try:
                self._handler(job)
            except BaseException as failure:  # noqa: BLE001 -- sys.exit() too ends only the attempt
                error = failure
            if not self._queue.complete(job, result_of(job, error)):
                # The attempt had ended at its deadline, and another thread replaces this one.
                return


class TaskRunner:
    """Runs handlers as tasks on an event loop in a thread."""

    def __init__(self, handler: Handler, queue: JobQueue, concurrency: int) -> None:
        self._handler = handler
        self._queue = queue
        self._concurrency = concurrency
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._is_filling = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="millstream-worker-tasks", daemon=True
        )

    def start(self) -> None:
        self._queue.on_ready = self._schedule_fill
        self._thread.start()
        self._schedule_fill()

    def abandon(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(self._cancel, jobs)

    def stop(self) -> None:
        self._queue.on_ready = None
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _schedule_fill(self) -> None:
        if not self._is_filling:
            self._is_filling = True
            self._loop.call_soon_threadsafe(self._fill)

    def _fill(self) -> None:
        self._is_filling = False
        while (
            len(self._tasks) < self._concurrency
            and (job := self._queue.next_job_nowait()) is not None
        ):
            self._tasks[job] = self._loop.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            await self._handler(job)
            if job.unserialized:
                await asyncio.to_thread(job.serialize_outputs)
        except GeneratorExit:
            raise
        except BaseException as failure:  # noqa: BLE001 -- sys.exit() too ends only the attempt
            error = failure
        self._tasks.pop(job, None)
        # `_fill` follows: the queue need not wake the loop for it, which costs a system call.
        self._is_filling = True
        self._queue.complete(job, result_of(job, error))
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

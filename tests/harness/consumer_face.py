"""Gives the blocking and the asyncio consumer the same blocking interface, for a test that controls
time and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from millstream.client import AsyncConsumer, Consumer, Record
from millstream.client.consumer import async_consumer


class SyncFace:
    """The blocking `Consumer`."""

    def __init__(self, make: Callable[[], Consumer | AsyncConsumer]) -> None:
        self.consumer: Any = make()
        self.core = self.consumer._core
        self._walk: Iterator[Record] | None = None

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.consumer, method)(*arguments, **keywords)

    def next(self) -> Record:
        """Return the next record of the current iteration."""
        self._walk = self._walk or iter(self.consumer)
        try:
            return next(self._walk)
        except BaseException:
            self._walk = None
            raise

    def leave_loop(self) -> None:
        self._walk = None

    def close(self, error: Exception | None) -> None:
        self.consumer.__exit__(None if error is None else type(error), error, None)

    def dispose(self) -> None:
        pass


class AsyncFace:
    """An `AsyncConsumer` on a loop that runs only during calls.

    A `HeldExecutor` replaces its thread.
    """

    def __init__(self, make: Callable[[], Consumer | AsyncConsumer]) -> None:
        self._loop = asyncio.new_event_loop()
        self.thread = HeldExecutor()
        self.consumer: Any = self._run(self._make(make))
        self.core = self.consumer._core
        self._walk: Any = None

    async def _make(self, make: Callable[[], Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(async_consumer, "ThreadPoolExecutor", lambda *_: self.thread)
            return make()

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return self._run(getattr(self.consumer, method)(*arguments, **keywords))

    def next(self) -> Record:
        self._walk = self._walk or self.consumer.__aiter__()
        try:
            record: Record = self._run(anext(self._walk))
        except BaseException:
            self._walk = None
            raise
        return record

    def leave_loop(self) -> None:
        if self._walk is not None:
            self._run(self._walk.aclose())
            self._walk = None

    def cancelled_poll(self, count: int, *, is_done_before: bool) -> Any:
        """Cancel a poll before or after its thread has finished. Return its records, if any."""

        async def main() -> Any:
            self.thread.is_held = True
            task = asyncio.ensure_future(self.consumer.poll(count, 0))
            try:
                while not task.done() and not self.thread.jobs:
                    await _turn()
            finally:
                self.thread.is_held = False
            if is_done_before:
                self.thread.run()
            task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                return []
            finally:
                self.thread.run()

        return self._run(main())

    def close(self, error: Exception | None) -> None:
        self._run(self.consumer.__aexit__(None if error is None else type(error), error, None))

    def dispose(self) -> None:
        self.leave_loop()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class HeldExecutor(Executor):
    """Runs each call at once in the caller's thread or, while held, when `run` is called."""

    def __init__(self) -> None:
        self.is_held = False
        self.jobs: list[tuple[Future[Any], Callable[..., Any], Any, Any]] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        made: Future[Any] = Future()
        self.jobs.append((made, call, arguments, keywords))
        if not self.is_held:
            self.run()
        return made

    def run(self) -> None:
        while self.jobs:
            made, call, arguments, keywords = self.jobs.pop(0)
            made.set_running_or_notify_cancel()
            try:
                made.set_result(call(*arguments, **keywords))
            except BaseException as error:  # noqa: BLE001 -- set on the future
                made.set_exception(error)


async def _turn() -> None:
    await asyncio.sleep(0)

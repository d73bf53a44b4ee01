"""Plain functions that coroutines call on threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from millstream.client.worker.handler.thread_call import CallThreads

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def threads_of_calls() -> int:
    return sum(each.name == "millstream-worker-call" for each in threading.enumerate())


def test_a_call_runs_on_a_thread_with_the_context_of_its_caller() -> None:
    def look(argument: int) -> tuple[int, str, str]:
        return argument, variable.get(), threading.current_thread().name

    async def main() -> Any:
        variable.set("set")
        return await CallThreads().asynchronous(look)(7)

    assert asyncio.run(main()) == (7, "set", "millstream-worker-call")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_is_raised_where_the_call_is_awaited(error: BaseException) -> None:
    def fail(_: Any) -> None:
        raise error

    async def main() -> BaseException | None:
        try:
            await CallThreads().asynchronous(fail)(None)
        except BaseException as found:  # noqa: BLE001 -- also SystemExit
            return found
        return None

    assert asyncio.run(main()) is error


def test_calls_reuse_idle_threads_and_run_at_once() -> None:
    threads = CallThreads()
    barrier = threading.Barrier(4)
    seen: set[int] = set()

    def meet(_: Any) -> None:
        barrier.wait(60)
        seen.add(threading.get_ident())

    async def main() -> None:
        call = threads.asynchronous(meet)
        for _ in range(20):
            await asyncio.gather(*(call(None) for _ in range(4)))
            # A thread reports its result before it is idle.
            wait_until(lambda: threads._idle._value == len(seen), "idle threads", 60)

    asyncio.run(main())
    assert len(seen) == 4


def test_idle_threads_end() -> None:
    before = threads_of_calls()
    threads = CallThreads(idle_s=0.01)

    async def main() -> None:
        call = threads.asynchronous(lambda argument: argument)
        for number in range(200):
            assert await call(number) == number

    asyncio.run(main())
    wait_until(lambda: threads_of_calls() <= before, "the end of the threads", 60)


def test_a_cancelled_call_stops_waiting_and_its_thread_ends_later() -> None:
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work(_: Any) -> None:
        begun.set()
        assert gate.wait(60)
        ended.set()

    async def main() -> None:
        task = asyncio.create_task(CallThreads().asynchronous(work)(None))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    # The event loop is closed by now: the result of the call has no receiver.
    gate.set()
    assert ended.wait(60)

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from sim.loop import CURRENT, START_S, StuckError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_time_jumps_when_nothing_can_run(loop: VirtualLoop) -> None:
    begin = time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() == START_S + 86_400
    assert time.monotonic() - begin < 60


def test_timers_run_in_order_of_time_and_callbacks_in_order_of_calls(loop: VirtualLoop) -> None:
    order: list[str] = []

    async def main() -> None:
        loop.call_later(0.2, order.append, "late")
        loop.call_later(0.1, order.append, "early")
        loop.call_soon(order.append, "first")
        loop.call_soon(order.append, "second")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert order == ["first", "second", "early", "late"]


def test_a_loop_with_nothing_to_wait_for_is_stuck(loop: VirtualLoop) -> None:
    future = loop.create_future()
    with pytest.raises(StuckError, match="nothing is left"):
        loop.run_until_complete(future)


def test_a_loop_in_which_time_does_not_pass_is_stuck(loop: VirtualLoop) -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - it spins on purpose
            await asyncio.sleep(0)

    task = loop.create_task(spin())
    with pytest.raises(StuckError, match="stands still"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_thread_work_runs_inline_and_takes_virtual_time(loop: VirtualLoop) -> None:
    process = loop.process("p")

    async def main() -> tuple[str, float]:
        def work() -> str:
            process.block(0.5)
            return "done"

        result = await asyncio.to_thread(work)
        return result, loop.time()

    assert loop.run_until_complete(process.spawn(main())) == ("done", START_S + 0.5)


def test_errors_of_thread_work_reach_the_caller(loop: VirtualLoop) -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="full"):
            await asyncio.to_thread(_raise, OSError("full"))

    loop.run_until_complete(main())


def _raise(error: Exception) -> None:
    raise error


def test_tasks_inherit_the_process_that_starts_them(loop: VirtualLoop) -> None:
    process = loop.process("p")

    async def child() -> object:
        return CURRENT.get()

    async def main() -> object:
        return await asyncio.create_task(child())

    assert loop.run_until_complete(process.spawn(main())) is process


def test_a_held_process_continues_after_its_release(loop: VirtualLoop) -> None:
    process = loop.process("p")
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(loop.time() - START_S)
            await asyncio.sleep(1)

    task = process.spawn(tick())
    loop.call_later(1.5, process.hold)
    loop.call_later(4.25, process.release)
    loop.run_until_complete(asyncio.sleep(6))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    assert ticks == [0, 1, 4.25, 5.25]


def test_a_blocking_call_holds_only_its_own_process(loop: VirtualLoop) -> None:
    slow, quick = loop.process("slow"), loop.process("quick")

    async def main() -> float:
        await asyncio.sleep(1)
        return loop.time() - START_S

    slow.context.run(loop.call_soon, slow.block, 3.0)
    held, free = slow.spawn(main()), quick.spawn(main())
    assert loop.run_until_complete(free) == 1
    assert loop.run_until_complete(held) == 4


def test_a_dead_process_never_runs_again(loop: VirtualLoop) -> None:
    process = loop.process("p")
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            done.append("work")
        finally:
            done.append("clean-up")

    task = process.spawn(work())
    loop.call_later(0.5, process.kill)
    loop.run_until_complete(asyncio.sleep(3))
    assert done == []
    # Python warns about tasks that are destroyed while pending.
    process.is_dead = False
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)

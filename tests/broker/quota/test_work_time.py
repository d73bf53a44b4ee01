"""The time for which a coroutine runs, without the time that it waits."""

from __future__ import annotations

import asyncio

import pytest

from harness.in_process.manual_clock import ManualClock
from millstream.broker.quota.work_time import MeasuredWork


def test_only_the_time_between_waits_counts() -> None:
    clock = ManualClock(0.0)

    async def work(gate: asyncio.Event) -> str:
        clock.now += 2
        await gate.wait()
        clock.now += 3
        return "done"

    async def run() -> float:
        gate = asyncio.Event()
        measured = MeasuredWork(work(gate), clock)
        task = asyncio.ensure_future(wait_for(measured))
        await asyncio.sleep(0)
        assert measured.seconds == 2
        clock.now += 1000
        gate.set()
        assert await task == "done"
        return measured.seconds

    assert asyncio.run(run()) == 5


async def wait_for(measured: MeasuredWork[str]) -> str:
    return await measured


def test_a_failure_reaches_the_caller_and_its_time_counts() -> None:
    clock = ManualClock(0.0)

    async def fail() -> str:
        clock.now += 2
        raise ValueError("no")

    measured = MeasuredWork(fail(), clock)
    with pytest.raises(ValueError, match="no"):
        asyncio.run(wait_for(measured))
    assert measured.seconds == 2


def test_a_cancellation_reaches_the_coroutine() -> None:
    ended = []

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return ""

    async def run() -> None:
        task = asyncio.ensure_future(wait_for(MeasuredWork(work(), ManualClock(0.0))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ended == [True]

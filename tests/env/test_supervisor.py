from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from harness.logged import tracebacks
from millstream.env import supervisor as supervisors
from millstream.env.supervisor import Policy, Supervisor


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "_PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(supervisors, "_PAUSE_S_MAX", 0.004)


def run(body: Callable[[Supervisor], Awaitable[None]]) -> None:
    async def main() -> None:
        supervisor = Supervisor()
        async with asyncio.timeout(30):
            await body(supervisor)
        await supervisor.close()
        assert supervisor.tasks == []

    asyncio.run(main())


class Failing:
    """Work that fails a given number of times, then waits for ever."""

    def __init__(self, failures: int) -> None:
        self._left = failures
        self.is_well = asyncio.Event()

    async def work(self) -> None:
        if self._left:
            self._left -= 1
            raise ValueError("a bug")
        self.is_well.set()
        await asyncio.Event().wait()


def test_a_task_that_raises_restarts(caplog: pytest.LogCaptureFixture) -> None:
    async def body(supervisor: Supervisor) -> None:
        failing = Failing(3)
        entry = supervisor.start("some-task", failing.work, about="broker 7")
        assert supervisor.failures == {"some-task": 0}
        await failing.is_well.wait()
        assert supervisor.failures == {"some-task": 3}
        assert (entry.runs, entry.is_pausing, entry.is_done) == (4, False, False)
        assert supervisor.tasks == [entry]
        await entry.stop()
        assert entry.is_done
        assert supervisor.tasks == []

    run(body)
    assert caplog.text.count("background task some-task (broker 7) failed; it restarts") == 3
    assert "ValueError: a bug" in tracebacks(caplog)


@pytest.mark.parametrize(
    ("healthy_s", "pauses"),
    [
        (60.0, ["0.001", "0.002", "0.004", "0.004", "0.004"]),
        (0.0, ["0.001", "0.001", "0.001", "0.001", "0.001"]),
    ],
    ids=["short runs", "long runs"],
)
def test_pauses_grow_up_to_a_bound_but_not_after_long_runs(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    healthy_s: float,
    pauses: list[str],
) -> None:
    monkeypatch.setattr(supervisors, "_HEALTHY_S", healthy_s)

    async def body(supervisor: Supervisor) -> None:
        failing = Failing(5)
        supervisor.start("some-task", failing.work)
        await failing.is_well.wait()

    run(body)
    assert re.findall(r"restarts in (\S+) s", caplog.text) == pauses


def test_cancelling_an_awaited_future_does_not_end_the_task() -> None:
    async def body(supervisor: Supervisor) -> None:
        futures: list[asyncio.Future[None]] = []

        async def work() -> None:
            futures.append(asyncio.get_running_loop().create_future())
            begun.set()
            await futures[-1]

        begun = asyncio.Event()
        entry = supervisor.start("some-task", work)
        await begun.wait()
        begun.clear()
        futures[0].cancel()
        await begun.wait()
        assert (entry.runs, supervisor.failures["some-task"]) == (2, 1)

    run(body)


def test_a_task_that_can_t_restart_stops_the_broker() -> None:
    async def body(supervisor: Supervisor) -> None:
        fatal: list[Exception] = []
        cleaned: list[Exception] = []
        supervisor.on_fatal = fatal.append

        def clean(error: Exception) -> None:
            cleaned.append(error)
            raise RuntimeError("the cleanup fails too")

        entry = supervisor.start("some-task", Failing(1).work, policy=Policy.STOP, on_failure=clean)
        await entry.ended()
        assert [str(error) for error in fatal] == ["a bug"]
        assert cleaned == fatal
        assert supervisor.failures == {"some-task": 1}

    run(body)


def test_finite_work_is_not_restarted() -> None:
    async def body(supervisor: Supervisor) -> None:
        for failures in (0, 1):
            failing = Failing(failures)

            async def work(failing: Failing = failing) -> None:
                failing.is_well.set()
                await failing.work() if failing._left else None

            entry = supervisor.start("some-task", work, policy=Policy.REPORT)
            await entry.ended()
            assert supervisor.failures == {"some-task": failures}
            assert supervisor.tasks == []

    run(body)


def test_a_failing_task_does_not_affect_the_others() -> None:
    async def body(supervisor: Supervisor) -> None:
        good = [Failing(0) for _ in range(3)]
        entries = [supervisor.start("good", each.work) for each in good]
        bad = Failing(2)
        supervisor.start("bad", bad.work)
        await bad.is_well.wait()
        assert [entry.runs for entry in entries] == [1, 1, 1]
        assert supervisor.failures == {"good": 0, "bad": 2}

    run(body)


def test_all_reports_are_counted_and_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body(supervisor: Supervisor) -> None:
        for number in range(100):
            supervisor.report("some-timer", ValueError("a bug"), f"partition {number}")
        assert supervisor.failures == {"some-timer": 100}

    run(body)
    assert len(caplog.records) == 10
    assert "background work some-timer failed at partition 0" in caplog.text

"""Which ticks are sent, and which of them run, without brokers."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from typing import Any, cast

from millstream.client.record import Partition, Record
from millstream.client.worker.cron.expression import CronExpression
from millstream.client.worker.cron.ticks import CronJob, Tick, TickHandler, TickSchedule
from millstream.client.worker.handler.routes import Routes
from millstream.client.worker.message.header import Origin
from millstream.client.worker.message.job import Job
from millstream.client.worker.message.work_item import WorkItem


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(f"2026-11-{text}").replace(tzinfo=dt.UTC)


def jobs(**expressions: str) -> dict[str, CronJob]:
    return {
        name: CronJob(name, CronExpression(text.replace("_", " ")), print)
        for name, text in expressions.items()
    }


def test_a_new_job_starts_with_the_next_tick() -> None:
    schedule = TickSchedule(jobs(a="*/5 * * * *"), {}, utc("18T02:00:00"))
    assert schedule.due(utc("18T02:00:30")) == []
    assert schedule.wait_s(utc("18T02:00:30")) == 270.0
    [tick] = schedule.due(utc("18T02:05:00"))
    assert tick == Tick("a", utc("18T02:05:00"))
    # A tick that was not sent stays due.
    assert schedule.due(utc("18T02:06:00")) == [tick]
    schedule.sent(tick)
    assert schedule.due(utc("18T02:06:00")) == []


def test_only_the_last_missed_tick_of_each_job_is_sent() -> None:
    sent = {"a": utc("10T00:00:00"), "b": utc("18T00:00:00"), "removed": utc("01T00:00:00")}
    schedule = TickSchedule(jobs(a="@daily", b="@hourly", c="@hourly"), sent, utc("18T02:30:00"))
    assert schedule.due(utc("18T02:30:00")) == [
        Tick("a", utc("18T00:00:00")),
        Tick("b", utc("18T02:00:00")),
    ]


class FakeRecord:
    def __init__(self, key: bytes, timestamp: int, offset: int) -> None:
        self.raw_key, self.raw_value, self.timestamp, self.offset = key, b"", timestamp, offset


def tick_job(name: str, timestamp: int, offset: int) -> Job:
    record = cast("Record", cast("Any", FakeRecord(name.encode(), timestamp, offset)))
    origin = Origin("g.cron", 0, offset, timestamp, None, 0, None)
    return Job(WorkItem(Partition("g.cron", 0), record, origin, None), 0.0)


def handler(function: Callable[..., Any]) -> Callable[[Job], Any]:
    job = CronJob("a", CronExpression("@daily"), function)
    return TickHandler({"a": job}).function(is_async=False)


def test_a_tick_that_was_sent_twice_runs_once() -> None:
    ran: list[int] = []
    handle = handler(lambda job: ran.append(job.offset))
    for timestamp, offset in [(1000, 1), (1000, 2), (2000, 3), (1000, 4), (2000, 3), (3000, 5)]:
        job = tick_job("a", timestamp, offset)
        handle(job)
        assert job.result is None
    # Offset 3 twice: the second one is a retry.
    assert ran == [1, 3, 3, 5]


def test_a_function_without_arguments() -> None:
    ran: list[str] = []
    handler(lambda: ran.append("x"))(tick_job("a", 1000, 1))
    assert ran == ["x"]


def test_plain_jobs_beside_coroutine_functions_run_on_threads() -> None:
    ran: list[tuple[str, bool]] = []

    def plain() -> None:
        ran.append(("plain", threading.current_thread() is threading.main_thread()))

    async def task(job: Job) -> None:
        ran.append(("task", threading.current_thread() is threading.main_thread()))

    routes = Routes()
    for function in (plain, task):
        routes.add_cron(CronJob(function.__name__, CronExpression("@daily"), function))
    compiled = routes.compiled("g.cron")
    for name in ("plain", "task"):
        asyncio.run(compiled(tick_job(name, 1000, 1)))
    assert ran == [("plain", False), ("task", True)]


def test_an_unknown_job_is_a_dead_letter() -> None:
    job = tick_job("other", 1000, 1)
    handler(print)(job)
    assert job.result is not None
    assert job.result.kind == "reject"
    assert "no periodic job 'other'" in str(job.result.error)

"""Ticks of periodic jobs: which are due, and the handler that runs them.

A tick is a message in the topic `<group>.cron`, which has one partition: its key is the name of the
job, its timestamp and its value are the time of the tick.

The member that has the partition sends a tick when it is due, and runs it. So each tick is sent by
one member, except while two members believe that they have the partition. Both may then send it;
the reader drops the second one. What follows is the guarantee of all messages: a tick runs at least
once, and again if its process dies before the tick is committed.
"""

from __future__ import annotations

import datetime as dt
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from millstream.client.worker.cron.expression import CronExpression
from millstream.client.worker.message.job import Job

_logger = logging.getLogger(__name__)

OfJob: TypeAlias = Callable[[Job[Any]], Any]


@dataclass(frozen=True, slots=True)
class CronJob:
    """A function that runs at the times of an expression."""

    name: str
    expression: CronExpression
    function: Callable[..., Any]


class Tick(NamedTuple):
    """One time of a periodic job."""

    name: str
    at: dt.datetime


def cron_topic(group: str) -> str:
    """Return the name of the group's topic of ticks."""
    return f"{group}.cron"


class TickSchedule:
    """Decides which ticks to send. Pure.

    `sent` are the last ticks in the topic. Of the ticks that were missed while no worker ran, only
    the last one of each job is sent. A job that is new starts with the next tick after `now`.
    """

    def __init__(
        self, jobs: Mapping[str, CronJob], sent: Mapping[str, dt.datetime], now: dt.datetime
    ) -> None:
        self._jobs = jobs
        self._last = {name: sent.get(name, now) for name in jobs}

    def due(self, now: dt.datetime) -> list[Tick]:
        """Return the ticks to send now, the earliest first."""
        found = [
            Tick(name, at)
            for name, job in self._jobs.items()
            if (at := job.expression.last_between(self._last[name], now)) is not None
        ]
        return sorted(found, key=lambda tick: tick.at)

    def sent(self, tick: Tick) -> None:
        """Note that a tick is in the topic."""
        self._last[tick.name] = tick.at

    def wait_s(self, now: dt.datetime) -> float:
        """Return the seconds until the next tick."""
        ticks = (job.expression.next_after(now) for job in self._jobs.values())
        return (min(ticks) - now).total_seconds()


#: Takes the function of a periodic job and its handler of ticks. Returns the handler to call.
Adapt: TypeAlias = Callable[[Callable[..., Any], OfJob], OfJob]


def _unchanged(_: Callable[..., Any], handler: OfJob) -> OfJob:
    return handler


class TickHandler:
    """Runs the job of a tick, and drops ticks that were sent twice."""

    def __init__(self, jobs: Mapping[str, CronJob], adapt: Adapt = _unchanged) -> None:
        self._functions = {
            name: adapt(job.function, _of_job(job.function)) for name, job in jobs.items()
        }
        #: The time and the offset of the last tick of each job.
        self._seen: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def function(self, *, is_async: bool) -> OfJob:
        """Return the handler."""
        if is_async:

            async def handle_async(job: Job[Any]) -> None:
                function = self._chosen(job)
                if function is not None:
                    await function(job)

            return handle_async

        def handle(job: Job[Any]) -> None:
            function = self._chosen(job)
            if function is not None:
                function(job)

        return handle

    def _chosen(self, job: Job[Any]) -> OfJob | None:
        """Return the function to call; None if the message is not a tick that has to run."""
        name = (job.record.raw_key or b"").decode(errors="replace")
        function = self._functions.get(name)
        if function is None:
            job.reject(
                f"This worker has no periodic job {name!r}: it was removed or renamed, or this "
                "worker runs an older version of the program."
            )
        elif self._is_repeated(name, job):
            _logger.info("The tick %r was sent twice: it runs once.", job.record)
            function = None
        return function

    def _is_repeated(self, name: str, job: Job[Any]) -> bool:
        at = job.record.timestamp or 0
        with self._lock:
            seen = self._seen.get(name)
            if seen is not None and (at < seen[0] or (at == seen[0] and job.offset != seen[1])):
                return True
            self._seen[name] = (at, job.offset)
            return False


def _of_job(function: Callable[..., Any]) -> OfJob:
    """Return a function of a job, for a function that may take no argument."""
    try:
        takes_job = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # A builtin.
        takes_job = True
    return function if takes_job else lambda _job: function()

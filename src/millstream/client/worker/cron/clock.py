"""The clock of periodic jobs: sends a tick when it is due, while this member has the partition.

It runs on its own thread, so that a slow broker delays ticks and not other messages. The ticks in
the topic are its only state. A member that gets the partition reads the last tick of each job from
the topic, and continues from there. After an error it does the same: then it also knows whether a
tick that got no response is in the topic.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from millstream.client.error import MillstreamError
from millstream.client.worker.cron.ticks import CronJob, Tick, TickSchedule

_logger = logging.getLogger(__name__)

#: How often the clock looks whether it has the partition, and whether the system's clock changed.
_LOOK_S: Final = 0.5
_RETRY_S: Final = 2.0


class TickLog(Protocol):
    """The topic of ticks."""

    def last_ticks(self) -> dict[str, dt.datetime]:
        """Return the last tick of each job in the topic."""

    def send(self, tick: Tick) -> None:
        """Append a tick, and wait until it is delivered."""

    def close(self) -> None:
        """Close the clients."""


class CronClock:
    """Sends ticks. `is_owner` tells whether this member has the partition."""

    def __init__(
        self, jobs: Mapping[str, CronJob], log: TickLog, is_owner: Callable[[], bool]
    ) -> None:
        self._jobs = jobs
        self._log = log
        self._is_owner = is_owner
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="millstream-worker-cron", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send no further ticks. The thread ends and closes its clients; no caller waits for it."""
        self._stopping.set()

    def _run(self) -> None:
        schedule: TickSchedule | None = None
        wait_s = 0.0
        try:
            while not self._stopping.wait(wait_s):
                try:
                    schedule = self._step(schedule)
                    wait_s = _LOOK_S if schedule is None else min(_LOOK_S, schedule.wait_s(_now()))
                except MillstreamError as error:
                    _logger.warning("Ticks of periodic jobs are late: %s", error)
                    schedule, wait_s = None, _RETRY_S
        finally:
            self._log.close()

    def _step(self, schedule: TickSchedule | None) -> TickSchedule | None:
        """Send the ticks that are due. None if this member does not have the partition."""
        if not self._is_owner():
            return None
        if schedule is None:
            schedule = TickSchedule(self._jobs, self._log.last_ticks(), _now())
        for tick in schedule.due(_now()):
            self._log.send(tick)
            schedule.sent(tick)
        return schedule


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)

"""What a worker does with a message after an attempt, and with a message that is due much later.

`JobQueue` calls this with its lock held. Nothing here waits.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from millstream.client.schedule import parked_level
from millstream.client.worker.failure import MessageExpired
from millstream.client.worker.message.header import (
    OutputRecord,
    dead_letter_record,
    parked_record,
    retry_record,
)
from millstream.client.worker.message.job import Job
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.policy.policy import (
    AttemptResult,
    NextStep,
    WorkerSettings,
    next_step,
)
from millstream.client.worker.queue.crash_tracker import CrashTracker
from millstream.client.worker.queue.in_flight import InFlight

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Counts:
    """How many messages had each outcome."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    #: Attempts that ended at their deadline.
    timed_out: int = 0
    #: Messages whose time to live ended before an attempt.
    expired: int = 0
    parked: int = 0


class Outcomes:
    """Applies the policy to items: retry, finish, park or dead letter."""

    def __init__(
        self,
        settings: WorkerSettings,
        group: str,
        counts: Counts,
        in_flight: InFlight,
        crashes: CrashTracker,
    ) -> None:
        self._settings = settings
        self._group = group
        self._counts = counts
        self._in_flight = in_flight
        self._crashes = crashes
        #: Released items whose output has to be sent before they are finished.
        self.unsent: list[WorkItem] = []

    def apply(self, job: Job, result: AttemptResult, now: float) -> None:
        """Decide what follows an attempt, and do it."""
        item = job.item
        breaker = self._settings.breaker
        if result.kind == "ack":
            self._counts.done += 1
            if breaker is not None:
                breaker.succeeded()
        else:
            self._counts.failed += 1
            is_nack = result.kind == "nack"
            if breaker is not None and is_nack and breaker.failed(result.error, now):
                item.attempts -= 1
                self._in_flight.postpone(item, 0.0, now)
                return
        step = next_step(self._settings, item.origin.topic, item.attempts, result)
        if step.kind == "wait":
            self._counts.retried += 1
            self._in_flight.postpone(item, now + step.delay_s, now)
            return
        self._in_flight.release(item, now)
        if step.kind == "done":
            item.outputs = job.outputs
        elif step.kind == "move":
            item.outputs = [self._retry_record(item, step)]
        else:
            self.set_dead_letter(item, result.error or "")
        self.publish(item)

    def expire(self, item: WorkItem, now: float) -> None:
        """Finish an item whose time to live has ended, instead of an attempt."""
        self._counts.expired += 1
        self._in_flight.release(item, now)
        if self._settings.on_expired == "dead_letter":
            error = MessageExpired("The message's time to live ended before its handler started.")
            self.set_dead_letter(item, error)
        self.publish(item)

    def publish(self, item: WorkItem) -> None:
        """Send the item's output, if it has any, and finish the item."""
        if self._settings.transactional:
            self.finish(item, keep=True)
        elif item.outputs:
            self.unsent.append(item)
        else:
            self.finish(item, keep=False)

    def finish(self, item: WorkItem, *, keep: bool) -> None:
        """Mark the item finished. With `keep` its output is sent with the commit of its offset."""
        self._crashes.finished(item)
        self._in_flight.finish(item, keep=keep)

    def set_dead_letter(self, item: WorkItem, error: BaseException | str) -> None:
        """Replace the item's output by its dead letter."""
        self._counts.dead += 1
        _logger.warning("%r becomes a dead letter: %s", item.record, error)
        origin = dataclasses.replace(item.origin, attempts=item.attempts)
        now_ms = int(time.time() * 1000)
        item.outputs = [dead_letter_record(item.record, origin, self._group, error, now_ms)]
        item.is_dead = True

    # Messages that are due later

    def is_to_park(self, item: WorkItem, now: float) -> bool:
        """Whether an item should wait in the parked topic: many wait here, and none behind it."""
        return (
            self._settings.create_topics
            and item.queue_key is None
            and not item.is_parked
            and item.origin.due_ms is not None
            and self._in_flight.is_crowded(item.partition)
            and parked_level(item.due - now) is not None
        )

    def park(self, item: WorkItem, now: float) -> None:
        """Move the item to the parked partition for its remaining time, or keep it if due soon."""
        now_ms = int(time.time() * 1000)
        wait_s = ((item.origin.due_ms or 0) - now_ms) / 1000
        level = parked_level(wait_s)
        item.is_parked = False
        if level is None:
            self._in_flight.postpone(item, now + wait_s, now)
            return
        self._counts.parked += 1
        item.outputs = [parked_record(item.record, item.origin, self._group, level, now_ms)]
        self.publish(item)

    def _retry_record(self, item: WorkItem, step: NextStep) -> OutputRecord:
        self._counts.retried += 1
        origin = dataclasses.replace(item.origin, attempts=item.attempts)
        due_ms = int((time.time() + step.delay_s) * 1000)
        return retry_record(item.record, origin, self._group, step.topic, due_ms)

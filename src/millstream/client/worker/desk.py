"""Where the worker's threads meet: the board behind a lock, and what is decided at it.

The reading thread adds messages, takes finished ones and ticks; handlers take jobs and settle them.
Nothing here waits for brokers, and no lock of a client is taken while this one is held.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from millstream.client.error import ClientError
from millstream.client.record import Partition, Record
from millstream.client.worker.board import Board, Entry, Taken
from millstream.client.worker.job import Job
from millstream.client.worker.letter import Origin, Output, buried, retried
from millstream.client.worker.policy import Next, Verdict, WorkerSettings, next_of

LOGGER: Final = logging.getLogger("millstream.client.worker")


class DeadlinePassed(ClientError, TimeoutError):  # noqa: N818
    """A handler did not come back before its visibility deadline."""


@dataclasses.dataclass(slots=True)
class Counts:
    """What has become of messages."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0


class Desk:
    def __init__(self, settings: WorkerSettings, group: str, counts: Counts) -> None:
        self._settings = settings
        self._group = group
        self._counts = counts
        self._board = Board(settings.window)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._jobs: dict[Entry, Job] = {}
        #: Decided, with records to be sent before they are finished.
        self._moves: list[Entry] = []
        self._is_closed = False
        #: Told when jobs may be there, for those who do not wait in `take`.
        self.on_ready: Callable[[], None] | None = None

    # Reading

    def add(self, records: Iterable[Record]) -> None:
        now, now_ms = time.monotonic(), time.time() * 1000
        with self._lock:
            count = 0
            for record in records:
                origin = Origin.of(record)
                if origin.group not in (None, self._group):
                    # Another group's retry.
                    entry = Entry(record, origin, None)
                    entry.is_finished = True
                else:
                    entry = self._entry(record, origin, now, now_ms)
                    count += 1
                self._board.add(entry, now)
            self._wake(count)

    def _entry(self, record: Record, origin: Origin, now: float, now_ms: float) -> Entry:
        due = 0.0 if origin.due_ms is None else now + (origin.due_ms - now_ms) / 1000
        is_ordered = self._settings.order == "key" and origin.due_ms is None
        key = record.raw_key
        lane = (record.topic, record.partition, key) if is_ordered and key is not None else None
        return Entry(record, origin, lane, due)

    def tick(self) -> list[Job]:
        """Make ready what is due; the jobs whose time is over, which were settled as failed."""
        now = time.monotonic()
        with self._lock:
            self._board.wake(now)
            self._wake(self._board.ready_count)
            late = [job for job in self._jobs.values() if job.deadline < now]
        for job in late:
            seconds = self._settings.visibility_s
            error = DeadlinePassed(f"The handler did not come back in time ({seconds} s).")
            if self.settle(job, Verdict("nack", None, error)):
                self._counts.expired += 1
        return late

    def take_moves(self) -> list[Entry]:
        with self._lock:
            moves, self._moves = self._moves, []
            return moves

    def finish(self, entries: Iterable[Entry]) -> None:
        """What they had to send is delivered."""
        with self._lock:
            for entry in entries:
                entry.is_finished = True

    def take_finished(self) -> dict[Partition, Taken]:
        with self._lock:
            return self._board.take()

    def pressure(self) -> tuple[set[Partition], set[Partition]]:
        """The partitions that are full, and those that have room."""
        with self._lock:
            return self._board.full(), self._board.roomy()

    def __len__(self) -> int:
        """Messages held."""
        with self._lock:
            return len(self._board)

    # Partitions that go

    def drain(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """Start nothing more of them and wait for what runs; whether it all ended in time."""
        chosen = set(partitions)
        with self._lock:
            self._board.hold(chosen)
            return self._idle.wait_for(
                lambda: not any(entry.partition in chosen for entry in self._board.running),
                timeout_s,
            )

    def drop(self, partitions: Iterable[Partition]) -> None:
        chosen = set(partitions)
        with self._lock:
            self._board.drop(chosen)
            self._moves = [each for each in self._moves if not each.is_gone]

    def partitions(self) -> set[Partition]:
        with self._lock:
            return self._board.partitions()

    def close(self) -> None:
        """Nobody gets a job any more."""
        with self._lock:
            self._is_closed = True
            self._ready.notify_all()

    # Handlers

    def take(self) -> Job | None:
        """The next job; None at the end."""
        with self._lock:
            while not self._is_closed:
                job = self._start()
                if job is not None:
                    return job
                self._ready.wait()
            return None

    def take_now(self) -> Job | None:
        with self._lock:
            return None if self._is_closed else self._start()

    def settle(self, job: Job, verdict: Verdict) -> bool:
        """The attempt has ended; False if it had ended already without its handler."""
        now = time.monotonic()
        with self._lock:
            if job.is_over:
                return False
            job.is_over = True
            entry = job.entry
            del self._jobs[entry]
            if not entry.is_gone:
                self._decide(job, entry, verdict, now)
            else:
                self._board.release(entry, now)
            self._wake(1)
            self._idle.notify_all()
            return True

    def _start(self) -> Job | None:
        now = time.monotonic()
        breaker = self._settings.breaker
        limit = None if breaker is None else breaker.allowed(now)
        if limit is not None and len(self._board.running) >= limit:
            return None
        entry = self._board.start()
        if entry is None:
            return None
        entry.attempts += 1
        job = self._jobs[entry] = Job(entry, now + self._settings.visibility_s)
        return job

    def _decide(self, job: Job, entry: Entry, verdict: Verdict, now: float) -> None:
        breaker = self._settings.breaker
        if verdict.kind == "ack":
            self._counts.done += 1
            if breaker is not None:
                breaker.succeeded()
        else:
            self._counts.failed += 1
            if breaker is not None and breaker.failed(verdict.error, now):
                entry.attempts -= 1
                self._board.postpone(entry, 0.0, now)
                return
        following = next_of(self._settings, entry.origin.topic, entry.attempts, verdict)
        if following.kind == "wait":
            self._counts.retried += 1
            self._board.postpone(entry, now + following.delay_s, now)
            return
        if following.kind == "done":
            entry.outputs = job.outputs
        else:
            entry.outputs = [self._moved(entry, following, verdict)]
        self._board.release(entry, now)
        if entry.outputs and not self._settings.transactional:
            self._moves.append(entry)
        else:
            entry.is_finished = True

    def _moved(self, entry: Entry, following: Next, verdict: Verdict) -> Output:
        origin = dataclasses.replace(entry.origin, attempts=entry.attempts)
        now_ms = int(time.time() * 1000)
        if following.kind == "move":
            self._counts.retried += 1
            due_ms = now_ms + int(following.delay_s * 1000)
            return retried(entry.record, origin, self._group, following.topic, due_ms)
        self._counts.dead += 1
        LOGGER.warning("%r is a dead letter: %s", entry.record, verdict.error)
        return buried(entry.record, origin, self._group, verdict.error or "", now_ms)

    def _wake(self, count: int) -> None:
        """With the lock held."""
        if count:
            self._ready.notify(count)
            if self.on_ready is not None:
                self.on_ready()

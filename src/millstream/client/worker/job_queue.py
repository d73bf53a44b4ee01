"""Where the worker's threads meet: the board behind a lock, and what is decided at it.

The reading thread adds messages, takes finished ones and ticks; handlers take jobs and settle them.
Nothing here waits for brokers, and no lock of a client is taken while this one is held.

A partition is opened with the note of its committed offset before its first messages are added.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millstream.client.error import ClientError
from millstream.client.record import NotedOffset, Partition, Record
from millstream.client.schedule import parking
from millstream.client.worker.crash_tracker import Caution
from millstream.client.worker.header import Origin, Output, buried, parked, retried
from millstream.client.worker.in_flight import Board, Entry
from millstream.client.worker.job import Job
from millstream.client.worker.offset_metadata import Note
from millstream.client.worker.policy import Next, Verdict, WorkerSettings, next_of

LOGGER: Final = logging.getLogger("millstream.client.worker")


class DeadlinePassed(ClientError, TimeoutError):  # noqa: N818
    """A handler did not come back before its visibility deadline."""


class ProcessDied(ClientError):  # noqa: N818
    """A message was in progress each time that a process of the worker died."""


class Finished(NamedTuple):
    """Messages of a partition that were finished, and the offset to commit with its note."""

    entries: list[Entry]
    offset: NotedOffset


@dataclasses.dataclass(slots=True)
class Counts:
    """What has become of messages."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0
    parked: int = 0


class Desk:
    """`owner` is the worker's id in notes. Nothing starts once `is_stopping` says so."""

    def __init__(
        self,
        settings: WorkerSettings,
        group: str,
        counts: Counts,
        owner: str,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._group = group
        self._counts = counts
        self._board = Board(settings.window, settings.window_bytes)
        self._caution = Caution(owner, settings.attempts_max, settings.window)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._jobs: dict[Entry, Job] = {}
        #: Decided, with records to be sent before they are finished.
        self._moves: list[Entry] = []
        self._is_closed = False
        self._is_stopping = is_stopping
        #: Told when jobs may be there, for those who do not wait in `take`.
        self.on_ready: Callable[[], None] | None = None

    # Reading

    def open(self, partition: Partition, offset: int, note: Note) -> None:
        """Messages of the partition come next; `note` is what its former worker has left at its
        committed offset."""
        with self._lock:
            self._board.open(partition, offset, note)
            self._caution.open(partition, note, time.monotonic())

    def add(self, records: Iterable[Record]) -> None:
        now, now_ms = time.monotonic(), time.time() * 1000
        with self._lock:
            count = 0
            for record in records:
                partition = Partition(record.topic, record.partition)
                ledger = self._board.ledger(partition)
                if ledger is None:
                    # It was taken away this very moment.
                    continue
                origin = Origin.of(record)
                is_others = origin.group not in (None, self._group)
                if is_others or ledger.is_finished(record.offset):
                    ledger.read_to(record.offset)
                    continue
                self._add(self._entry(partition, record, origin, now, now_ms), now)
                count += 1
            self._wake(count)

    def _add(self, entry: Entry, now: float) -> None:
        if self._caution.look_at(entry, now):
            self._board.add_released(entry)
            error = ProcessDied(
                f"The worker's process died {entry.deaths} times while this message was in "
                "progress, at last with nothing else in progress."
            )
            self._bury(entry, error)
            self._moved(entry)
        elif self._is_to_park(entry) or (entry.is_parked and entry.due <= now):
            self._board.add_released(entry)
            self._park(entry, now)
        else:
            self._board.add(entry, now)

    def _is_to_park(self, entry: Entry) -> bool:
        """Whether to have it wait elsewhere: others wait here, and nothing waits for it."""
        return (
            self._settings.create_topics
            and entry.lane is None
            and not entry.is_parked
            and entry.origin.due_ms is not None
            and self._board.is_crowded(entry.partition)
            and parking(entry.due - time.monotonic()) is not None
        )

    def _park(self, entry: Entry, now: float) -> None:
        """Move it to a partition where it waits for a part of its time, or keep it if it is due
        soon."""
        now_ms = int(time.time() * 1000)
        wait_s = ((entry.origin.due_ms or 0) - now_ms) / 1000
        level = parking(wait_s)
        entry.is_parked = False
        if level is None:
            self._board.postpone(entry, now + wait_s, now)
            return
        self._counts.parked += 1
        entry.outputs = [parked(entry.record, entry.origin, self._group, level, now_ms)]
        self._moved(entry)

    def _entry(
        self, partition: Partition, record: Record, origin: Origin, now: float, now_ms: float
    ) -> Entry:
        due_ms = origin.due_ms if origin.parked_ms is None else origin.parked_ms
        due = 0.0 if due_ms is None else now + (due_ms - now_ms) / 1000
        is_ordered = self._settings.order == "key" and origin.due_ms is None
        key = record.raw_key
        lane = (partition, key) if is_ordered and key is not None else None
        entry = Entry(partition, record, origin, lane, due)
        entry.is_parked = origin.parked_ms is not None
        return entry

    def tick(self) -> list[Job]:
        """Make ready what is due; the jobs whose time is over, which were settled as failed."""
        now = time.monotonic()
        with self._lock:
            for entry in self._board.wake(now):
                self._park(entry, now)
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
                self._finish(entry, keep=False)

    def reject(self, entry: Entry, error: ClientError) -> None:
        """The brokers reject what the message sends: its dead letter is sent instead."""
        with self._lock:
            self._bury(entry, error)

    def take_finished(self, also: Iterable[Partition] = ()) -> dict[Partition, Finished]:
        """What has changed since the last time, by partition; and `also` these partitions."""
        now = time.monotonic()
        with self._lock:
            return {
                partition: Finished(
                    taken.entries,
                    self._caution.note(partition, taken, self._board, now).at(taken.offset),
                )
                for partition, taken in self._board.take(also).items()
            }

    def pressure(self) -> tuple[set[Partition], set[Partition]]:
        """The partitions that are full, and those that have room."""
        with self._lock:
            return self._board.full(), self._board.roomy()

    def __len__(self) -> int:
        """Messages held."""
        with self._lock:
            return len(self._board)

    # Careful messages, which start only after a note names them

    def plan_notes(self) -> set[Partition]:
        """The partitions whose notes have to be committed now; then call `noted`."""
        with self._lock:
            return self._caution.plan(self._board)

    def noted(self, *, is_committed: bool) -> None:
        with self._lock:
            self._caution.noted(self._board, is_committed=is_committed)
            self._wake(self._board.ready_count)

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
            self._caution.drop(chosen, self._board)
            self._moves = [each for each in self._moves if not each.is_gone]

    def leave(self, partitions: Iterable[Partition]) -> None:
        """Their notes say from now on that this worker has given them up."""
        with self._lock:
            self._caution.leave(partitions)

    def partitions(self) -> set[Partition]:
        with self._lock:
            return set(self._board.partitions())

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
            self._caution.settled(entry, self._board)
            if not entry.is_gone:
                self._decide(job, entry, verdict, now)
            else:
                self._board.release(entry, now)
            self._wake(1)
            self._idle.notify_all()
            return True

    def _start(self) -> Job | None:
        if self._is_stopping():
            return None
        now = time.monotonic()
        breaker = self._settings.breaker
        limit = None if breaker is None else breaker.allowed(now)
        if limit is not None and len(self._board.running) >= limit:
            return None
        entry = self._board.start()
        if entry is None:
            return None
        entry.attempts += 1
        deadline = now + self._settings.visibility_s
        job = self._jobs[entry] = Job(entry, deadline, self._settings.serializers)
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
        self._board.release(entry, now)
        if following.kind == "done":
            entry.outputs = job.outputs
        elif following.kind == "move":
            entry.outputs = [self._retried(entry, following)]
        else:
            self._bury(entry, verdict.error or "")
        self._moved(entry)

    def _moved(self, entry: Entry) -> None:
        """It will not run again; what it sends comes first."""
        if self._settings.transactional:
            self._finish(entry, keep=True)
        elif entry.outputs:
            self._moves.append(entry)
        else:
            self._finish(entry, keep=False)

    def _finish(self, entry: Entry, *, keep: bool) -> None:
        self._caution.finished(entry)
        self._board.finish(entry, keep=keep)

    def _retried(self, entry: Entry, following: Next) -> Output:
        origin = dataclasses.replace(entry.origin, attempts=entry.attempts)
        self._counts.retried += 1
        due_ms = int((time.time() + following.delay_s) * 1000)
        return retried(entry.record, origin, self._group, following.topic, due_ms)

    def _bury(self, entry: Entry, error: BaseException | str) -> None:
        origin = dataclasses.replace(entry.origin, attempts=entry.attempts)
        self._counts.dead += 1
        LOGGER.warning("%r is a dead letter: %s", entry.record, error)
        now_ms = int(time.time() * 1000)
        entry.outputs = [buried(entry.record, origin, self._group, error, now_ms)]
        entry.is_dead = True

    def _wake(self, count: int) -> None:
        """With the lock held."""
        if count:
            self._ready.notify(count)
            if self.on_ready is not None:
                self.on_ready()

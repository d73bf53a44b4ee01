"""The queue between a worker's reading thread and its handlers: in-flight messages behind a lock.

The reading thread adds messages, takes finished ones and ticks. Handlers take jobs and complete
them. Nothing here waits for brokers, and no lock of a client is acquired while this one is held.

A partition is opened with the metadata of its committed offset before its first messages are added.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from millstream.client.error import MillstreamError
from millstream.client.record import OffsetAndMetadata, Partition, Record
from millstream.client.worker.failure import DeadlinePassed, ProcessDied
from millstream.client.worker.message.header import Origin
from millstream.client.worker.message.job import Job
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.policy.policy import AttemptResult, WorkerSettings
from millstream.client.worker.queue.crash_tracker import CrashTracker
from millstream.client.worker.queue.in_flight import InFlight
from millstream.client.worker.queue.offset_metadata import OffsetMetadata
from millstream.client.worker.queue.outcome import Counts, Outcomes
from millstream.client.worker.queue.topic_queue import TopicQueues


class PartitionCommit(NamedTuple):
    """Finished items of a partition, and the offset to commit with its metadata."""

    items: list[WorkItem]
    offset: OffsetAndMetadata


class JobQueue:
    """`owner` is the worker's id in offset metadata. No job starts once `is_stopping()` is true."""

    def __init__(
        self,
        settings: WorkerSettings,
        group: str,
        counts: Counts,
        owner: str,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._encoders = settings.encoders
        self._group = group
        self._counts = counts
        self._in_flight = InFlight(settings.window, settings.window_bytes)
        self._crashes = CrashTracker(owner, settings.attempts_max, settings.window)
        self._outcomes = Outcomes(settings, group, counts, self._in_flight, self._crashes)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._jobs: dict[WorkItem, Job] = {}
        self._is_closed = False
        self._is_stopping = is_stopping
        #: Called when jobs may be ready, for a runner that does not wait in `next_job`.
        self.on_ready: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Return the number of messages held."""
        with self._lock:
            return len(self._in_flight)

    @property
    def running(self) -> int:
        """The number of jobs in progress."""
        return len(self._jobs)

    def start_by_topic(self, queues: TopicQueues) -> None:
        """Start messages as these queues decide. Call this before messages are added."""
        self._in_flight.use_topics(queues)

    # The reading thread

    def open(self, partition: Partition, offset: int, metadata: OffsetMetadata) -> None:
        """Accept messages of the partition. `metadata` is what its previous worker committed."""
        with self._lock:
            self._in_flight.open(partition, offset, metadata)
            self._crashes.open(partition, metadata, time.monotonic())

    def add(self, records: Iterable[Record]) -> None:
        """Add messages that were read, in the order of each partition."""
        now, now_ms = time.monotonic(), time.time() * 1000
        with self._lock:
            count = 0
            for record in records:
                partition = Partition(record.topic, record.partition)
                window = self._in_flight.window(partition)
                if window is None:
                    # The partition was revoked during the poll.
                    continue
                origin = Origin.of(record)
                is_of_other_group = origin.group not in (None, self._group)
                if is_of_other_group or window.was_finished(record.offset):
                    window.advance(record.offset)
                    continue
                self._add(self._item(record, origin, now, now_ms), now)
                count += 1
            self._notify_ready(count)

    def _add(self, item: WorkItem, now: float) -> None:
        if self._crashes.classify(item, now):
            self._in_flight.add_released(item)
            error = ProcessDied(
                f"The worker's process died {item.deaths} times while this message was in "
                "progress, the last time with nothing else in progress."
            )
            self._outcomes.set_dead_letter(item, error)
            self._outcomes.publish(item)
        elif self._outcomes.is_to_park(item, now) or (item.is_parked and item.due <= now):
            self._in_flight.add_released(item)
            self._outcomes.park(item, now)
        else:
            self._in_flight.add(item, now)

    def _item(self, record: Record, origin: Origin, now: float, now_ms: float) -> WorkItem:
        partition = Partition(record.topic, record.partition)
        due_ms = origin.due_ms if origin.parked_ms is None else origin.parked_ms
        due = 0.0 if due_ms is None else now + (due_ms - now_ms) / 1000
        is_ordered = self._settings.order == "key" and origin.due_ms is None
        key = record.raw_key
        queue_key = (partition, key) if is_ordered and key is not None else None
        item = WorkItem(partition, record, origin, queue_key, due)
        item.is_parked = origin.parked_ms is not None
        ttl_s = self._settings.ttl if origin.ttl_s is None else origin.ttl_s
        if ttl_s is not None and origin.timestamp is not None:
            item.expires = now + (origin.timestamp - now_ms) / 1000 + ttl_s
        return item

    def tick(self) -> list[Job]:
        """Make due messages ready. Return the jobs past their deadline, completed as failed."""
        now = time.monotonic()
        with self._lock:
            for item in self._in_flight.promote_due(now):
                self._outcomes.park(item, now)
            self._notify_ready(self._in_flight.ready_count)
            late = [job for job in self._jobs.values() if job.deadline < now]
        for job in late:
            seconds = self._settings.visibility_timeout
            error = DeadlinePassed(f"The handler did not return in time ({seconds} s).")
            if self.complete(job, AttemptResult("nack", None, error)):
                self._counts.timed_out += 1
        return late

    def take_unsent(self) -> list[WorkItem]:
        """Return the items whose output has to be sent, and forget them."""
        with self._lock:
            unsent, self._outcomes.unsent = self._outcomes.unsent, []
            return unsent

    def finish(self, items: Iterable[WorkItem]) -> None:
        """Finish items whose output is delivered."""
        with self._lock:
            for item in items:
                self._outcomes.finish(item, keep=False)

    def withhold(self, item: WorkItem) -> None:
        """Make a message unfinished again whose dead letter was rejected. `finish_kept` follows."""
        with self._lock:
            # The crash tracker has counted it as finished.
            item.is_tracked = False
            self._in_flight.withhold(item)

    def finish_kept(self, items: Iterable[WorkItem]) -> None:
        """Finish items whose output is sent with the commit of their offset."""
        with self._lock:
            for item in items:
                self._outcomes.finish(item, keep=True)

    def reject(self, item: WorkItem, error: MillstreamError) -> None:
        """Replace output that brokers reject by the message's dead letter."""
        with self._lock:
            self._outcomes.set_dead_letter(item, error)

    def take_commits(self, also: Iterable[Partition] = ()) -> dict[Partition, PartitionCommit]:
        """Return what to commit for partitions that changed since the last call, and for `also`."""
        now = time.monotonic()
        with self._lock:
            return {
                partition: PartitionCommit(
                    progress.items,
                    self._crashes.metadata(partition, progress, self._in_flight, now).at(
                        progress.offset
                    ),
                )
                for partition, progress in self._in_flight.take_progress(also).items()
            }

    def full_and_resumable(self) -> tuple[set[Partition], set[Partition]]:
        """Return the partitions whose reading should pause, and those whose reading may resume."""
        with self._lock:
            return self._in_flight.full_partitions(), self._in_flight.resumable_partitions()

    # Tracked messages, which start only after committed metadata names them

    def plan_tracked(self) -> set[Partition]:
        """Return the partitions whose metadata to commit now. Then call `tracked_recorded`."""
        with self._lock:
            return self._crashes.plan(self._in_flight)

    def tracked_recorded(self, *, is_committed: bool) -> None:
        """Let the planned messages start if their metadata is committed."""
        with self._lock:
            self._crashes.recorded(self._in_flight, is_committed=is_committed)
            self._notify_ready(self._in_flight.ready_count)

    # Partitions that are revoked

    def drain(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """Start no more jobs of the partitions and wait for running ones. False after a timeout."""
        chosen = set(partitions)
        with self._lock:
            self._in_flight.stop_partitions(chosen)
            return self._idle.wait_for(
                lambda: not any(item.partition in chosen for item in self._in_flight.running),
                timeout_s,
            )

    def release(self, partitions: Iterable[Partition]) -> None:
        """From now on, the metadata says that this worker gave the partitions up in order."""
        with self._lock:
            self._crashes.release(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the messages of partitions that another member has now."""
        chosen = set(partitions)
        with self._lock:
            self._in_flight.drop(chosen)
            self._crashes.drop(chosen, self._in_flight)
            unsent = self._outcomes.unsent
            self._outcomes.unsent = [each for each in unsent if not each.is_dropped]

    def partitions(self) -> set[Partition]:
        """Return the open partitions."""
        with self._lock:
            return set(self._in_flight.partitions())

    def close(self) -> None:
        """Give out no more jobs, and end the waits in `next_job`."""
        with self._lock:
            self._is_closed = True
            self._ready.notify_all()

    # Handlers

    def next_job(self) -> Job | None:
        """Wait for the next job. None once the queue is closed."""
        with self._lock:
            while not self._is_closed:
                job = self._start()
                if job is not None:
                    return job
                self._ready.wait()
            return None

    def next_job_nowait(self) -> Job | None:
        """Return the next job, or None if no job may start now."""
        with self._lock:
            return None if self._is_closed else self._start()

    def complete(self, job: Job, result: AttemptResult) -> bool:
        """End an attempt. False if it had already ended without its handler."""
        now = time.monotonic()
        with self._lock:
            if job.is_over:
                return False
            job.is_over = True
            item = job.item
            del self._jobs[item]
            self._crashes.attempt_ended(item, self._in_flight)
            if item.is_dropped:
                self._in_flight.release(item, now)
            else:
                self._outcomes.apply(job, result, now)
            self._notify_ready(1)
            self._idle.notify_all()
            return True

    def _start(self) -> Job | None:
        if self._is_stopping():
            return None
        now = time.monotonic()
        breaker = self._settings.breaker
        limit = None if breaker is None else breaker.allowed(now)
        if limit is not None and len(self._in_flight.running) >= limit:
            return None
        while (item := self._in_flight.start(now)) is not None and item.expires <= now:
            self._crashes.attempt_ended(item, self._in_flight)
            self._outcomes.expire(item, now)
        if item is None:
            return None
        item.attempts += 1
        deadline = now + self._settings.visibility_timeout
        job = self._jobs[item] = Job(item, deadline, self._encoders)
        return job

    def _notify_ready(self, count: int) -> None:
        """Wake handlers. The caller holds the lock."""
        if count:
            self._ready.notify(count)
            if self.on_ready is not None:
                self.on_ready()

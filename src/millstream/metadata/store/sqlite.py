"""The embedded metadata store: `MetadataStore` on one SQLite file, for a cluster of one node.

Owns the thread that uses the file, group commit, watches and leases. `sqlite_file` owns the tables.

Group commit: calls that arrive while the thread is busy wait in a queue. The thread runs them in
one SQLite transaction, each with its own conditions and revision, and syncs the disk once. No call
returns before the sync. If the file fails, every call of the group gets the error, and none is
stored. Reads run before the writes of a round, so that a watch keeps up with a burst of writes.

Leases exist only in this process. At start all leases of the previous run have expired, and their
keys are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from millstream.env.clock import Clock
from millstream.metadata.store.port import (
    Change,
    Condition,
    KeyValue,
    LeaseExpiredError,
    LeaseId,
    MetadataStoreError,
    RangeResult,
    StoreClosedError,
    TransactResult,
    WatchEvents,
)
from millstream.metadata.store.sqlite_file import SqliteFile

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)

CHANGES_MAX: Final = 20_000
HISTORY_MAX: Final = 50_000
PENDING_MAX: Final = 1024


class _Job(NamedTuple):
    """One call that the thread runs."""

    run: Callable[[SqliteFile], Any]
    future: asyncio.Future[Any]
    #: Number of changes; 0 for a read.
    weight: int


class SqliteStore:
    """The store on one SQLite file. Created by `open`, on the loop that uses it."""

    __slots__ = (
        "_clock",
        "_closing",
        "_deadlines",
        "_ended",
        "_jobs",
        "_leases",
        "_loop",
        "_pending",
        "_revision",
        "_slots",
        "_ttls",
        "_waiters",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(PENDING_MAX)
        #: Set by `close`, or when the thread dies. No job is accepted from then on.
        self._closing = False
        #: Done when the thread has ended, with the error for open and later calls.
        self._ended: asyncio.Future[MetadataStoreError] = self._loop.create_future()
        self._pending: set[asyncio.Future[Any]] = set()
        #: The newest revision that the loop knows to be durable.
        self._revision = 0
        self._waiters: set[asyncio.Future[None]] = set()
        # Leases, used by the thread only: lifetime and end, in seconds of `clock`.
        self._leases = count(1)
        self._ttls: dict[LeaseId, float] = {}
        self._deadlines: dict[LeaseId, float] = {}

    @classmethod
    async def open(cls, path: Path, clock: Clock, *, history_max: int = HISTORY_MAX) -> SqliteStore:
        """Open or create the file; MetadataStoreError if it cannot be used."""
        store = cls(clock)
        opened: asyncio.Future[int] = store._loop.create_future()
        threading.Thread(
            target=store._run, args=(path, history_max, opened), name="metadata", daemon=True
        ).start()
        store._revision = await opened
        return store

    @property
    def changes_max(self) -> int:
        return CHANGES_MAX

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda file: file.get(key))

    async def range(self, prefix: str) -> RangeResult:
        return await self._call(lambda file: file.range(prefix))

    async def transact(
        self, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> TransactResult:
        if len(changes) > CHANGES_MAX:
            raise MetadataStoreError(
                f"a transaction may hold {CHANGES_MAX} changes, this one has {len(changes)}"
            )
        weight = max(1, len(changes))
        return await self._call(lambda file: self._transact(file, compares, changes), weight)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchEvents, None]:
        while True:
            await self._reached(from_revision)
            read = partial(SqliteFile.events, prefix=prefix, from_revision=from_revision)
            found = await self._call(read)
            from_revision = found.revision + 1
            if found.events:
                yield found

    async def grant(self, ttl_ms: int) -> LeaseId:
        lease = await self._call(lambda _: self._grant(ttl_ms / 1000))
        self._loop.call_later(ttl_ms / 1000, self._expire_soon, lease)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._call(lambda _: self._keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._call(lambda file: self._end_leases(file, [lease]))

    async def close(self) -> None:
        """Finish pending calls, then close the file. Watches end with StoreClosedError."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)

    # On the loop

    async def _call(
        self, run: Callable[[SqliteFile], _T | MetadataStoreError], weight: int = 0
    ) -> _T:
        async with self._slots:
            self._check_open()
            future: asyncio.Future[_T] = self._loop.create_future()
            self._pending.add(future)
            try:
                self._jobs.put(_Job(run, future, weight))
                return await future
            finally:
                self._pending.discard(future)

    async def _reached(self, revision: int) -> None:
        while self._revision < revision:
            self._check_open()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _check_open(self) -> None:
        if self._ended.done():
            raise self._ended.result()
        if self._closing:
            raise StoreClosedError("the metadata store is closed")

    def _end(self, reason: MetadataStoreError) -> None:
        self._closing = True
        self._ended.set_result(reason)
        self._deliver(self._revision, [(future, reason) for future in self._pending])
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _deliver(self, revision: int, results: list[tuple[asyncio.Future[Any], Any]]) -> None:
        for future, result in results:
            if future.done():  # The caller was cancelled.
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if revision != self._revision:
            self._revision = revision
            self._wake()

    def _expire_soon(self, lease: LeaseId) -> None:
        """Let the thread delete expired leases, and set the timer again if this one was renewed."""
        if self._closing:
            return
        future: asyncio.Future[float | None] = self._loop.create_future()
        future.add_done_callback(lambda done: self._expire_again(lease, done))
        self._jobs.put(_Job(lambda _: self._remaining(lease), future, 0))

    def _expire_again(self, lease: LeaseId, done: asyncio.Future[float | None]) -> None:
        remaining = None if done.exception() else done.result()
        if remaining is not None:
            self._loop.call_later(max(remaining, 0.001), self._expire_soon, lease)

    # In the thread

    def _run(self, path: Path, history_max: int, opened: asyncio.Future[int]) -> None:
        try:
            file = SqliteFile(path, history_max)
            _raise_failure(self._commit(file, [SqliteFile.delete_all_leased]))
        except Exception as error:  # noqa: BLE001  `open` raises it.
            self._post(
                0, [(opened, error if isinstance(error, MetadataStoreError) else _failure(error))]
            )
            return
        self._post(file.revision, [(opened, file.revision)])
        try:
            self._serve(file)
            file.close()
        except Exception as error:
            _logger.exception("the metadata store's thread died")
            self._call_loop(self._end, _failure(error))
        else:
            self._call_loop(self._end, StoreClosedError("the metadata store is closed"))

    def _serve(self, file: SqliteFile) -> None:
        writes: deque[_Job] = deque()
        running = True
        while running or writes:
            reads, running = self._receive_jobs(writes, wait=running and not writes)
            # Delete expired leases first, so that no read returns their keys.
            self._expire(file)
            if reads:
                found = [(job.future, _attempt(job, file)) for job in reads]
                self._post(file.revision, found)
            if writes:
                group = _next_group(writes)
                results = self._commit(file, [job.run for job in group])
                futures = [job.future for job in group]
                self._post(file.revision, list(zip(futures, results, strict=True)))

    def _receive_jobs(self, writes: deque[_Job], wait: bool) -> tuple[list[_Job], bool]:
        """Return the pending reads, and queue the writes. False once the store is closing."""
        reads: list[_Job] = []
        try:
            job = self._jobs.get(block=wait)
            while job is not None:
                (writes if job.weight else reads).append(job)
                job = self._jobs.get_nowait()
        except queue.Empty:
            return reads, True
        return reads, False

    def _commit(self, file: SqliteFile, runs: Sequence[Callable[[SqliteFile], Any]]) -> list[Any]:
        """Run a group in one durable transaction. If it fails, each call gets the error."""
        try:
            file.begin()
            results = [run(file) for run in runs]
            file.commit()
        except Exception as error:  # noqa: BLE001  Handed to every caller of the group.
            try:
                file.rollback()
            except Exception as second:  # noqa: BLE001  The first error is the cause.
                error.add_note(f"and the rollback failed: {second}")
            return [_failure(error) for _ in runs]
        return results

    def _post(self, revision: int, results: list[tuple[asyncio.Future[Any], Any]]) -> None:
        self._call_loop(self._deliver, revision, results)

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: no caller is left.
            return

    def _transact(
        self, file: SqliteFile, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> TransactResult | LeaseExpiredError:
        # Returned and not raised: the other calls of the group are not affected.
        for change in changes:
            lease = getattr(change, "lease", None)
            if lease is not None and lease not in self._deadlines:
                return LeaseExpiredError(lease)
        return file.transact(compares, changes)

    def _grant(self, ttl: float) -> LeaseId:
        lease = next(self._leases)
        self._ttls[lease] = ttl
        self._deadlines[lease] = self._clock.monotonic() + ttl
        return lease

    def _keep_alive(self, lease: LeaseId) -> None:
        if lease not in self._deadlines:
            raise LeaseExpiredError(lease)
        self._deadlines[lease] = self._clock.monotonic() + self._ttls[lease]

    def _remaining(self, lease: LeaseId) -> float | None:
        deadline = self._deadlines.get(lease)
        return None if deadline is None else deadline - self._clock.monotonic()

    def _expire(self, file: SqliteFile) -> None:
        now = self._clock.monotonic()
        ended = [lease for lease, deadline in self._deadlines.items() if deadline <= now]
        if ended:
            try:
                self._end_leases(file, ended)
            except MetadataStoreError:
                _logger.exception("the keys of expired leases can't be deleted; retrying later")
            self._post(file.revision, [])

    def _end_leases(self, file: SqliteFile, leases: Sequence[LeaseId]) -> None:
        _raise_failure(self._commit(file, [lambda file: file.delete_leased(leases)]))
        for lease in leases:
            self._deadlines.pop(lease, None)
            self._ttls.pop(lease, None)


def _attempt(job: _Job, file: SqliteFile) -> Any:
    try:
        return job.run(file)
    except MetadataStoreError as error:
        return error
    except Exception as error:  # noqa: BLE001  Handed to the caller.
        return _failure(error)


def _next_group(writes: deque[_Job]) -> list[_Job]:
    group = [writes.popleft()]
    weight = group[0].weight
    while writes and weight + writes[0].weight <= CHANGES_MAX:
        group.append(writes.popleft())
        weight += group[-1].weight
    return group


def _failure(error: Exception) -> MetadataStoreError:
    failure = MetadataStoreError(f"the metadata store failed: {error}")
    failure.__cause__ = error
    return failure


def _raise_failure(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result

"""Sends events of an outbox to their topics, exactly once: the loop of a shard, and its threads.

The loop of a shard (0010-outbox.md explains why it is correct):

    wait for the shard's lock; begin an epoch; fence the previous producer; learn whether the last
    claimed batch was sent; then: claim a batch, send it, claim the next (which marks the previous
    one as sent), ...

Every failure ends the ownership and begins a new one, as a crash would. After a batch that could
not be sent, the relay isolates events for a while: it finds out which of them Kafka rejects for
good, and moves those to the table of rejected events, so that the others continue.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.client.outbox.sink import (
    InterruptedSinkError,
    RejectedError,
    Sink,
    SinkError,
    prepare,
)
from millstream.client.outbox.source import (
    BatchLimit,
    Database,
    Event,
    ShardSource,
    ShardTakenError,
    SourceError,
)
from millstream.client.outbox.takeover import (
    BatchOutcome,
    ProgressLostError,
    ShardTakeover,
    batch_outcome,
)
from millstream.client.tracing.choice import TracingOption
from millstream.client.tracing.outbox_tracing import send_tracing

_PURGE_EVERY_S: Final = 5.0
_PURGE_ROWS: Final = 5_000
#: An idle shard commits its batch number again after this time, well before brokers expire it
#: (`offsets.retention.minutes`, a week).
_BASELINE_EVERY_S: Final = 3600.0
_BACKOFF_S_MIN: Final = 0.1
_BACKOFF_S_MAX: Final = 10.0
_PREPARE_RETRY_S: Final = 2.0
#: How long a relay isolates events after a batch that failed.
_ISOLATE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of a relay.

    `keep_s`: how long sent rows stay. `shards_max`: how many shards this relay takes.
    """

    limit: BatchLimit = field(default_factory=lambda: BatchLimit(5_000, 16 << 20))
    keep_s: float = 0.0
    poll_s: float = 0.5
    standby_s: float = 1.0
    shards_max: int | None = None
    #: End once no events are pending.
    drain: bool = False
    #: OpenTelemetry, as for producers.
    tracing: TracingOption = None


class WakeSignal:
    """Wakes waiting shards when there may be rows.

    A shard passes the count that it saw before it read, so it misses no wake.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def seen(self) -> int:
        """Return the current count."""
        return self._count

    def wake(self) -> None:
        """Wake all waiting shards."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until the count differs from `seen`, or until the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout_s)


class Relay:
    """Relays all shards of an outbox that this process can lock.

    `report` gets sentences for people.
    """

    def __init__(
        self,
        database: Database,
        properties: Mapping[str, Any],
        settings: RelaySettings,
        report: Callable[[str], None],
    ) -> None:
        self._database = database
        self._properties = properties
        self._settings = settings
        self._report = report
        self._stop = threading.Event()
        self._wake = WakeSignal()
        shards_max = settings.shards_max
        self._slots = None if shards_max is None else threading.BoundedSemaphore(shards_max)
        #: Shards that need a decision of a person.
        self.undecided_shards: list[int] = []
        self._sent = 0
        self._rejected = 0
        self._counts_lock = threading.Lock()

    @property
    def sent(self) -> int:
        """The number of events that this relay has sent."""
        return self._sent

    @property
    def rejected(self) -> int:
        """The number of events that this relay has put aside."""
        return self._rejected

    def stop(self) -> None:
        """Stop after the batches in progress. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Relay until `stop()`, or until nothing is pending if `drain` is set."""
        self._database.upgrade()
        shards = self._database.shards()
        self._prepare(len(shards))
        with (
            self._database.watch(self._settings.poll_s, self._wake.wake),
            ThreadPoolExecutor(len(shards), "outbox") as pool,
        ):
            unfinished = {pool.submit(self._relay_shard, shard) for shard in shards}
            try:
                while unfinished:
                    # In slices, so that signals are handled meanwhile.
                    finished, unfinished = wait(unfinished, 0.2, FIRST_COMPLETED)
                    for each in finished:
                        each.result()
                    if self._stop.is_set():
                        self._wake.wake()
            finally:
                self._stop.set()
                self._wake.wake()

    def _prepare(self, shards: int) -> None:
        while not self._stop.is_set():
            try:
                prepare(self._properties, shards)
            except SinkError as error:
                self._report(str(error))
                self._stop.wait(_PREPARE_RETRY_S)
            else:
                return

    def _relay_shard(self, shard: int) -> None:
        backoff_s = _BACKOFF_S_MIN
        isolate_until = 0.0
        while not self._stop.is_set():
            if self._slots is not None and not self._slots.acquire(timeout=0.2):
                continue
            try:
                done = self._try_own(shard, isolate_until)
            except RejectedError as error:
                done = False
                isolate_until = time.monotonic() + _ISOLATE_S
                self._report(f"shard {shard}: {error}, see `millstream outbox rejected`")
            except (SourceError, SinkError, ShardTakenError) as error:
                done = False
                if isinstance(error, SinkError):
                    isolate_until = time.monotonic() + _ISOLATE_S
                self._report(f"shard {shard}: {error}")
                self._stop.wait(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)
            except InterruptedSinkError:
                return
            except ProgressLostError as error:
                self._report(f"shard {shard} needs a decision: {error}")
                self.undecided_shards.append(shard)
                return
            else:
                backoff_s = _BACKOFF_S_MIN
            finally:
                if self._slots is not None:
                    self._slots.release()
            if done:
                return

    def _try_own(self, shard: int, isolate_until: float) -> bool:
        """Relay the shard if no other relay does. True when there is nothing more to do."""
        source = self._database.open(shard)
        try:
            if source.acquire():
                return self._own(shard, source, isolate_until)
            if self._settings.drain and not source.has_pending():
                return True
        finally:
            source.close()
        self._stop.wait(self._settings.standby_s)
        return False

    def _own(self, shard: int, source: ShardSource, isolate_until: float) -> bool:
        """Relay until `stop()`; with isolation, until its time is over."""
        takeover = source.take_over(f"{socket.gethostname()}:{os.getpid()}")
        isolate = time.monotonic() < isolate_until
        servers = self._properties.get("bootstrap.servers")
        sink = Sink(
            self._properties,
            takeover.name,
            shard,
            self._stop.is_set,
            isolate=isolate,
            tracing=send_tracing(self._settings.tracing, servers),
        )
        try:
            sink.open()
            batch = self._resolve_claim(takeover, source, sink)
            source.record_error(None)
            self._report(f"shard {shard}: relaying, {batch} batches before")
            return self._send_all(source, sink, batch, isolate_until if isolate else None)
        except RejectedError as error:
            # Nothing was committed, and no other relay could: the claim can be released.
            source.quarantine(error.errors)
            with self._counts_lock:
                self._rejected += len(error.errors)
            raise
        except (SinkError, ProgressLostError) as error:
            source.record_error(str(error))
            raise
        finally:
            sink.close()

    def _resolve_claim(self, takeover: ShardTakeover, source: ShardSource, sink: Sink) -> int:
        """Learn whether the last batch was sent. Return the number of the last batch sent."""
        match batch_outcome(takeover, sink.committed()):
            case BatchOutcome.BASELINE:
                sink.send([], takeover.batch)
            case BatchOutcome.SENT:
                source.finish(keep=self._keeps)
            case BatchOutcome.UNSENT:
                source.release()
                return takeover.batch - 1
            case BatchOutcome.KNOWN:
                pass
        return takeover.batch

    @property
    def _keeps(self) -> bool:
        return self._settings.keep_s > 0

    def _send_all(self, source: ShardSource, sink: Sink, batch: int, ends_at: float | None) -> bool:
        purge_at = time.monotonic()
        baseline_at = time.monotonic() + _BASELINE_EVERY_S
        while not self._stop.is_set():
            if ends_at is not None and time.monotonic() > ends_at:
                source.finish(keep=self._keeps)
                return False
            seen = self._wake.seen()
            if time.monotonic() > baseline_at:
                source.finish(keep=self._keeps)
                sink.send([], batch)
                baseline_at = time.monotonic() + _BASELINE_EVERY_S
            events = source.claim(batch + 1, self._settings.limit, keep=self._keeps)
            if events:
                self._send(sink, events, batch + 1)
                batch += 1
                baseline_at = time.monotonic() + _BASELINE_EVERY_S
            if time.monotonic() >= purge_at and self._purge(source):
                purge_at = time.monotonic() + _PURGE_EVERY_S
            if not events:
                if self._settings.drain:
                    return True
                self._wake.wait(seen, self._settings.poll_s)
        source.finish(keep=self._keeps)
        return True

    def _send(self, sink: Sink, events: Sequence[Event], batch: int) -> None:
        sink.send(events, batch)
        with self._counts_lock:
            self._sent += len(events)

    def _purge(self, source: ShardSource) -> bool:
        """Delete some of the rows that are too old. True when there are no more of them."""
        before_ms = int((time.time() - self._settings.keep_s) * 1000)
        return source.purge(before_ms, _PURGE_ROWS) < _PURGE_ROWS

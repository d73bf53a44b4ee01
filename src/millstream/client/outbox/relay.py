"""Moving events from an outbox to their topics, exactly once: the loop of a shard, and its threads.

A shard's life, over and over (0010-outbox.md says why it is right):

    wait for the shard's lock; begin an epoch; fence the former producer; learn what became of the
    batch that was claimed last; then: claim a batch, send it, claim the next (which marks the one
    before as sent), ...

Every failure ends the tenure and begins the next one, the way a crash would. After a batch that
could not be sent, the next tenures are careful for a while: they find out which events Kafka
rejects for good, and put those aside in the table of rejected events, so that the others go on.
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
from millstream.client.outbox.takeover import ProgressLostError, Tenure, Verdict, judge

_PURGE_EVERY_S: Final = 5.0
_PURGE_ROWS: Final = 5_000
#: A position that nobody wrote for longer is written anew before the next claim needs it, well
#: before brokers forget it (`offsets.retention.minutes`, a week).
_BASELINE_EVERY_S: Final = 3600.0
_BACKOFF_S_MIN: Final = 0.1
_BACKOFF_S_MAX: Final = 10.0
_PREPARE_RETRY_S: Final = 2.0
#: After a batch that failed.
_CAREFUL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """`keep_s`: how long sent rows stay. `shards_max`: how many shards one relay takes."""

    limit: BatchLimit = field(default_factory=lambda: BatchLimit(5_000, 16 << 20))
    keep_s: float = 0.0
    poll_s: float = 0.5
    standby_s: float = 1.0
    shards_max: int | None = None
    #: End once no events are pending.
    drain: bool = False


class Wake:
    """Tells waiting shards that there may be rows. None is missed: each looks after what it saw."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def seen(self) -> int:
        return self._count

    def wake(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout_s)


class Relay:
    """All shards of an outbox that this process can get. `say` gets sentences for people."""

    def __init__(
        self,
        database: Database,
        properties: Mapping[str, Any],
        settings: RelaySettings,
        say: Callable[[str], None],
    ) -> None:
        self._database = database
        self._properties = properties
        self._settings = settings
        self._say = say
        self._stop = threading.Event()
        self._wake = Wake()
        shards_max = settings.shards_max
        self._places = None if shards_max is None else threading.BoundedSemaphore(shards_max)
        #: Shards that need a person's decision.
        self.undecided_shards: list[int] = []
        self._sent = 0
        self._rejected = 0
        self._counts_lock = threading.Lock()

    @property
    def sent(self) -> int:
        """Events that this relay has sent."""
        return self._sent

    @property
    def rejected(self) -> int:
        """Events that this relay has put aside."""
        return self._rejected

    def stop(self) -> None:
        """End after the batches that are on their way. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Relay until told to stop, or until nothing is pending where `drain` is set."""
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
                self._say(str(error))
                self._stop.wait(_PREPARE_RETRY_S)
            else:
                return

    def _relay_shard(self, shard: int) -> None:
        backoff_s = _BACKOFF_S_MIN
        careful_until = 0.0
        while not self._stop.is_set():
            if self._places is not None and not self._places.acquire(timeout=0.2):
                continue
            try:
                done = self._try_tenure(shard, careful_until)
            except RejectedError as error:
                done = False
                careful_until = time.monotonic() + _CAREFUL_S
                self._say(f"shard {shard}: {error}, see `millstream outbox rejected`")
            except (SourceError, SinkError, ShardTakenError) as error:
                done = False
                if isinstance(error, SinkError):
                    careful_until = time.monotonic() + _CAREFUL_S
                self._say(f"shard {shard}: {error}")
                self._stop.wait(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)
            except InterruptedSinkError:
                return
            except ProgressLostError as error:
                self._say(f"shard {shard} is left alone: {error}")
                self.undecided_shards.append(shard)
                return
            else:
                backoff_s = _BACKOFF_S_MIN
            finally:
                if self._places is not None:
                    self._places.release()
            if done:
                return

    def _try_tenure(self, shard: int, careful_until: float) -> bool:
        """Relay the shard if nobody else does; True when there is nothing more to do."""
        source = self._database.open(shard)
        try:
            if source.acquire():
                return self._tenure(shard, source, careful_until)
            if self._settings.drain and not source.has_pending():
                return True
        finally:
            source.close()
        self._stop.wait(self._settings.standby_s)
        return False

    def _tenure(self, shard: int, source: ShardSource, careful_until: float) -> bool:
        """Relay until told to stop; of a careful tenure, until its time is over."""
        tenure = source.take_over(f"{socket.gethostname()}:{os.getpid()}")
        careful = time.monotonic() < careful_until
        sink = Sink(self._properties, tenure.name, shard, self._stop.is_set, careful=careful)
        try:
            sink.open()
            batch = self._settle(tenure, source, sink)
            source.note_error(None)
            self._say(f"shard {shard}: relaying, {batch} batches before")
            return self._send_all(source, sink, batch, careful_until if careful else None)
        except RejectedError as error:
            # Nothing was committed, and nobody else could: the claim is free.
            source.quarantine(error.errors)
            with self._counts_lock:
                self._rejected += len(error.errors)
            raise
        except (SinkError, ProgressLostError) as error:
            source.note_error(str(error))
            raise
        finally:
            sink.close()

    def _settle(self, tenure: Tenure, source: ShardSource, sink: Sink) -> int:
        """Learn what became of the last batch; the number of the last that is in the topic."""
        match judge(tenure, sink.committed()):
            case Verdict.BASELINE:
                sink.send([], tenure.batch)
            case Verdict.SENT:
                source.finish(keep=self._keeps)
            case Verdict.UNSENT:
                source.release()
                return tenure.batch - 1
            case Verdict.KNOWN:
                pass
        return tenure.batch

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
        """Delete some of what is too old; True when there was no more of it."""
        before_ms = int((time.time() - self._settings.keep_s) * 1000)
        return source.purge(before_ms, _PURGE_ROWS) < _PURGE_ROWS

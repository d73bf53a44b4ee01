"""The interfaces through which a partition meets the rest of the broker.

`Host` is what a partition needs of its broker. `Watcher` and `Reader` are the requests that a
partition notifies. `Counters` and `Latency` are its metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.model.failure import CallbackFailures

if TYPE_CHECKING:
    from millstream.replication.partition import Partition


class Watcher(Protocol):
    """A Fetch request that waits for more records."""

    def more_readable(self) -> None: ...

    def failed(self, error: Exception) -> None:
        """Respond with an error: `more_readable` raised. Does not raise."""
        ...


class Reader(Protocol):
    """A follower's fetch session, as one partition sees it."""

    def more_appended(self, size: int) -> None: ...

    def changed(self) -> None:
        """Handle a new high watermark, log start or leadership."""
        ...


class Counters(Protocol):
    """Totals of the topic that a partition belongs to; plain numbers to add to."""

    bytes_in: int
    bytes_out: int
    messages_in: int
    messages_out: int
    failed_produces: int
    failed_fetches: int


class Latency(Protocol):
    """Records the time from receiving a batch to acknowledging it."""

    def observe(self, value: float) -> None: ...


class Host(Protocol):
    """The services of the broker that a partition uses."""

    def wake_later(self, partition: Partition) -> None:
        """Call `partition.wake` soon: many appends of one loop turn wake each reader once."""
        ...

    def flush(self, partition: Partition) -> None:
        """Fsync the log soon and call `partition.flushed`."""
        ...

    def truncated(self, partition: Partition, offset: int) -> None:
        """Notify background work on the log that it was truncated to `offset`."""
        ...

    def monotonic(self) -> float: ...

    @property
    def failures(self) -> CallbackFailures:
        """Records the failures of callbacks."""
        ...

    def counters(self, partition: Partition) -> tuple[Counters, Latency]: ...

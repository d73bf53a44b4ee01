"""What a relay needs of a database: the port that `postgres.py` and `sqlite.py` implement.

A `ShardSource` is one connection for one shard, used by one thread. Each method is one transaction,
durable when it returns. Methods of an owner raise `ShardTakenError` if another relay has taken over
the shard since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream.client.outbox.takeover import ShardTakeover
from millstream.model.error import MillstreamError


class SourceError(MillstreamError):
    """The database cannot be reached, or rejected a statement. The message is the database's."""


class ShardTakenError(MillstreamError):
    """Another relay has the shard."""


class Event(NamedTuple):
    """A row of the outbox. `headers` is the JSON of the column."""

    id: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    created_ms: int


class RejectedEvent(NamedTuple):
    """An event that Kafka rejects for good, with the reason."""

    id: int
    shard: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    created_ms: int
    rejected_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A batch ends before the row that would exceed a limit. It has at least one row."""

    rows: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of a shard, for people.

    `claimed`: rows of the batch in progress. `active`: a relay has the shard now. `rejected`:
    events that were put aside.
    """

    shard: int
    name: str
    pending: int
    oldest_ms: int | None
    sent: int
    batch: int
    claimed: int
    active: bool
    owner: str | None
    error: str | None
    rejected: int = 0


class ShardSource(Protocol):
    """One shard's rows."""

    def acquire(self) -> bool:
        """Lock the shard until the connection ends. False if another relay has it."""

    def has_pending(self) -> bool:
        """Whether the shard has events that are not known to be sent. Needs no lock."""

    def take_over(self, owner: str) -> ShardTakeover:
        """Begin a new epoch: from now on no other relay can write for this shard."""

    def claim(self, batch: int, limit: BatchLimit, *, keep: bool) -> Sequence[Event]:
        """Finish the claimed batch, if there is one, and claim the next rows as `batch`.

        Finished rows are marked as sent if `keep` is set, else deleted. Without rows to claim the
        batch number does not change.
        """

    def finish(self, *, keep: bool) -> None:
        """Mark the claimed batch as sent."""

    def release(self) -> None:
        """Give up the claimed batch, which is not in the topic. Its rows and number are free
        again."""

    def quarantine(self, rejected: Mapping[int, str]) -> None:
        """As `release`, but move these events, by id, to the rejected ones with their reasons."""

    def purge(self, before_ms: int, rows_max: int) -> int:
        """Delete rows that were sent before `before_ms`. Return their number."""

    def record_error(self, error: str | None) -> None:
        """Store an error for `status`; None removes it."""

    def close(self) -> None:
        """Close the connection and release the lock."""


class Database(Protocol):
    """An outbox. Safe to use from any thread."""

    table: str

    def init(self, shards: int | None, *, notify: bool) -> bool:
        """Create the tables. False if they exist."""

    def upgrade(self) -> None:
        """Create tables that an older Millstream did not create."""

    def shards(self) -> list[int]:
        """Return the numbers of all shards."""

    def name(self) -> str:
        """Return the outbox's unique name (see `schema.py`)."""

    def open(self, shard: int) -> ShardSource:
        """Return a connection to a shard."""

    def watch(self, poll_s: float, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `wake` when rows may have been added, at least every `poll_s`."""

    def status(self) -> list[ShardStatus]:
        """Return the state of all shards."""

    def settle_claim(self, shard: int, batch: int, *, sent: bool) -> int:
        """Resolve a claimed batch by a person's decision. Kafka has `batch` committed.

        Returns the number of rows in the batch.
        """

    # Rejected events; `ids` None: all of them

    def rejected(self, limit: int, ids: Sequence[int] | None = None) -> list[RejectedEvent]:
        """Return the first rejected events by id."""

    def retry(self, ids: Sequence[int] | None) -> int:
        """Make rejected events pending again. Return their number."""

    def discard(self, ids: Sequence[int] | None) -> int:
        """Delete rejected events for good. Return their number."""

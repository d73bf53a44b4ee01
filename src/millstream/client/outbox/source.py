"""What a relay asks of a database: the port that `postgres.py` and `sqlite.py` implement.

A `ShardSource` is one connection for one shard, used by one thread. Each method is one transaction
of its own, durable when it returns. Those that an owner calls fail with `ShardTakenError` if
another relay has taken the shard since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream.client.outbox.takeover import Tenure


class SourceError(Exception):
    """The database can't be reached or refused; the message is the database's."""


class ShardTakenError(Exception):
    """Another relay has the shard."""


class Event(NamedTuple):
    """A row of the outbox. `headers` as the column has them, JSON."""

    id: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    created_ms: int


class RejectedEvent(NamedTuple):
    """An event that Kafka rejects for good, and why."""

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
    """A batch ends before the row that would exceed either; it has at least one row."""

    rows: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """For people. `claimed`: rows of a batch that is on its way. `active`: a relay has it now.
    `rejected`: events put aside."""

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
    def acquire(self) -> bool:
        """Get the shard to oneself until the connection ends; False if another relay has it."""

    def has_pending(self) -> bool:
        """Whether the shard has events that are not known to be sent; anybody may ask."""

    def take_over(self, owner: str) -> Tenure:
        """Begin a new epoch: from here on nobody else writes for this shard."""

    def claim(self, batch: int, limit: BatchLimit, *, keep: bool) -> Sequence[Event]:
        """Finish the batch before, if one is claimed, and claim the next rows as `batch`.

        Finished rows are marked as sent where `keep` is set, else deleted. Without rows to claim
        the number stays what it was.
        """

    def finish(self, *, keep: bool) -> None:
        """The claimed batch is in the topic."""

    def release(self) -> None:
        """The claimed batch is not in the topic: its rows and its number are free again."""

    def quarantine(self, rejected: Mapping[int, str]) -> None:
        """As `release`, but these events, by id, are put aside, each with Kafka's reason."""

    def purge(self, before_ms: int, rows_max: int) -> int:
        """Delete rows that were sent before that time; how many."""

    def note_error(self, error: str | None) -> None:
        """Let `status` show it."""

    def close(self) -> None: ...


class Database(Protocol):
    """Where an outbox is; safe to use from any thread."""

    table: str

    def init(self, shards: int | None, *, notify: bool) -> bool:
        """Make the tables; False if they are there."""

    def upgrade(self) -> None:
        """Make the tables that an older Millstream did not make yet."""

    def shards(self) -> list[int]: ...

    def name(self) -> str:
        """The outbox's own name (see `schema.py`)."""

    def open(self, shard: int) -> ShardSource: ...

    def watch(self, poll_s: float, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `wake` when rows may have been added; at least every `poll_s`."""

    def status(self) -> list[ShardStatus]: ...

    def settle_claim(self, shard: int, batch: int, *, sent: bool) -> int:
        """A person has found out what became of the claimed batch; Kafka is at `batch`.

        Returns the number of rows in question.
        """

    # Events that Kafka rejects; `ids` None: all of them

    def rejected(self, limit: int, ids: Sequence[int] | None = None) -> list[RejectedEvent]:
        """The first of them, by id."""

    def retry(self, ids: Sequence[int] | None) -> int:
        """Have them sent again; how many."""

    def discard(self, ids: Sequence[int] | None) -> int:
        """Delete them for good; how many."""

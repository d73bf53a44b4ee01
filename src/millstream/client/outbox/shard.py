"""One shard of an outbox: the steps of a relay as SQL, the same for every database.

`postgres.py` and `sqlite.py` provide the connection and the few expressions that differ. Statements
use `%(name)s` for parameters, and `{events}`, `{shards}` and `{rejected}` for the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.client.outbox.source import BatchLimit, Event, ShardTakenError
from millstream.client.outbox.takeover import ShardTakeover

_EVENT_COLUMNS = "id, shard, topic, partition, key, value, headers, created_ms"


@dataclass(frozen=True, slots=True)
class ShardSql:
    """The expressions of one database."""

    #: Selects pending events up to a limit of rows and bytes.
    pending: str
    #: The condition for rows of the claimed batch.
    is_claimed: str
    #: The claim as a value of its column.
    claim: str
    #: The time in ms since 1970.
    now_ms: str
    #: Compares two values that may be NULL.
    is_distinct_from: str


class ShardConnection(Protocol):
    """A connection to the database, and the lock of one shard."""

    sql: ShardSql

    def acquire(self) -> bool:
        """Lock the shard until the connection closes. False if another relay has it."""

    def reading(self) -> AbstractContextManager[None]:
        """Run statements that only read."""

    def transaction(self) -> AbstractContextManager[None]:
        """Run statements in one transaction."""

    def execute(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        """Run a statement. The result has `fetchone()`, `fetchall()` and `rowcount`."""

    def encode_claim(self, ids: Sequence[int]) -> Any:
        """Return ids as the value of the column `claimed`."""

    def count_claim(self, claimed: Any) -> int:
        """Return the number of ids in a value of the column `claimed`."""

    def close(self) -> None:
        """Close the connection and release the lock."""


class Shard:
    """A `ShardSource` on a connection."""

    def __init__(self, connection: ShardConnection, shard: int) -> None:
        self._connection = connection
        self._sql = connection.sql
        self._shard = shard
        self._epoch = -1
        #: Whether the shard's row has a claim, as far as this owner knows.
        self._has_claim = False

    def acquire(self) -> bool:
        return self._connection.acquire()

    def has_pending(self) -> bool:
        with self._connection.reading():
            return bool(self._pending(BatchLimit(1, 1)))

    def take_over(self, owner: str) -> ShardTakeover:
        with self._connection.transaction():
            name, epoch, batch, has_claim = self._run(
                "UPDATE {shards} SET epoch = epoch + 1, owner = %(owner)s WHERE shard = %(shard)s"
                " RETURNING name, epoch, batch, claimed IS NOT NULL",
                owner=owner,
            ).fetchone()
        self._epoch, self._has_claim = epoch, bool(has_claim)
        return ShardTakeover(name, epoch, batch, self._has_claim)

    def claim(self, batch: int, limit: BatchLimit, *, keep: bool) -> Sequence[Event]:
        # Without pending events nothing is written: a write would wake the relays that watch.
        if not self._has_claim and not self.has_pending():
            return []
        with self._connection.transaction():
            self._mark_sent(keep=keep)
            events = self._pending(limit)
            ids = [event.id for event in events]
            self._update_row(
                f"claimed = {self._sql.claim}, batch = %(batch)s",
                claimed=self._connection.encode_claim(ids) if ids else None,
                batch=batch if ids else batch - 1,
            )
        self._has_claim = bool(ids)
        return events

    def finish(self, *, keep: bool) -> None:
        with self._connection.transaction():
            self._mark_sent(keep=keep)
            self._update_row("claimed = NULL")
        self._has_claim = False

    def release(self) -> None:
        with self._connection.transaction():
            self._update_row("claimed = NULL, batch = batch - 1")
        self._has_claim = False

    def quarantine(self, rejected: Mapping[int, str]) -> None:
        with self._connection.transaction():
            for number, error in rejected.items():
                self._run(
                    f"INSERT INTO {{rejected}} ({_EVENT_COLUMNS}, rejected_ms, error)"
                    f" SELECT {_EVENT_COLUMNS}, {self._sql.now_ms}, %(error)s FROM {{events}}"
                    " WHERE id = %(id)s",
                    id=number,
                    error=error,
                )
                self._run("DELETE FROM {events} WHERE id = %(id)s", id=number)
            self._update_row("claimed = NULL, batch = batch - 1")
        self._has_claim = False

    def purge(self, before_ms: int, rows_max: int) -> int:
        with self._connection.transaction():
            deleted = self._run(
                "DELETE FROM {events} WHERE id IN (SELECT id FROM {events}"
                " WHERE sent_ms < %(before_ms)s AND shard = %(shard)s LIMIT %(rows_max)s)",
                before_ms=before_ms,
                rows_max=rows_max,
            )
            return int(deleted.rowcount)

    def record_error(self, error: str | None) -> None:
        with self._connection.transaction():
            self._run(
                "UPDATE {shards} SET error = %(error)s WHERE shard = %(shard)s"
                f" AND error {self._sql.is_distinct_from} %(error)s",
                error=error,
            )

    def settle_claim(self, batch: int, *, sent: bool) -> int:
        """Count the claimed batch as sent or not. Return the number of its rows."""
        with self._connection.transaction():
            self._epoch, claimed = self._run(
                "UPDATE {shards} SET epoch = epoch + 1 WHERE shard = %(shard)s"
                " RETURNING epoch, claimed"
            ).fetchone()
            if sent:
                self._mark_sent(keep=True)
            self._update_row("claimed = NULL, error = NULL, batch = %(batch)s", batch=batch)
        return self._connection.count_claim(claimed)

    def close(self) -> None:
        self._connection.close()

    def _pending(self, limit: BatchLimit) -> list[Event]:
        rows = self._run(self._sql.pending, rows=limit.rows, value_bytes=limit.value_bytes)
        return list(map(Event._make, rows.fetchall()))

    def _mark_sent(self, *, keep: bool) -> None:
        """Mark the rows of the claimed batch as sent, or delete them."""
        change = f"UPDATE {{events}} SET sent_ms = {self._sql.now_ms}"
        self._run(f"{change if keep else 'DELETE FROM {events}'} WHERE {self._sql.is_claimed}")

    def _update_row(self, assignments: str, **parameters: Any) -> None:
        changed = self._run(
            f"UPDATE {{shards}} SET {assignments} WHERE shard = %(shard)s AND epoch = %(epoch)s",
            epoch=self._epoch,
            **parameters,
        )
        if changed.rowcount != 1:
            raise ShardTakenError(f"another relay has taken over shard {self._shard}.")

    def _run(self, statement: str, **parameters: Any) -> Any:
        return self._connection.execute(statement, {"shard": self._shard, **parameters})


def settle_claim(shard: Shard, batch: int, *, sent: bool) -> int:
    """Lock the shard, settle its claim and close it. Return the number of rows in the batch."""
    try:
        if not shard.acquire():
            raise ShardTakenError("a relay has the shard now: stop it first.")
        return shard.settle_claim(batch, sent=sent)
    finally:
        shard.close()

"""The SQLite database of the embedded store: one file, one connection, one thread.

Owns the tables and the SQL, without asyncio. Every method blocks, and must be called from the
thread that opened the file. The file is in WAL mode with synchronous=FULL: once `commit` returns,
the changes survive a power failure.

Tables:
    kv       key, value, revision of the last put, lease (NULL without one)
    history  revision, position in the transaction, key, value (NULL for a deletion)
    counter  'revision': the last one; 'compacted': the last one whose history was deleted
The format's number is in PRAGMA user_version. A file with another number is rejected.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from millstream.metadata.store.port import (
    Change,
    CompactedError,
    Condition,
    Delete,
    KeyValue,
    LeaseId,
    MetadataStoreError,
    Put,
    RangeResult,
    TransactResult,
    ValueIs,
    WatchEvent,
    WatchEvents,
)

FORMAT: Final = 1
#: A read of the history stops at the first transaction boundary after this many events.
_EVENTS_PER_READ: Final = 1_000

_TABLES: Final = """
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,
                 lease INTEGER) WITHOUT ROWID;
CREATE INDEX kv_lease ON kv (lease) WHERE lease IS NOT NULL;
CREATE TABLE history (revision INTEGER, position INTEGER, key TEXT NOT NULL, value BLOB,
                      PRIMARY KEY (revision, position)) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('revision', 0), ('compacted', 0);
"""
_UPSERT: Final = (
    "INSERT INTO kv VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
    " value = excluded.value, revision = excluded.revision, lease = excluded.lease"
)


class SqliteFile:
    """The open database. Changes between `begin` and `commit` are visible only here."""

    __slots__ = ("_compacted", "_connection", "_history_count", "_history_max", "revision")

    def __init__(self, path: Path, history_max: int) -> None:
        self._history_max = history_max
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=2)
        try:
            self._prepare(path)
            self._load_counters()
        except sqlite3.Error as error:
            self._connection.close()
            raise MetadataStoreError(f"cannot use {path} as metadata store: {error}") from error
        except MetadataStoreError:
            self._connection.close()
            raise

    def _prepare(self, path: Path) -> None:
        execute = self._connection.execute
        # Only one process may open the file, so no shared memory file is needed.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA cache_size = -8192")
        execute("BEGIN IMMEDIATE")
        (found,) = execute("PRAGMA user_version").fetchone()
        if found == 0:
            for statement in _TABLES.split(";\n"):
                execute(statement)
            execute(f"PRAGMA user_version = {FORMAT}")
        elif found != FORMAT:
            raise MetadataStoreError(
                f"{path} has format {found}; this version reads format {FORMAT}"
            )
        execute("COMMIT")

    def _load_counters(self) -> None:
        counters = dict(self._connection.execute("SELECT name, value FROM counter"))
        self.revision: int = counters["revision"]
        self._compacted: int = counters["compacted"]
        (self._history_count,) = self._connection.execute("SELECT count(*) FROM history").fetchone()

    def close(self) -> None:
        self._connection.close()

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make all changes since `begin` durable."""
        self._trim_history()
        self._connection.executemany(
            "UPDATE counter SET value = ? WHERE name = ?",
            ((self.revision, "revision"), (self._compacted, "compacted")),
        )
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo all changes since `begin`."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._load_counters()

    def get(self, key: str) -> KeyValue | None:
        row = self._connection.execute(
            "SELECT key, value, revision FROM kv WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else KeyValue._make(row)

    def range(self, prefix: str) -> RangeResult:
        rows = self._connection.execute(
            "SELECT key, value, revision FROM kv WHERE key >= ? AND key < ? ORDER BY key",
            (prefix, _after_prefix(prefix)),
        )
        return RangeResult(self.revision, list(map(KeyValue._make, rows)))

    def transact(self, compares: Iterable[Condition], changes: Sequence[Change]) -> TransactResult:
        """Run a transaction. Called between `begin` and `commit`."""
        if not all(map(self._holds, compares)):
            return TransactResult(False, self.revision)
        if changes:
            self._apply(changes)
        return TransactResult(True, self.revision)

    def delete_leased(self, leases: Iterable[LeaseId]) -> None:
        """Delete the keys of these leases, as one transaction."""
        deletes: list[Delete] = []
        for lease in leases:
            rows = self._connection.execute("SELECT key FROM kv WHERE lease = ?", (lease,))
            deletes.extend(Delete(key) for (key,) in rows)
        self.transact((), deletes)

    def delete_all_leased(self) -> None:
        """Delete every key that has a lease, as one transaction."""
        rows = self._connection.execute("SELECT key FROM kv WHERE lease IS NOT NULL")
        self.transact((), [Delete(key) for (key,) in rows])

    def events(self, prefix: str, from_revision: int) -> WatchEvents:
        """Return changes from `from_revision` on; only the first ones if there are many."""
        if from_revision <= self._compacted:
            raise CompactedError(from_revision, self._compacted + 1)
        rows = self._connection.execute(
            "SELECT key, value, revision FROM history WHERE revision >= ? AND key >= ? AND key < ?"
            " ORDER BY revision, position",
            (from_revision, prefix, _after_prefix(prefix)),
        )
        events: list[WatchEvent] = []
        for revision, group in groupby(
            map(WatchEvent._make, rows), key=lambda event: event.revision
        ):
            events.extend(group)
            if len(events) >= _EVENTS_PER_READ:
                rows.close()
                return WatchEvents(revision, events)
        return WatchEvents(self.revision, events)

    def _holds(self, compare: Condition) -> bool:
        found = self.get(compare.key)
        if isinstance(compare, ValueIs):
            return found is not None and found.value == compare.value
        return (found.revision if found else 0) == compare.revision

    def _apply(self, changes: Sequence[Change]) -> None:
        self.revision = revision = self.revision + 1
        puts = [change for change in changes if isinstance(change, Put)]
        if puts:
            rows = ((put.key, put.value, revision, put.lease) for put in puts)
            self._connection.executemany(_UPSERT, rows)
        if len(puts) != len(changes):
            keys = ((change.key,) for change in changes if not isinstance(change, Put))
            self._connection.executemany("DELETE FROM kv WHERE key = ?", keys)
        self._connection.executemany(
            "INSERT INTO history VALUES (?, ?, ?, ?)",
            (
                (revision, position, change.key, change.value if isinstance(change, Put) else None)
                for position, change in enumerate(changes)
            ),
        )
        self._history_count += len(changes)

    def _trim_history(self) -> None:
        # A quarter more than the limit, so that not every small transaction deletes rows.
        if self._history_count <= self._history_max + self._history_max // 4:
            return
        (last_dropped,) = self._connection.execute(
            "SELECT revision FROM history ORDER BY revision DESC, position DESC LIMIT 1 OFFSET ?",
            (self._history_max,),
        ).fetchone()
        dropped = self._connection.execute(
            "DELETE FROM history WHERE revision <= ?", (last_dropped,)
        )
        self._history_count -= dropped.rowcount
        self._compacted = last_dropped


def _after_prefix(prefix: str) -> str:
    """Return the first text after all texts with this prefix."""
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}" if prefix else "\U0010ffff"

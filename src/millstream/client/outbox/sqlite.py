"""An outbox in a SQLite file.

SQLite has one writer at a time, so there is one shard and one active relay; others stand by. The
shard belongs to the process that has a lock on `<file>-<table>.lock`. The operating system releases
the lock when that process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from millstream.client.outbox.schema import TABLE_DEFAULT, OutboxSchema, with_tables
from millstream.client.outbox.shard import Shard, ShardSql, settle_claim
from millstream.client.outbox.source import RejectedEvent, ShardStatus, SourceError
from millstream.client.sql import checked_name, execute

#: How long a writer waits for another one.
_BUSY_TIMEOUT_S: Final = 30.0
#: How often the watcher asks SQLite whether the file changed. That reads a few bytes of memory.
_CHECK_S: Final = 0.02

_SQL: Final = ShardSql(
    pending=(
        "SELECT id, topic, partition, key, value, headers, created_ms FROM ("
        " SELECT *, sum(coalesce(length(value), 0)) OVER (ORDER BY id)"
        "  - coalesce(length(value), 0) AS bytes_before FROM ("
        "  SELECT * FROM {events} WHERE shard = %(shard)s AND sent_ms IS NULL"
        "  ORDER BY id LIMIT %(rows)s)"
        ") WHERE bytes_before < %(value_bytes)s ORDER BY id"
    ),
    is_claimed=(
        "id IN (SELECT value FROM json_each("
        "(SELECT claimed FROM {shards} WHERE shard = %(shard)s)))"
    ),
    claim="%(claimed)s",
    now_ms="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    is_distinct_from="IS NOT",
)
_STATUS: Final = (
    "SELECT shard, name, count(id) FILTER (WHERE sent_ms IS NULL),"
    " min(created_ms) FILTER (WHERE sent_ms IS NULL),"
    " count(id) FILTER (WHERE sent_ms IS NOT NULL), batch, claimed, owner, error,"
    " (SELECT count(*) FROM {rejected})"
    " FROM {shards} LEFT JOIN {events} USING (shard) GROUP BY shard"
)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the driver as SourceError."""
    try:
        yield
    except sqlite3.Error as error:
        if "no such table" in str(error):
            message = "there is no outbox: create it with `millstream outbox init`."
            raise SourceError(message) from error
        raise SourceError(f"SQLite: {error}") from error


class SqliteDatabase:
    """A `Database` in a SQLite file."""

    def __init__(self, path: str, table: str = TABLE_DEFAULT) -> None:
        self.path = path
        self.table = checked_name(table)

    def connect(self) -> sqlite3.Connection:
        """Return a new connection. SQLite would create a missing file."""
        if not os.path.exists(self.path):
            raise SourceError(
                f"the file {self.path!r} does not exist: correct its path, or create the outbox "
                "with `millstream outbox init`."
            )
        return sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    def init(self, shards: int | None, *, notify: bool) -> bool:
        if shards not in (None, 1):
            raise SourceError("SQLite has one writer at a time: its outbox has one shard.")
        try:
            with open(self.path, "ab"):
                pass
        except OSError as error:
            reason = error.strerror or error
            raise SourceError(f"the file {self.path!r} cannot be opened: {reason}.") from error
        with self._writing() as connection:
            query = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if connection.execute(query, [self.table]).fetchone():
                return False
            for statement in OutboxSchema(self.table, 1).statements("sqlite"):
                connection.execute(statement)
        return True

    def upgrade(self) -> None:
        schema = OutboxSchema(self.table, 1)
        with self._writing() as connection:
            query = "SELECT count(*) FROM sqlite_master WHERE name IN (?, ?)"
            found = connection.execute(query, [self.table, schema.rejected_table]).fetchone()
            if found[0] == 1:
                connection.execute(schema.quarantine("sqlite"))

    def shards(self) -> list[int]:
        return [row[0] for row in self._read("SELECT shard FROM {shards}")]

    def name(self) -> str:
        return str(self._read("SELECT name FROM {shards}")[0][0])

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return connection.execute(with_tables(statement, self.table)).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with _translated():
            connection = self.connect()
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. Closing the connection rolls back after an error."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def open(self, shard: int) -> Shard:
        with _translated():
            connection = _SqliteConnection(self.connect(), self.table, self._lock_path)
            return Shard(connection, shard)

    @property
    def _lock_path(self) -> str:
        return f"{self.path}-{self.table}.lock"

    @contextmanager
    def watch(self, poll_s: float, wake: Callable[[], None]) -> Iterator[None]:
        ended = threading.Event()
        arguments = (min(poll_s, _CHECK_S), wake, ended)
        watcher = threading.Thread(target=self._watch, args=arguments, name="outbox-watch")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, check_s: float, wake: Callable[[], None], ended: threading.Event) -> None:
        connection = self.connect()
        known = None
        while not ended.wait(check_s):
            try:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.OperationalError:
                # The file is busy: another process writes.
                version = None
            if version != known:
                known = version
                wake()
        connection.close()

    def status(self) -> list[ShardStatus]:
        rows = self._read(_STATUS)
        with _FileLock(self._lock_path) as lock:
            active = not lock.acquire()
        return [
            ShardStatus(
                *(shard, name, pending, oldest, sent, batch),
                claimed=len(json.loads(claimed or "[]")),
                active=active,
                owner=owner,
                error=error,
                rejected=aside,
            )
            for shard, name, pending, oldest, sent, batch, claimed, owner, error, aside in rows
        ]

    def settle_claim(self, shard: int, batch: int, *, sent: bool) -> int:
        return settle_claim(self.open(shard), batch, sent=sent)

    def rejected(self, limit: int, ids: Sequence[int] | None = None) -> list[RejectedEvent]:
        chosen, parameters = self._chosen(ids)
        with self._connected() as connection:
            rows = connection.execute(
                f"SELECT * FROM {self.table}_rejected WHERE {chosen} ORDER BY id LIMIT ?",
                [*parameters, limit],
            )
            return list(map(RejectedEvent._make, rows))

    def retry(self, ids: Sequence[int] | None) -> int:
        columns = "id, topic, partition, key, value, headers, created_ms"
        chosen, parameters = self._chosen(ids)
        with self._writing() as connection:
            connection.execute(
                f"INSERT INTO {self.table} ({columns})"
                f" SELECT {columns} FROM {self.table}_rejected WHERE {chosen}",
                parameters,
            )
            return self._delete_rejected(connection, ids)

    def discard(self, ids: Sequence[int] | None) -> int:
        with self._writing() as connection:
            return self._delete_rejected(connection, ids)

    def _delete_rejected(self, connection: sqlite3.Connection, ids: Sequence[int] | None) -> int:
        chosen, parameters = self._chosen(ids)
        statement = f"DELETE FROM {self.table}_rejected WHERE {chosen}"
        return connection.execute(statement, parameters).rowcount

    def _chosen(self, ids: Sequence[int] | None) -> tuple[str, list[str]]:
        """Return a condition and its parameters."""
        if ids is None:
            return "TRUE", []
        return "id IN (SELECT value FROM json_each(?))", [json.dumps(list(ids))]


class _FileLock:
    """A lock on a file, which ends with the process that has it."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`

    def acquire(self) -> bool:
        """Lock the file. False if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


class _SqliteConnection:
    """A `ShardConnection` to a SQLite file."""

    sql = _SQL

    def __init__(self, connection: sqlite3.Connection, table: str, lock_path: str) -> None:
        self._connection = connection
        self._table = table
        self._lock = _FileLock(lock_path)

    def acquire(self) -> bool:
        return self._lock.acquire()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with _translated():
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def execute(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        return execute(self._connection, with_tables(statement, self._table), parameters)

    def encode_claim(self, ids: Sequence[int]) -> Any:
        return json.dumps(list(ids))

    def count_claim(self, claimed: Any) -> int:
        return len(json.loads(claimed or "[]"))

    def close(self) -> None:
        self._connection.close()
        self._lock.close()

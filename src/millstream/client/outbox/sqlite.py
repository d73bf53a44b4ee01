"""An outbox in a SQLite file.

SQLite has one writer at a time, so there is one shard, and one relay at work; others stand by. The
shard belongs to the process that has a lock on `<file>-<table>.lock`, which the system frees when
that process is gone.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from millstream.client.outbox.schema import TABLE_DEFAULT, OutboxSchema
from millstream.client.outbox.source import (
    BatchLimit,
    Event,
    RejectedEvent,
    ShardStatus,
    ShardTakenError,
    SourceError,
)
from millstream.client.outbox.takeover import Tenure
from millstream.client.sql import checked_name

#: How long a writer waits for another one.
_BUSY_TIMEOUT_S: Final = 30.0
#: How often the file is asked whether anybody wrote to it; that reads a few bytes of memory.
_LOOK_S: Final = 0.02


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if "no such table" in str(error):
            message = "there is no outbox: make it with `millstream outbox init`."
            raise SourceError(message) from error
        raise SourceError(f"SQLite: {error}") from error


class SqliteDatabase:
    """See `source.Database`."""

    def __init__(self, path: str, table: str = TABLE_DEFAULT) -> None:
        self.path = path
        self.table = checked_name(table)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    def init(self, shards: int | None, *, notify: bool) -> bool:
        if shards not in (None, 1):
            raise SourceError("SQLite has one writer at a time: its outbox has one shard.")
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
        with self._connected() as connection:
            rows = connection.execute(f"SELECT shard FROM {self.table}_shard").fetchall()
        return [row[0] for row in rows]

    def name(self) -> str:
        with self._connected() as connection:
            row = connection.execute(f"SELECT name FROM {self.table}_shard").fetchone()
        return str(row[0])

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
        """One transaction; what raises in it is rolled back when the connection ends."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def open(self, shard: int) -> SqliteShard:
        with _translated():
            return SqliteShard(self.connect(), self.table, shard, self._lock_path)

    @property
    def _lock_path(self) -> str:
        return f"{self.path}-{self.table}.lock"

    @contextmanager
    def watch(self, poll_s: float, wake: Callable[[], None]) -> Iterator[None]:
        ended = threading.Event()
        arguments = (min(poll_s, _LOOK_S), wake, ended)
        watcher = threading.Thread(target=self._look, args=arguments, name="outbox-watch")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self, look_s: float, wake: Callable[[], None], ended: threading.Event) -> None:
        connection = self.connect()
        known = None
        while not ended.wait(look_s):
            try:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.OperationalError:
                # Busy: somebody writes.
                version = None
            if version != known:
                known = version
                wake()
        connection.close()

    def status(self) -> list[ShardStatus]:
        statement = (
            "SELECT shard, name, count(id) FILTER (WHERE sent_ms IS NULL),"
            " min(created_ms) FILTER (WHERE sent_ms IS NULL),"
            " count(id) FILTER (WHERE sent_ms IS NOT NULL), batch, claimed, owner, error,"
            f" (SELECT count(*) FROM {self.table}_rejected)"
            f" FROM {self.table}_shard LEFT JOIN {self.table} USING (shard) GROUP BY shard"
        )
        with self._connected() as connection:
            rows = connection.execute(statement).fetchall()
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
        source = self.open(shard)
        try:
            if not source.acquire():
                raise ShardTakenError("a relay is at work now: stop it first.")
            return source.settle_claim(batch, sent=sent)
        finally:
            source.close()

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
            return self._delete(connection, ids)

    def discard(self, ids: Sequence[int] | None) -> int:
        with self._writing() as connection:
            return self._delete(connection, ids)

    def _delete(self, connection: sqlite3.Connection, ids: Sequence[int] | None) -> int:
        chosen, parameters = self._chosen(ids)
        statement = f"DELETE FROM {self.table}_rejected WHERE {chosen}"
        return connection.execute(statement, parameters).rowcount

    def _chosen(self, ids: Sequence[int] | None) -> tuple[str, list[str]]:
        """A condition, and its parameters."""
        if ids is None:
            return "TRUE", []
        return "id IN (SELECT value FROM json_each(?))", [json.dumps(list(ids))]


class _FileLock:
    """A lock that ends with its holder."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`

    def acquire(self) -> bool:
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
        self._file.close()


class SqliteShard:
    """See `source.ShardSource`."""

    def __init__(
        self, connection: sqlite3.Connection, table: str, shard: int, lock_path: str
    ) -> None:
        self._connection = connection
        self._table = table
        self._shard = shard
        self._lock = _FileLock(lock_path)
        self._epoch = -1
        #: Whether the shard's row has a claim, as far as this owner knows.
        self._claimed = False

    def acquire(self) -> bool:
        return self._lock.acquire()

    def has_pending(self) -> bool:
        with _translated():
            return bool(self._pending(BatchLimit(1, 1)))

    def take_over(self, owner: str) -> Tenure:
        with self._transaction():
            row = self._run(
                "UPDATE {shards} SET epoch = epoch + 1, owner = :owner WHERE shard = :shard"
                " RETURNING name, epoch, batch, claimed IS NOT NULL",
                owner=owner,
            ).fetchone()
        tenure = Tenure(row[0], row[1], row[2], bool(row[3]))
        self._epoch, self._claimed = tenure.epoch, tenure.claimed
        return tenure

    def claim(self, batch: int, limit: BatchLimit, *, keep: bool) -> Sequence[Event]:
        with _translated():
            if not self._claimed and not self._pending(BatchLimit(1, 1)):
                # Nothing is written: that would wake whoever watches the file.
                return []
        with self._transaction():
            self._mark_sent(keep=keep)
            events = self._pending(limit)
            self._update(
                "claimed = :claimed, batch = :batch",
                claimed=json.dumps([event.id for event in events]) if events else None,
                batch=batch if events else batch - 1,
            )
        self._claimed = bool(events)
        return events

    def finish(self, *, keep: bool) -> None:
        with self._transaction():
            self._mark_sent(keep=keep)
            self._update("claimed = NULL")
        self._claimed = False

    def release(self) -> None:
        with self._transaction():
            self._update("claimed = NULL, batch = batch - 1")
        self._claimed = False

    def quarantine(self, rejected: Mapping[int, str]) -> None:
        columns = "id, shard, topic, partition, key, value, headers, created_ms"
        now_ms = time.time_ns() // 1_000_000
        with self._transaction():
            for number, error in rejected.items():
                self._run(
                    f"INSERT INTO {{rejected}} ({columns}, rejected_ms, error)"
                    f" SELECT {columns}, :now_ms, :error FROM {{events}} WHERE id = :id",
                    id=number,
                    error=error,
                    now_ms=now_ms,
                )
                self._run("DELETE FROM {events} WHERE id = :id", id=number)
            self._update("claimed = NULL, batch = batch - 1")
        self._claimed = False

    def purge(self, before_ms: int, rows_max: int) -> int:
        with self._transaction():
            return self._run(
                "DELETE FROM {events} WHERE id IN (SELECT id FROM {events}"
                " WHERE sent_ms < :before_ms LIMIT :rows_max)",
                before_ms=before_ms,
                rows_max=rows_max,
            ).rowcount

    def note_error(self, error: str | None) -> None:
        with self._transaction():
            self._run(
                "UPDATE {shards} SET error = :error WHERE shard = :shard AND error IS NOT :error",
                error=error,
            )

    def settle_claim(self, batch: int, *, sent: bool) -> int:
        with self._transaction():
            row = self._run(
                "UPDATE {shards} SET epoch = epoch + 1 WHERE shard = :shard"
                " RETURNING epoch, claimed"
            ).fetchone()
            self._epoch, claimed = row
            if sent:
                self._mark_sent(keep=True)
            self._update("claimed = NULL, error = NULL, batch = :batch", batch=batch)
        return len(json.loads(claimed or "[]"))

    def close(self) -> None:
        self._connection.close()
        self._lock.close()

    def _pending(self, limit: BatchLimit) -> list[Event]:
        rows = self._run(
            "SELECT id, topic, partition, key, value, headers, created_ms FROM ("
            " SELECT *, sum(coalesce(length(value), 0)) OVER (ORDER BY id)"
            "  - coalesce(length(value), 0) AS bytes_before FROM ("
            "  SELECT * FROM {events} WHERE shard = :shard AND sent_ms IS NULL"
            "  ORDER BY id LIMIT :rows)"
            ") WHERE bytes_before < :value_bytes ORDER BY id",
            rows=limit.rows,
            value_bytes=limit.value_bytes,
        )
        return list(map(Event._make, rows))

    def _mark_sent(self, *, keep: bool) -> None:
        claimed = (
            "id IN (SELECT value FROM json_each("
            "(SELECT claimed FROM {shards} WHERE shard = :shard)))"
        )
        if keep:
            sent = "UPDATE {events} SET sent_ms = :now_ms WHERE " + claimed
            self._run(sent, now_ms=time.time_ns() // 1_000_000)
        else:
            self._run("DELETE FROM {events} WHERE " + claimed)

    def _update(self, assignments: str, **parameters: Any) -> None:
        changed = self._run(
            "UPDATE {shards} SET " + assignments + " WHERE shard = :shard AND epoch = :epoch",
            epoch=self._epoch,
            **parameters,
        )
        if changed.rowcount != 1:
            raise ShardTakenError("another relay has taken over.")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _run(self, statement: str, **parameters: Any) -> sqlite3.Cursor:
        fitted = statement.replace("{events}", self._table)
        fitted = fitted.replace("{shards}", f"{self._table}_shard")
        fitted = fitted.replace("{rejected}", f"{self._table}_rejected")
        return self._connection.execute(fitted, {"shard": self._shard, **parameters})

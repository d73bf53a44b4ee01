"""Processed messages in SQLite or PostgreSQL.

`<table>`: message_id, token (NULL: done), expires_s (seconds since the epoch, by the database's
clock). `complete` deletes expired rows now and then.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from millstream.client.dedup.store import Claim, StoreError
from millstream.client.sql import Dialect, checked_name, dialect_of, execute, require_transaction

TABLE_DEFAULT: Final = "millstream_processed"

Result = TypeVar("Result")

_PURGE_EVERY_S: Final = 60.0
_PURGE_ROWS: Final = 10_000
_NOW: Final[dict[Dialect, str]] = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}


def table_definition(table: str = TABLE_DEFAULT) -> list[str]:
    """Return the SQL that creates the table, the same for both databases."""
    plain = table.rpartition(".")[2]
    return [
        f"""CREATE TABLE IF NOT EXISTS {checked_name(table)} (
    message_id TEXT PRIMARY KEY, token TEXT, expires_s DOUBLE PRECISION NOT NULL)""",
        f"CREATE INDEX IF NOT EXISTS {plain}_expiry ON {table} (expires_s)",
    ]


def record_once(
    handle: Any, message_id: str, ttl: float = 7 * 86_400.0, table: str = TABLE_DEFAULT
) -> bool:
    """Record a message inside the caller's transaction. False if it was recorded before.

    With the application's write in the same transaction this is exactly once, whatever crashes. Two
    transactions with the same message wait for each other.
    """
    require_transaction(handle)
    now = _NOW[dialect_of(handle)]
    statement = (
        f"INSERT INTO {checked_name(table)} (message_id, expires_s)"
        f" VALUES (%(message_id)s, {now} + %(ttl_s)s) ON CONFLICT (message_id) DO UPDATE"
        f" SET token = NULL, expires_s = excluded.expires_s WHERE {table}.expires_s < {now}"
    )
    changed = execute(handle, statement, {"message_id": message_id, "ttl_s": ttl})
    return bool(changed.rowcount == 1)


class SqlStore:
    """A `Store` in a SQL database; `sqlite_store` and `postgres_store` create it.

    `connect` returns a connection that commits each statement, to a database that has the table.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        failures: tuple[type[Exception], ...],
        table: str = TABLE_DEFAULT,
    ) -> None:
        self._connect = connect
        self._failures = failures
        self._table = checked_name(table)
        self._lock = threading.Lock()
        self._connection: Any = None
        self._purge_at = 0.0

    def claim(self, message_id: str, token: str, lease_s: float) -> Claim:
        return self._with_connection(lambda: self._claim(message_id, token, lease_s))

    def _claim(self, message_id: str, token: str, lease_s: float) -> Claim:
        taken = self._run(
            "INSERT INTO {table} AS held (message_id, token, expires_s)"
            " VALUES (%(message_id)s, %(token)s, {now} + %(lease_s)s)"
            " ON CONFLICT (message_id) DO UPDATE"
            " SET token = excluded.token, expires_s = excluded.expires_s"
            " WHERE held.expires_s < {now}",
            message_id=message_id,
            token=token,
            lease_s=lease_s,
        )
        if taken.rowcount == 1:
            return Claim.TAKEN
        found = self._run(
            "SELECT token FROM {table} WHERE message_id = %(message_id)s", message_id=message_id
        ).fetchone()
        # The claim was released in between: the next try gets it.
        return Claim.BUSY if found is None or found[0] is not None else Claim.DONE

    def complete(self, message_id: str, token: str, ttl_s: float) -> bool:
        def work() -> bool:
            changed = self._run(
                "UPDATE {table} SET token = NULL, expires_s = {now} + %(ttl_s)s"
                " WHERE message_id = %(message_id)s AND token = %(token)s",
                message_id=message_id,
                token=token,
                ttl_s=ttl_s,
            )
            self._purge()
            return bool(changed.rowcount == 1)

        return self._with_connection(work)

    def release(self, message_id: str, token: str) -> None:
        self._with_connection(
            lambda: self._run(
                "DELETE FROM {table} WHERE message_id = %(message_id)s AND token = %(token)s",
                message_id=message_id,
                token=token,
            )
        )

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _purge(self) -> None:
        if time.monotonic() >= self._purge_at:
            self._run(
                "DELETE FROM {table} WHERE message_id IN (SELECT message_id FROM {table}"
                " WHERE expires_s < {now} LIMIT %(rows)s)",
                rows=_PURGE_ROWS,
            )
            self._purge_at = time.monotonic() + _PURGE_EVERY_S

    def _run(self, statement: str, **parameters: Any) -> Any:
        now = _NOW[dialect_of(self._connection)]
        fitted = statement.replace("{table}", self._table).replace("{now}", now)
        return execute(self._connection, fitted, parameters)

    def _with_connection(self, work: Callable[[], Result]) -> Result:
        """Run `work` with a connection. A connection that failed is not used again."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return work()
            except self._failures as error:
                self._disconnect()
                raise StoreError(f"the store of processed messages: {error}") from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def sqlite_store(path: str, table: str = TABLE_DEFAULT) -> SqlStore:
    """Return a store in a SQLite file, for consumers on one machine."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        for statement in table_definition(table):
            connection.execute(statement)
        return connection

    return SqlStore(connect, (sqlite3.Error,), table)


def postgres_store(address: str, table: str = TABLE_DEFAULT) -> SqlStore:
    """Return a store in PostgreSQL; needs `millstream[postgresql]`."""
    import psycopg

    def connect() -> Any:
        connection = psycopg.connect(address, autocommit=True, connect_timeout=10)
        with connection.transaction():
            # Of two processes that create the same table at once, one would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [table])
            for statement in table_definition(table):
                connection.execute(statement)
        return connection

    return SqlStore(connect, (psycopg.Error,), table)

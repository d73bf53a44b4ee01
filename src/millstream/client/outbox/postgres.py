"""An outbox in PostgreSQL.

A shard belongs to the session that has its advisory lock. PostgreSQL releases the lock when that
session's process ends. Writes are checked against the epoch in the shard's row. So a lock that
fails, for example behind a connection pooler, costs time but never order or events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import Connection
from psycopg.rows import class_row, tuple_row

from millstream.client.outbox.schema import (
    SHARDS_DEFAULT,
    TABLE_DEFAULT,
    OutboxSchema,
    with_tables,
)
from millstream.client.outbox.shard import Shard, ShardSql, settle_claim
from millstream.client.outbox.source import RejectedEvent, ShardStatus, SourceError
from millstream.client.sql import checked_name

_CONNECT_TIMEOUT_S: Final = 10
#: The longest single wait of the listener, and so the time that it may take to end.
_LISTEN_SLICE_S: Final = 0.5
_LISTEN_RETRY_S: Final = 1.0

_SQL: Final = ShardSql(
    pending=(
        "SELECT id, topic, partition, key, value, headers::text, created_ms FROM ("
        " SELECT *, sum(coalesce(octet_length(value), 0)) OVER (ORDER BY id)"
        "  - coalesce(octet_length(value), 0) AS bytes_before FROM ("
        "  SELECT id, topic, partition, key, value, headers, created_ms FROM {events}"
        "  WHERE shard = %(shard)s AND sent_ms IS NULL ORDER BY id LIMIT %(rows)s) AS head"
        ") AS sized WHERE bytes_before < %(value_bytes)s ORDER BY id"
    ),
    is_claimed="id = ANY ((SELECT claimed FROM {shards} WHERE shard = %(shard)s)::bigint[])",
    claim="%(claimed)s::bigint[]",
    now_ms="(extract(epoch FROM now()) * 1000)::bigint",
    is_distinct_from="IS DISTINCT FROM",
)
_LOCK: Final = (
    "SELECT pg_try_advisory_lock(hashtext(name), shard) FROM {shards} WHERE shard = %(shard)s"
)
_STATUS: Final = (
    "SELECT shard, name, count(id) FILTER (WHERE sent_ms IS NULL) AS pending,"
    " min(created_ms) FILTER (WHERE sent_ms IS NULL) AS oldest_ms,"
    " count(id) FILTER (WHERE sent_ms IS NOT NULL) AS sent, batch,"
    " coalesce(cardinality(claimed), 0) AS claimed,"
    " EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
    "  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    "  AND classid = (hashtext(name)::bigint & 4294967295)::oid"
    "  AND objid = shard::oid AND objsubid = 2) AS active,"
    " owner, error,"
    " (SELECT count(*) FROM {rejected} AS aside WHERE aside.shard = {shards}.shard) AS rejected"
    " FROM {shards} LEFT JOIN {events} USING (shard) GROUP BY shard ORDER BY shard"
)
_IS_CHOSEN: Final = "%(all)s OR id = ANY (%(ids)s::bigint[])"


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the driver as SourceError."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise SourceError("there is no outbox: create it with `millstream outbox init`.") from error
    except psycopg.Error as error:
        raise SourceError(f"PostgreSQL: {str(error).strip() or type(error).__name__}") from error


class PostgresDatabase:
    """A `Database` in PostgreSQL. `address` is a connection string."""

    def __init__(self, address: str, table: str = TABLE_DEFAULT) -> None:
        self.address = address
        self.table = checked_name(table)

    def connect(self) -> Connection[Any]:
        """Return a new connection."""
        return psycopg.connect(
            self.address,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name="millstream-outbox",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        )

    def init(self, shards: int | None, *, notify: bool) -> bool:
        schema = OutboxSchema(self.table, shards or SHARDS_DEFAULT, notify)
        with _translated(), self.connect() as connection:
            found = connection.execute("SELECT to_regclass(%s)", [self.table]).fetchone()
            if found is not None and found[0] is not None:
                return False
            for statement in schema.statements("postgresql"):
                connection.execute(statement)
        return True

    def upgrade(self) -> None:
        schema = OutboxSchema(self.table)
        with _translated(), self.connect() as connection:
            query = "SELECT to_regclass(%s), to_regclass(%s)"
            found = connection.execute(query, [self.table, schema.rejected_table]).fetchone()
            if found is not None and found[0] is not None and found[1] is None:
                connection.execute(schema.quarantine("postgresql"))

    def shards(self) -> list[int]:
        return [row[0] for row in self._read("SELECT shard FROM {shards} ORDER BY shard")]

    def name(self) -> str:
        return str(self._read("SELECT name FROM {shards} ORDER BY shard LIMIT 1")[0][0])

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        with _translated(), self.connect() as connection:
            return connection.execute(with_tables(statement, self.table)).fetchall()

    def open(self, shard: int) -> Shard:
        with _translated():
            return Shard(_PostgresConnection(self.connect(), self.table, shard), shard)

    @contextmanager
    def watch(self, poll_s: float, wake: Callable[[], None]) -> Iterator[None]:
        ended = threading.Event()
        arguments = (poll_s, wake, ended)
        listener = threading.Thread(target=self._listen, args=arguments, name="outbox-listen")
        listener.start()
        try:
            yield
        finally:
            ended.set()
            listener.join()

    def _listen(self, poll_s: float, wake: Callable[[], None], ended: threading.Event) -> None:
        """Call `wake` on notifications. Without a connection the shards only poll."""
        channel = self.table.rpartition(".")[2]
        while not ended.is_set():
            try:
                with self.connect() as connection:
                    connection.autocommit = True
                    connection.execute(f"LISTEN {channel}")
                    # Rows that were inserted before sent no notification here.
                    wake()
                    while not ended.is_set():
                        slice_s = min(poll_s, _LISTEN_SLICE_S)
                        for _ in connection.notifies(timeout=slice_s, stop_after=1):
                            wake()
            except psycopg.Error:
                ended.wait(_LISTEN_RETRY_S)

    def status(self) -> list[ShardStatus]:
        with _translated(), self.connect() as connection:
            cursor = connection.cursor(row_factory=class_row(ShardStatus))
            return cursor.execute(with_tables(_STATUS, self.table)).fetchall()

    def settle_claim(self, shard: int, batch: int, *, sent: bool) -> int:
        return settle_claim(self.open(shard), batch, sent=sent)

    def rejected(self, limit: int, ids: Sequence[int] | None = None) -> list[RejectedEvent]:
        statement = with_tables(
            "SELECT id, shard, topic, partition, key, value, headers::text, created_ms,"
            " rejected_ms, error FROM {rejected}"
            f" WHERE {_IS_CHOSEN} ORDER BY id LIMIT %(limit)s",
            self.table,
        )
        with _translated(), self.connect() as connection:
            cursor = connection.cursor(row_factory=tuple_row)
            cursor.execute(statement, {"limit": limit, **_chosen(ids)})
            return list(map(RejectedEvent._make, cursor.fetchall()))

    def retry(self, ids: Sequence[int] | None) -> int:
        columns = "id, topic, partition, key, value, headers, created_ms"
        return self._delete_rejected(
            f"INSERT INTO {{events}} ({columns}) OVERRIDING SYSTEM VALUE"
            f" SELECT {columns} FROM deleted",
            ids,
        )

    def discard(self, ids: Sequence[int] | None) -> int:
        return self._delete_rejected("SELECT count(*) FROM deleted", ids)

    def _delete_rejected(self, following: str, ids: Sequence[int] | None) -> int:
        """Delete rejected events, and run `following` on them. Return their number."""
        with _translated(), self.connect() as connection:
            row = connection.execute(
                with_tables(f"SELECT count(*) FROM {{rejected}} WHERE {_IS_CHOSEN}", self.table),
                _chosen(ids),
            ).fetchone()
            deleting = f"WITH deleted AS (DELETE FROM {{rejected}} WHERE {_IS_CHOSEN} RETURNING *)"
            connection.execute(with_tables(f"{deleting} {following}", self.table), _chosen(ids))
        return 0 if row is None else int(row[0])


def _chosen(ids: Sequence[int] | None) -> dict[str, Any]:
    return {"all": ids is None, "ids": list(ids or ())}


class _PostgresConnection:
    """A `ShardConnection` to PostgreSQL."""

    sql = _SQL

    def __init__(self, connection: Connection[Any], table: str, shard: int) -> None:
        self._connection = connection
        self._table = table
        self._shard = shard

    def acquire(self) -> bool:
        with self.transaction():
            row = self.execute(_LOCK, {"shard": self._shard}).fetchone()
            return row is not None and bool(row[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _translated(), self._connection.transaction():
            yield

    #: PostgreSQL reads in a transaction as well: otherwise psycopg would leave one open.
    reading = transaction

    def execute(self, statement: str, parameters: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        # Binary results: values are bytes, and text would have to be decoded.
        cursor = self._connection.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(with_tables(statement, self._table), parameters)

    def encode_claim(self, ids: Sequence[int]) -> Any:
        return list(ids)

    def count_claim(self, claimed: Any) -> int:
        return len(claimed or ())

    def close(self) -> None:
        self._connection.close()

"""An outbox in PostgreSQL.

A shard belongs to the session that has its advisory lock; PostgreSQL frees it when that session's
process is gone. The epoch in the shard's row is what writes are checked against, so that a lock
that does not hold what it promises (a pooler between) costs time, never order or events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import Connection
from psycopg.rows import class_row, tuple_row

from millstream.client.outbox.schema import SHARDS_DEFAULT, TABLE_DEFAULT, OutboxSchema
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

_CONNECT_TIMEOUT_S: Final = 10
#: How long the listener waits in one go, and so how long it may take to end.
_LISTEN_SLICE_S: Final = 0.5
_LISTEN_RETRY_S: Final = 1.0


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise SourceError("there is no outbox: make it with `millstream outbox init`.") from error
    except psycopg.Error as error:
        raise SourceError(f"PostgreSQL: {str(error).strip() or type(error).__name__}") from error


def _fitted(statement: str, table: str) -> str:
    """A statement on the outbox's tables, whose name was checked."""
    for name, suffix in (("{events}", ""), ("{shards}", "_shard"), ("{rejected}", "_rejected")):
        statement = statement.replace(name, f"{table}{suffix}")
    return statement


class PostgresDatabase:
    """See `source.Database`. `address` is a connection string."""

    def __init__(self, address: str, table: str = TABLE_DEFAULT) -> None:
        self.address = address
        self.table = checked_name(table)

    def connect(self) -> Connection[Any]:
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
            return connection.execute(_fitted(statement, self.table)).fetchall()

    def open(self, shard: int) -> PostgresShard:
        with _translated():
            return PostgresShard(self.connect(), self.table, shard)

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
        """Without a connection there is nobody to wake: the shards poll by themselves."""
        channel = self.table.rpartition(".")[2]
        while not ended.is_set():
            try:
                with self.connect() as connection:
                    connection.autocommit = True
                    connection.execute(f"LISTEN {channel}")
                    # Nobody told of what came before.
                    wake()
                    while not ended.is_set():
                        slice_s = min(poll_s, _LISTEN_SLICE_S)
                        for _ in connection.notifies(timeout=slice_s, stop_after=1):
                            wake()
            except psycopg.Error:
                ended.wait(_LISTEN_RETRY_S)

    def status(self) -> list[ShardStatus]:
        statement = _fitted(
            "SELECT shard, name, count(id) FILTER (WHERE sent_ms IS NULL) AS pending,"
            " min(created_ms) FILTER (WHERE sent_ms IS NULL) AS oldest_ms,"
            " count(id) FILTER (WHERE sent_ms IS NOT NULL) AS sent, batch,"
            " coalesce(cardinality(claimed), 0) AS claimed,"
            " EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
            "  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            "  AND classid = (hashtext(name)::bigint & 4294967295)::oid"
            "  AND objid = shard::oid AND objsubid = 2) AS active,"
            " owner, error,"
            " (SELECT count(*) FROM {rejected} AS aside WHERE aside.shard = {shards}.shard)"
            "  AS rejected"
            " FROM {shards} LEFT JOIN {events} USING (shard)"
            " GROUP BY shard ORDER BY shard",
            self.table,
        )
        with _translated(), self.connect() as connection:
            cursor = connection.cursor(row_factory=class_row(ShardStatus))
            return cursor.execute(statement).fetchall()

    def settle_claim(self, shard: int, batch: int, *, sent: bool) -> int:
        source = self.open(shard)
        try:
            if not source.acquire():
                raise ShardTakenError(f"a relay has shard {shard} now: stop it first.")
            return source.settle_claim(batch, sent=sent)
        finally:
            source.close()

    def rejected(self, limit: int, ids: Sequence[int] | None = None) -> list[RejectedEvent]:
        statement = _fitted(
            "SELECT id, shard, topic, partition, key, value, headers::text, created_ms,"
            " rejected_ms, error FROM {rejected}"
            " WHERE %(all)s OR id = ANY (%(ids)s::bigint[]) ORDER BY id LIMIT %(limit)s",
            self.table,
        )
        with _translated(), self.connect() as connection:
            cursor = connection.cursor(row_factory=tuple_row)
            cursor.execute(statement, {"limit": limit, **_chosen(ids)})
            return list(map(RejectedEvent._make, cursor.fetchall()))

    def retry(self, ids: Sequence[int] | None) -> int:
        columns = "id, topic, partition, key, value, headers, created_ms"
        return self._take_out(
            f"INSERT INTO {{events}} ({columns}) OVERRIDING SYSTEM VALUE"
            f" SELECT {columns} FROM gone",
            ids,
        )

    def discard(self, ids: Sequence[int] | None) -> int:
        return self._take_out("SELECT count(*) FROM gone", ids)

    def _take_out(self, following: str, ids: Sequence[int] | None) -> int:
        """Delete rejected events, and do that with them; how many they were."""
        chosen = "%(all)s OR id = ANY (%(ids)s::bigint[])"
        with _translated(), self.connect() as connection:
            row = connection.execute(
                _fitted("SELECT count(*) FROM {rejected} WHERE " + chosen, self.table),
                _chosen(ids),
            ).fetchone()
            deleting = "WITH gone AS (DELETE FROM {rejected} WHERE " + chosen + " RETURNING *) "
            connection.execute(_fitted(deleting + following, self.table), _chosen(ids))
        return 0 if row is None else int(row[0])


def _chosen(ids: Sequence[int] | None) -> dict[str, Any]:
    return {"all": ids is None, "ids": list(ids or ())}


class PostgresShard:
    """See `source.ShardSource`."""

    def __init__(self, connection: Connection[Any], table: str, shard: int) -> None:
        self._connection = connection
        self._table = table
        self._shard = shard
        self._epoch = -1
        #: Whether the shard's row has a claim, as far as this owner knows.
        self._claimed = False

    def acquire(self) -> bool:
        with _translated(), self._connection.transaction():
            row = self._run(
                "SELECT pg_try_advisory_lock(hashtext(name), shard) FROM {shards}"
                " WHERE shard = %(shard)s"
            ).fetchone()
            return row is not None and bool(row[0])

    def has_pending(self) -> bool:
        with _translated(), self._connection.transaction():
            return bool(self._pending(BatchLimit(1, 1)))

    def take_over(self, owner: str) -> Tenure:
        with _translated(), self._connection.transaction():
            row = self._run(
                "UPDATE {shards} SET epoch = epoch + 1, owner = %(owner)s WHERE shard = %(shard)s"
                " RETURNING name, epoch, batch, claimed IS NOT NULL",
                owner=owner,
            ).fetchone()
        assert row is not None
        tenure = Tenure(*row)
        self._epoch, self._claimed = tenure.epoch, tenure.claimed
        return tenure

    def claim(self, batch: int, limit: BatchLimit, *, keep: bool) -> Sequence[Event]:
        with _translated(), self._connection.transaction():
            if not self._claimed and not self._pending(BatchLimit(1, 1)):
                return []
            self._mark_sent(keep=keep)
            events = self._pending(limit)
            claimed = [event.id for event in events] or None
            self._update(
                "claimed = %(claimed)s::bigint[], batch = %(batch)s",
                claimed=claimed,
                batch=batch if claimed else batch - 1,
            )
        self._claimed = claimed is not None
        return events

    def finish(self, *, keep: bool) -> None:
        with _translated(), self._connection.transaction():
            self._mark_sent(keep=keep)
            self._update("claimed = NULL")
        self._claimed = False

    def release(self) -> None:
        with _translated(), self._connection.transaction():
            self._update("claimed = NULL, batch = batch - 1")
        self._claimed = False

    def quarantine(self, rejected: Mapping[int, str]) -> None:
        columns = "id, shard, topic, partition, key, value, headers, created_ms"
        with _translated(), self._connection.transaction():
            for number, error in rejected.items():
                self._run(
                    "WITH gone AS (DELETE FROM {events} WHERE id = %(id)s RETURNING *)"
                    f" INSERT INTO {{rejected}} ({columns}, rejected_ms, error)"
                    f" SELECT {columns}, (extract(epoch FROM now()) * 1000)::bigint, %(error)s"
                    " FROM gone",
                    id=number,
                    error=error,
                )
            self._update("claimed = NULL, batch = batch - 1")
        self._claimed = False

    def purge(self, before_ms: int, rows_max: int) -> int:
        with _translated(), self._connection.transaction():
            return self._run(
                "DELETE FROM {events} WHERE id IN (SELECT id FROM {events}"
                " WHERE sent_ms < %(before_ms)s AND shard = %(shard)s LIMIT %(rows_max)s)",
                before_ms=before_ms,
                rows_max=rows_max,
            ).rowcount

    def note_error(self, error: str | None) -> None:
        with _translated(), self._connection.transaction():
            self._run(
                "UPDATE {shards} SET error = %(error)s WHERE shard = %(shard)s"
                " AND error IS DISTINCT FROM %(error)s",
                error=error,
            )

    def settle_claim(self, batch: int, *, sent: bool) -> int:
        with _translated(), self._connection.transaction():
            row = self._run(
                "UPDATE {shards} SET epoch = epoch + 1 WHERE shard = %(shard)s"
                " RETURNING epoch, coalesce(cardinality(claimed), 0)"
            ).fetchone()
            assert row is not None
            self._epoch, rows = row
            if sent:
                self._mark_sent(keep=True)
            self._update("claimed = NULL, error = NULL, batch = %(batch)s", batch=batch)
        return int(rows)

    def close(self) -> None:
        self._connection.close()

    def _pending(self, limit: BatchLimit) -> list[Event]:
        statement = _fitted(
            "SELECT id, topic, partition, key, value, headers::text, created_ms FROM ("
            " SELECT *, sum(coalesce(octet_length(value), 0)) OVER (ORDER BY id)"
            "  - coalesce(octet_length(value), 0) AS bytes_before FROM ("
            "  SELECT id, topic, partition, key, value, headers, created_ms FROM {events}"
            "  WHERE shard = %(shard)s AND sent_ms IS NULL ORDER BY id LIMIT %(rows)s) AS head"
            ") AS sized WHERE bytes_before < %(value_bytes)s ORDER BY id",
            self._table,
        )
        cursor = self._connection.cursor(binary=True, row_factory=tuple_row)
        cursor.execute(
            statement,
            {"shard": self._shard, "rows": limit.rows, "value_bytes": limit.value_bytes},
        )
        return list(map(Event._make, cursor.fetchall()))

    def _mark_sent(self, *, keep: bool) -> None:
        claimed = "id = ANY ((SELECT claimed FROM {shards} WHERE shard = %(shard)s)::bigint[])"
        if keep:
            self._run(
                "UPDATE {events} SET sent_ms = (extract(epoch FROM now()) * 1000)::bigint WHERE "
                + claimed
            )
        else:
            self._run("DELETE FROM {events} WHERE " + claimed)

    def _update(self, assignments: str, **parameters: Any) -> None:
        changed = self._run(
            "UPDATE {shards} SET " + assignments + " WHERE shard = %(shard)s AND epoch = %(epoch)s",
            epoch=self._epoch,
            **parameters,
        )
        if changed.rowcount != 1:
            raise ShardTakenError(f"another relay has taken shard {self._shard}.")

    def _run(self, statement: str, **parameters: Any) -> psycopg.Cursor[Any]:
        return self._connection.execute(
            _fitted(statement, self._table), {"shard": self._shard, **parameters}
        )

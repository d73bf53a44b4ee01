"""The tables of an outbox, as SQL.

`<table>`, one row per event, written by the application inside its own transaction:

    id          order of the events of a key: assigned by the database, never reused
    shard       which relay sends it: events of one key are in one shard
    topic, partition, key, value, headers
                the record; `partition` NULL: by key; `headers`: JSON, {"name": "text"} or
                [["name", "text"], ...]
    created_ms  the record's timestamp
    sent_ms     NULL until the event is known to be in the topic

`<table>_shard`, one row per shard, written by relays only (0010-outbox.md explains it):

    name        names the outbox's transactional ids and group; random, so that two databases never
                share one
    epoch       raised by each relay that takes the shard; a relay with an older epoch cannot write
    batch       number of the last batch that was claimed
    claimed     ids of that batch while it is not known to be in the topic, else NULL
    owner, error
                for people: the last relay, and its last error

`<table>_rejected`, one row per event that Kafka rejects for good, moved there by relays:

    id, shard, topic, partition, key, value, headers, created_ms
                as in the event
    rejected_ms, error
                when and why Kafka rejected it

The number of shards is part of the definition: it can be changed only on an empty outbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.client.sql import Dialect, checked_name
from millstream.model.error import UsageError

TABLE_DEFAULT: Final = "millstream_outbox"
SHARDS_DEFAULT: Final = 4
SHARDS_MAX: Final = 256


def with_tables(statement: str, table: str) -> str:
    """Return a statement with the outbox's tables for `{events}`, `{shards}` and `{rejected}`."""
    for name, suffix in (("{events}", ""), ("{shards}", "_shard"), ("{rejected}", "_rejected")):
        statement = statement.replace(name, f"{table}{suffix}")
    return statement


@dataclass(frozen=True, slots=True)
class OutboxSchema:
    """The definition of one outbox. `notify`: PostgreSQL notifies relays of each insert."""

    table: str = TABLE_DEFAULT
    shards: int = SHARDS_DEFAULT
    notify: bool = True

    def __post_init__(self) -> None:
        checked_name(self.table)
        if not 1 <= self.shards <= SHARDS_MAX:
            raise UsageError(f"an outbox has 1 to {SHARDS_MAX} shards, not {self.shards}.")

    @property
    def shard_table(self) -> str:
        """The name of the table of shards."""
        return f"{self.table}_shard"

    @property
    def rejected_table(self) -> str:
        """The name of the table of rejected events."""
        return f"{self.table}_rejected"

    @property
    def _plain(self) -> str:
        """The table's name without its schema, for names of indexes and triggers."""
        return self.table.rpartition(".")[2]

    def statements(self, dialect: Dialect) -> list[str]:
        """Return the statements that create the outbox, each to be run once."""
        return self._postgresql() if dialect == "postgresql" else self._sqlite()

    def shard_of(self, dialect: Dialect) -> str:
        """Return the expression for a row's shard. SQLite has one writer, and one shard."""
        if dialect == "sqlite":
            return "0"
        return (
            f"CASE WHEN key IS NULL THEN mod(id, {self.shards})"
            f" ELSE mod(get_byte(sha256(key), 0), {self.shards}) END"
        )

    def notifying(self) -> list[str]:
        """Return the statements that make PostgreSQL notify relays of each insert."""
        return [
            f"""CREATE OR REPLACE FUNCTION {self.table}_notify() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_notify('{self._plain}', ''); RETURN NULL; END $$""",
            f"""CREATE TRIGGER {self._plain}_notify AFTER INSERT ON {self.table}
FOR EACH STATEMENT EXECUTE FUNCTION {self.table}_notify()""",
        ]

    def first_rows(self, dialect: Dialect) -> str:
        """Return the statement that fills the table of shards."""
        if dialect == "sqlite":
            return (
                f"INSERT INTO {self.shard_table} (shard, name)"
                f" VALUES (0, '{self._plain}-' || lower(hex(randomblob(6))))"
            )
        return (
            f"INSERT INTO {self.shard_table} (shard, name)"
            f" SELECT shard, '{self._plain}-' || token"
            " FROM (SELECT left(md5(gen_random_uuid()::text), 12) AS token OFFSET 0) AS once,"
            f" generate_series(0, {self.shards - 1}) AS shard"
        )

    def quarantine(self, dialect: Dialect) -> str:
        """Return the statement that creates the table of rejected events."""
        number, binary, text = (
            ("INTEGER", "BLOB", "TEXT") if dialect == "sqlite" else ("bigint", "bytea", "text")
        )
        return f"""CREATE TABLE {self.rejected_table} (
    id {number} PRIMARY KEY,
    shard integer NOT NULL,
    topic {text} NOT NULL,
    partition integer,
    key {binary},
    value {binary},
    headers {"TEXT" if dialect == "sqlite" else "json"},
    created_ms {number} NOT NULL,
    rejected_ms {number} NOT NULL,
    error {text} NOT NULL
)"""

    def _indexes(self) -> list[str]:
        return [
            f"CREATE INDEX {self._plain}_pending ON {self.table} (shard, id) WHERE sent_ms IS NULL",
            f"CREATE INDEX {self._plain}_sent ON {self.table} (sent_ms) WHERE sent_ms IS NOT NULL",
        ]

    def _postgresql(self) -> list[str]:
        return [
            f"""CREATE TABLE {self.table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard integer NOT NULL GENERATED ALWAYS AS ({self.shard_of("postgresql")}) STORED,
    topic text NOT NULL,
    partition integer,
    key bytea,
    value bytea,
    headers json,
    created_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    sent_ms bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)""",
            *self._indexes(),
            f"""CREATE TABLE {self.shard_table} (
    shard integer PRIMARY KEY,
    name text NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    batch bigint NOT NULL DEFAULT 0,
    claimed bigint[],
    owner text,
    error text
)""",
            self.first_rows("postgresql"),
            self.quarantine("postgresql"),
            *(self.notifying() if self.notify else ()),
        ]

    def _sqlite(self) -> list[str]:
        return [
            # Without AUTOINCREMENT, SQLite reuses the ids of deleted rows.
            f"""CREATE TABLE {self.table} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    shard INTEGER NOT NULL GENERATED ALWAYS AS (0) STORED,
    topic TEXT NOT NULL,
    partition INTEGER,
    key BLOB,
    value BLOB,
    headers TEXT,
    created_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    sent_ms INTEGER
)""",
            *self._indexes(),
            f"""CREATE TABLE {self.shard_table} (
    shard INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    batch INTEGER NOT NULL DEFAULT 0,
    claimed TEXT,
    owner TEXT,
    error TEXT
)""",
            self.first_rows("sqlite"),
            self.quarantine("sqlite"),
        ]

"""The tables of an outbox, as SQL.

`<table>`, a row per event, written by the application inside its own transaction:

    id          order of the events of a key: given by the database, never used twice
    shard       which relay sends it: events of one key are in one shard
    topic, partition, key, value, headers
                the record; `partition` NULL: by key; `headers`: JSON, {"name": "text"} or
                [["name", "text"], ...]
    created_ms  becomes the record's timestamp
    sent_ms     NULL until it is known to be in the topic

`<table>_shard`, a row per shard, written by relays only (0010-outbox.md says why it is enough):

    name        names the outbox's transactional ids and group; random, so that two databases never
                share one
    epoch       raised by each relay that takes the shard; one with an older epoch can't write
    batch       number of the last batch that was claimed
    claimed     ids of that batch while it is not known to be in the topic, else NULL
    owner, error
                for people: who took it last, and what went wrong since

`<table>_rejected`, a row per event that Kafka rejects for good, moved there by relays:

    id, shard, topic, partition, key, value, headers, created_ms
                as they were
    rejected_ms, error
                when, and what Kafka said

The number of shards is part of the definition: it can be changed only on an empty outbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.client.sql import Dialect, checked_name

TABLE_DEFAULT: Final = "millstream_outbox"
SHARDS_DEFAULT: Final = 4
SHARDS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class OutboxSchema:
    """The definition of one outbox; `notify`: PostgreSQL tells relays of each insert."""

    table: str = TABLE_DEFAULT
    shards: int = SHARDS_DEFAULT
    notify: bool = True

    def __post_init__(self) -> None:
        checked_name(self.table)
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ValueError(f"an outbox has 1 to {SHARDS_MAX} shards, not {self.shards}.")

    @property
    def shard_table(self) -> str:
        return f"{self.table}_shard"

    @property
    def rejected_table(self) -> str:
        return f"{self.table}_rejected"

    @property
    def _plain(self) -> str:
        """Without the schema, for what lives beside the table."""
        return self.table.rpartition(".")[2]

    def statements(self, dialect: Dialect) -> list[str]:
        """What makes the outbox, each to be run once."""
        return self._postgresql() if dialect == "postgresql" else self._sqlite()

    def shard_of(self, dialect: Dialect) -> str:
        """The expression that gives a row its shard. SQLite has one writer, and one shard."""
        if dialect == "sqlite":
            return "0"
        return (
            f"CASE WHEN key IS NULL THEN mod(id, {self.shards})"
            f" ELSE mod(get_byte(sha256(key), 0), {self.shards}) END"
        )

    def notifying(self) -> list[str]:
        """What makes PostgreSQL tell relays of each insert."""
        return [
            f"""CREATE OR REPLACE FUNCTION {self.table}_notify() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_notify('{self._plain}', ''); RETURN NULL; END $$""",
            f"""CREATE TRIGGER {self._plain}_notify AFTER INSERT ON {self.table}
FOR EACH STATEMENT EXECUTE FUNCTION {self.table}_notify()""",
        ]

    def first_rows(self, dialect: Dialect) -> str:
        """What fills the table of shards."""
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
        """What makes the table of rejected events."""
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
            # AUTOINCREMENT: else the ids of deleted rows are given again.
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

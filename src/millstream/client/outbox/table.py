"""The outbox as SQLAlchemy tables, for `metadata.create_all` and migrations. Needs SQLAlchemy.

    metadata = MetaData()
    outbox = outbox_tables(metadata)

`create_all` creates the same as `OutboxSchema.statements`: tables, indexes, the rows of the shards,
and on PostgreSQL the trigger that notifies relays.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Computed,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles

from millstream.client.outbox.schema import OutboxSchema

_BIG = BigInteger().with_variant(Integer(), "sqlite")
_CREATED_POSTGRESQL = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CREATED_SQLITE = "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))"


class _ByDialect(ColumnElement[Any]):
    """SQL text that differs between the databases."""

    inherit_cache = False

    def __init__(self, postgresql: str, sqlite: str) -> None:
        self.text = {"postgresql": postgresql, "sqlite": sqlite}


@compiles(_ByDialect)
def _compile(element: _ByDialect, compiler: Any, **_: Any) -> str:
    return element.text[compiler.dialect.name]


def outbox_tables(metadata: MetaData, schema: OutboxSchema | None = None) -> Table:
    """Add the outbox's three tables to `metadata`. Return the table of events."""
    schema = schema or OutboxSchema()
    events = _events_table(metadata, schema)
    shards = _shards_table(metadata, schema)
    _rejected_table(metadata, schema)
    if schema.notify:
        for statement in schema.notifying():
            _after_create(events, "postgresql", statement)
    for dialect in ("postgresql", "sqlite"):
        _after_create(shards, dialect, schema.first_rows(dialect))
    return events


def _events_table(metadata: MetaData, schema: OutboxSchema) -> Table:
    prefix, _, name = schema.table.rpartition(".")
    shard_of = _ByDialect(schema.shard_of("postgresql"), schema.shard_of("sqlite"))
    created_ms = _ByDialect(_CREATED_POSTGRESQL, _CREATED_SQLITE)
    events = Table(
        name,
        metadata,
        Column("id", _BIG, Identity(always=True), primary_key=True),
        Column("shard", Integer, Computed(shard_of, persisted=True), nullable=False),
        Column("topic", Text, nullable=False),
        Column("partition", Integer),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSON),
        Column("created_ms", _BIG, nullable=False, server_default=created_ms),
        Column("sent_ms", _BIG),
        schema=prefix or None,
        sqlite_autoincrement=True,
    )
    pending = text("sent_ms IS NULL")
    sent = text("sent_ms IS NOT NULL")
    columns = (events.c.shard, events.c.id)
    Index(f"{name}_pending", *columns, postgresql_where=pending, sqlite_where=pending)
    Index(f"{name}_sent", events.c.sent_ms, postgresql_where=sent, sqlite_where=sent)
    return events


def _shards_table(metadata: MetaData, schema: OutboxSchema) -> Table:
    prefix, _, name = schema.shard_table.rpartition(".")
    return Table(
        name,
        metadata,
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("name", Text, nullable=False),
        Column("epoch", _BIG, nullable=False, server_default="0"),
        Column("batch", _BIG, nullable=False, server_default="0"),
        Column("claimed", ARRAY(BigInteger).with_variant(Text(), "sqlite")),
        Column("owner", Text),
        Column("error", Text),
        schema=prefix or None,
    )


def _rejected_table(metadata: MetaData, schema: OutboxSchema) -> None:
    prefix, _, name = schema.rejected_table.rpartition(".")
    Table(
        name,
        metadata,
        Column("id", _BIG, primary_key=True, autoincrement=False),
        Column("shard", Integer, nullable=False),
        Column("topic", Text, nullable=False),
        Column("partition", Integer),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSON),
        Column("created_ms", _BIG, nullable=False),
        Column("rejected_ms", _BIG, nullable=False),
        Column("error", Text, nullable=False),
        schema=prefix or None,
    )


def _after_create(table: Table, dialect: str, statement: str) -> None:
    ddl = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", ddl.execute_if(dialect=dialect))

"""The outbox as SQLAlchemy tables, for `metadata.create_all` and migrations. Needs SQLAlchemy.

    metadata = MetaData()
    outbox = outbox_tables(metadata)

`create_all` makes what `OutboxSchema.statements` would: tables, indexes, the rows of the shards,
and on PostgreSQL the trigger that wakes relays.
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

_CREATED_POSTGRESQL = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CREATED_SQLITE = "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))"


class _ByDialect(ColumnElement[Any]):
    """Text that differs between the databases."""

    inherit_cache = False

    def __init__(self, postgresql: str, sqlite: str) -> None:
        self.spelling = {"postgresql": postgresql, "sqlite": sqlite}


@compiles(_ByDialect)
def _spell(element: _ByDialect, compiler: Any, **_: Any) -> str:
    return element.spelling[compiler.dialect.name]


def outbox_tables(metadata: MetaData, schema: OutboxSchema | None = None) -> Table:
    """Add the outbox's three tables to `metadata`; returns the one that holds events."""
    schema = schema or OutboxSchema()
    prefix, _, name = schema.table.rpartition(".")
    big = BigInteger().with_variant(Integer(), "sqlite")
    shard_of = _ByDialect(schema.shard_of("postgresql"), schema.shard_of("sqlite"))
    events = Table(
        name,
        metadata,
        Column("id", big, Identity(always=True), primary_key=True),
        Column("shard", Integer, Computed(shard_of, persisted=True), nullable=False),
        Column("topic", Text, nullable=False),
        Column("partition", Integer),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSON),
        Column(
            "created_ms",
            big,
            nullable=False,
            server_default=_ByDialect(_CREATED_POSTGRESQL, _CREATED_SQLITE),
        ),
        Column("sent_ms", big),
        schema=prefix or None,
        sqlite_autoincrement=True,
    )
    pending = text("sent_ms IS NULL")
    sent = text("sent_ms IS NOT NULL")
    Index(
        f"{name}_pending",
        events.c.shard,
        events.c.id,
        postgresql_where=pending,
        sqlite_where=pending,
    )
    Index(f"{name}_sent", events.c.sent_ms, postgresql_where=sent, sqlite_where=sent)
    shards = Table(
        f"{name}_shard",
        metadata,
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("name", Text, nullable=False),
        Column("epoch", big, nullable=False, server_default="0"),
        Column("batch", big, nullable=False, server_default="0"),
        Column("claimed", ARRAY(BigInteger).with_variant(Text(), "sqlite")),
        Column("owner", Text),
        Column("error", Text),
        schema=prefix or None,
    )
    Table(
        f"{name}_rejected",
        metadata,
        Column("id", big, primary_key=True, autoincrement=False),
        Column("shard", Integer, nullable=False),
        Column("topic", Text, nullable=False),
        Column("partition", Integer),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSON),
        Column("created_ms", big, nullable=False),
        Column("rejected_ms", big, nullable=False),
        Column("error", Text, nullable=False),
        schema=prefix or None,
    )
    if schema.notify:
        for statement in schema.notifying():
            _after_create(events, "postgresql", statement)
    for dialect in ("postgresql", "sqlite"):
        _after_create(shards, dialect, schema.first_rows(dialect))
    return events


def _after_create(table: Table, dialect: str, statement: str) -> None:
    ddl = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", ddl.execute_if(dialect=dialect))

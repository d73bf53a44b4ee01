"""Events inside the application's own transaction, through every kind of handle."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect, select
from sqlalchemy.orm import Session

from client.outbox.outbox_home import OutboxHome
from millstream import JsonSerializer, SerializationError, UsageError
from millstream.client.outbox import Outbox, OutboxSchema
from millstream.client.outbox.table import outbox_tables
from millstream.client.serde_context import RecordContext
from millstream.client.sql import DatabaseUseError


@pytest.fixture
def home(address: str, tmp_path: Path) -> OutboxHome:
    """Return an outbox without a broker."""
    made = OutboxHome(address, "", tmp_path)
    made.database.init(None, notify=True)
    return made


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    made = create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    made.dispose()


def values(home: OutboxHome) -> list[bytes]:
    rows = home.query("SELECT value FROM millstream_outbox ORDER BY id")
    return [bytes(row[0]) for row in rows]


def test_cursors_and_connections_of_drivers(home: OutboxHome) -> None:
    with closing(home.connect()) as connection:
        home.outbox.write(connection.cursor(), "t", key="k", value="1")
        home.outbox.write(connection, "t", key="k", value="2")
        connection.commit()
        home.outbox.write(connection, "t", key="k", value="3")
        connection.rollback()
    assert values(home) == [b"1", b"2"]


def test_sessions_and_connections_of_sqlalchemy(home: OutboxHome, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        home.outbox.write(session, "t", key="k", value="1", headers={"h": "x"})
    with engine.begin() as connection:
        home.outbox.write(connection, "t", key="k", value="2")
    with Session(engine) as session:
        home.outbox.write(session, "t", key="k", value="3")
        session.rollback()
    assert values(home) == [b"1", b"2"]
    (headers,) = home.query("SELECT headers FROM millstream_outbox ORDER BY id")[0]
    found = json.loads(headers) if isinstance(headers, str) else headers
    assert found == [["h", "x"]]


def test_a_handle_with_autocommit_is_rejected(home: OutboxHome, engine: Engine) -> None:
    handle: Any
    if home.address.startswith("sqlite"):
        path = home.address.removeprefix("sqlite:///")
        handle = sqlite3.connect(path, isolation_level=None)
    else:
        handle = psycopg.connect(home.address, autocommit=True)
    with closing(handle), pytest.raises(DatabaseUseError, match="begin one first"):
        home.outbox.write(handle, "t", value="1")
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(DatabaseUseError, match="begin one first"),
    ):
        home.outbox.write(connection, "t", value="1")
    assert values(home) == []


def test_wrong_use_is_explained() -> None:
    with closing(sqlite3.connect(":memory:")) as handle:
        for wrong, error in (
            ({"topic": "t", "value": {"a": 1}}, UsageError),
            ({"topic": "", "value": "x"}, ValueError),
            ({"topic": "t", "value": "x", "headers": {"h": b"\xff"}}, ValueError),
            ({"topic": "t", "value": "x", "headers": {"h": 1}}, UsageError),
        ):
            with pytest.raises(error):
                Outbox().write(handle, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DatabaseUseError, match="not a supported database handle"):
        Outbox().write(object(), "t", "1")
    with pytest.raises(ValueError, match="is not a valid table name"):
        Outbox("x; DROP TABLE y")
    with pytest.raises(ValueError, match="shards"):
        OutboxSchema(shards=0)


def test_serializers_encode_keys_and_values(home: OutboxHome) -> None:
    outbox = Outbox(key_serializer=lambda key: b"key-%d" % key, value_serializer=JsonSerializer())
    with closing(home.connect()) as connection:
        outbox.write(connection, "t", {"apples": 2}, key=7)
        outbox.write(connection, "t", None)
        connection.commit()
        with pytest.raises(SerializationError, match=r"value for topic 't', a set, .*JsonSerial"):
            outbox.write(connection, "t", {1, 2})
    rows = home.query("SELECT key, value, headers FROM millstream_outbox ORDER BY id")
    first, second = ([None if each is None else bytes(each) for each in row] for row in rows)
    assert first == [b"key-7", b'{"apples":2}', None]
    assert second == [None, None, None]


class Stamping:
    """Writes the topic into a header, as serializers of a schema registry write their ids."""

    takes_context = True

    def serialize(self, value: str, context: RecordContext, /) -> bytes:
        context.headers.append((f"{context.part}-for", context.topic.encode()))
        return value.upper().encode()


def test_a_serializer_may_add_headers(home: OutboxHome) -> None:
    outbox = Outbox(value_serializer=Stamping())  # type: ignore[arg-type]
    with closing(home.connect()) as connection:
        outbox.write(connection, "t", "x", headers={"h": "y"})
        connection.commit()
    ((value, headers),) = home.query("SELECT value, headers FROM millstream_outbox")
    assert bytes(value) == b"X"
    found = json.loads(headers) if isinstance(headers, str) else headers
    assert found == [["h", "y"], ["value-for", "t"]]


def test_wrong_arguments_are_explained() -> None:
    with closing(sqlite3.connect(":memory:")) as handle:
        with pytest.raises(UsageError, match=r"value must be bytes .* value_serializer="):
            Outbox().write(handle, "t", {"a": 1})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"key by keyword, write\(handle, topic, value, key="):
            Outbox().write(handle, "t", "x", "k")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="did you mean 'partition'"):
            Outbox().write(handle, "t", "x", partitions=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"JsonSerializer is a class: pass JsonSerializer\("):
        Outbox(value_serializer=JsonSerializer)  # type: ignore[arg-type]


def test_sqlalchemy_creates_the_same_tables_as_the_sql(
    home: OutboxHome, address: str, engine: Engine
) -> None:
    """The test creates the tables both ways in one database, and compares them."""
    shards = 1 if address.startswith("sqlite") else 4
    metadata = MetaData()
    table = outbox_tables(metadata, OutboxSchema("second", shards))
    metadata.create_all(engine)
    look = inspect(engine)

    def described(name: str) -> dict[str, tuple[str, bool]]:
        return {
            column["name"]: (str(column["type"]).replace("BIGINT", "INTEGER"), column["nullable"])
            for column in look.get_columns(name)
            if column["name"] not in ("id", "shard", "headers")
        }

    for suffix in ("", "_shard", "_rejected"):
        assert described(f"second{suffix}") == described(f"millstream_outbox{suffix}")
    assert len(look.get_indexes("second")) == len(look.get_indexes("millstream_outbox")) == 2
    with Session(engine) as session, session.begin():
        Outbox("second").write(session, "t", key="k", value="1")
    home.write("t", [("k", "1")])
    with engine.connect() as connection:
        (shard,) = connection.execute(select(table.c.shard)).one()
    assert home.query("SELECT shard FROM millstream_outbox") == [(shard,)]
    assert home.query("SELECT count(DISTINCT name), count(*) FROM second_shard") == [(1, shards)]
    names = home.query(
        "SELECT name FROM second_shard UNION SELECT name FROM millstream_outbox_shard"
    )
    assert len(names) == 2

"""Decoding values with the schemas of a schema registry, in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from harness import order_schema as order
from harness.fake_registry import FakeRegistry
from millstream.client.schema_registry.registry_format import (
    RegistryAvroSerde,
    RegistryJsonSerde,
    RegistryProtobufSerde,
)
from millstream.client.serde_context import Header, RecordContext
from millstream.spark.decode import decoded, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)
AT = datetime(2026, 3, 2, 9, tzinfo=UTC)
CONTEXT = RecordContext("orders", "value", [])
UNKNOWN_ID = b"\0\0\1\0\0more"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def records(
    spark: SparkSession, *values: bytes | None, headers: list[Header] | None = None
) -> DataFrame:
    """Return rows with the columns of the source."""
    rows = [(b"k", each, "orders", 0, at, AT, 0, headers) for at, each in enumerate(values)]
    return spark.createDataFrame(rows, RECORDS)


def found(rows: DataFrame) -> list[Any]:
    return rows.orderBy("offset").collect()


def test_avro_of_several_versions(spark: SparkSession, registry: FakeRegistry) -> None:
    old = RegistryAvroSerde(registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    new = RegistryAvroSerde(registry.url, order.AVRO_WITH_NOTE).serialize(
        {"customer": "bob", "apples": 3, "note": "soon"}, CONTEXT
    )
    given = records(spark, *[old, new] * 50, b"plain", UNKNOWN_ID, old[:-1], None)
    before = len(registry.requests)
    # The latest version of the subject gives the columns.
    frame = decoded(given, format="avro", registry=registry.url, subject="orders-value")
    rows = found(frame)
    assert [tuple(rows[at][each] for each in ("customer", "apples", "note")) for at in (0, 1)] == [
        ("alice", 2, "none"),
        ("bob", 3, "soon"),
    ]
    errors = [each["_error"] for each in rows]
    assert errors[:100] == [None] * 100
    assert "no schema id" in errors[100]
    assert "Looking up" in errors[101] or "Register the schema" in errors[101]
    assert errors[102]
    assert errors[103] is None
    # Two ids and an unknown one in at most three workers, and the latest version.
    assert len(registry.requests) - before <= 3 * 3 + 1
    letters = split(frame, group_id="billing").dead_letters.collect()
    assert [bytes(each["value"]) for each in letters] == [b"plain", UNKNOWN_ID, old[:-1]]


def test_json_is_validated_with_its_own_schema(spark: SparkSession, registry: FakeRegistry) -> None:
    written = RegistryJsonSerde(registry.url, order.JSON).serialize(order.VALUE, CONTEXT)
    invalid = written.replace(b'"apples":2', b'"apples":"two"')
    assert invalid != written
    given = records(spark, written, invalid, written[:-1], b"{}", None)
    ddl = "customer STRING NOT NULL, apples INT"
    rows = found(decoded(given, ddl, registry={"url": registry.url}))
    assert [(each["customer"], each["apples"]) for each in rows] == [("alice", 2)] + [
        (None, None)
    ] * 4
    errors = [each["_error"] for each in rows]
    assert errors[0] is None
    assert "'two' is not of type 'integer'" in errors[1]
    assert errors[2]
    assert "no schema id" in errors[3]
    assert errors[4] is None


def test_protobuf_with_ids_in_headers(spark: SparkSession, registry: FakeRegistry) -> None:
    headers: list[Header] = []
    serde = RegistryProtobufSerde(registry.url, order.Order, schema_id_in="headers")
    written = serde.serialize(order.Order(**order.VALUE), RecordContext("orders", "value", headers))
    framed = RegistryProtobufSerde(registry.url, order.Line).serialize(order.Line(), CONTEXT)
    options: dict[str, Any] = {
        "format": "protobuf",
        "registry": registry.url,
        "schema_id_in": "headers",
    }
    good = found(decoded(records(spark, written, headers=headers), order.Order, **options))
    assert (good[0]["customer"], good[0]["apples"], good[0]["_error"]) == ("alice", 2, None)
    (other,) = found(decoded(records(spark, framed), order.Order, **options))
    assert "a message Order.Line, not a message Order" in other["_error"]


def test_a_registry_that_cannot_be_reached_fails_the_query(
    spark: SparkSession, registry: FakeRegistry
) -> None:
    from pyspark.errors import PythonException

    written = RegistryAvroSerde(registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    options = {"url": registry.url, "config": {"max.retries": 0}}
    frame = decoded(records(spark, written), order.AVRO, format="avro", registry=options)
    registry.failing = 503
    with pytest.raises(PythonException, match="failed with status 503"):
        frame.collect()


def test_wrong_usage(spark: SparkSession, registry: FakeRegistry) -> None:
    given = records(spark, b"")
    with pytest.raises(ValueError, match="schema is missing"):
        decoded(given)
    with pytest.raises(ValueError, match="schema of the json columns is missing"):
        decoded(given, registry=registry.url, subject="orders-value")
    with pytest.raises(ValueError, match="schema_id_in='body'"):
        decoded(given, "a INT", registry=registry.url, schema_id_in="body")  # type: ignore[arg-type]

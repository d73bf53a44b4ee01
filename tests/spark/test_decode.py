"""Decoding values into columns with Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client.dead_letter import DeadLetter
from millstream.client.serializer import AvroSerializer
from millstream.spark.decode import decoded, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "order_id STRING NOT NULL, amount DOUBLE"
RECORDS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)
AT = datetime(2026, 3, 2, 9, tzinfo=UTC)


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Return rows with the columns of the source."""
    headers = [("color", b"red"), ("millstream.replayed.from", b"orders.dlq-0@1")]
    rows = [(b"k", each, "orders", 0, at, AT, 0, headers) for at, each in enumerate(values)]
    return spark.createDataFrame(rows, RECORDS)


def test_json_values_become_columns_and_invalid_ones_get_an_error(spark: SparkSession) -> None:
    values = [
        b'{"order_id": "o1", "amount": 2.5, "more": true}',
        b'{"order_id": "o2"}',
        b'{"amount": 2.5}',
        b'{"order_id": "o3", "amount": "much"}',
        b'{"order_id": "o4", "am',
        b"\xff\xfe{}",
        b"",
        b"null",
        b"[1, 2]",
        b"7",
        None,
    ]
    found = decoded(records(spark, *values), SCHEMA).orderBy("offset").collect()
    assert [(each["order_id"], each["amount"]) for each in found] == [
        ("o1", 2.5),
        ("o2", None),
        *[(None, None)] * 9,
    ]
    errors = [each["_error"] for each in found]
    assert errors[:2] == [None, None]
    assert errors[2] == "the field 'order_id' is missing or null"
    assert errors[5] == "not valid UTF-8"
    assert {errors[at] for at in (3, 4, 6, 7, 8, 9)} == {f"not JSON that fits {SCHEMA}"}
    assert errors[10] is None


def test_a_struct_where_fields_are_named_like_columns(spark: SparkSession) -> None:
    given = records(spark, b'{"timestamp": 7}', b"{")
    with pytest.raises(ValueError, match="timestamp are also columns of the records"):
        decoded(given, "timestamp BIGINT")
    found = decoded(given, "timestamp BIGINT", into="order").orderBy("offset").collect()
    assert [each["order"] and each["order"]["timestamp"] for each in found] == [7, None]
    assert found[0]["order"].asDict() == {"timestamp": 7}
    assert found[0]["timestamp"] is not None


def test_a_schema_may_be_spark_s_own_type(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType(
        [StructField("a", LongType(), nullable=False), StructField("b", LongType())]
    )
    found = decoded(records(spark, b'{"a": 1, "b": 2}', b'{"b": 2}'), schema).orderBy("offset")
    assert [(each["a"], each["_error"] is None) for each in found.collect()] == [
        (1, True),
        (None, False),
    ]


def test_json_after_a_registry_header(spark: SparkSession) -> None:
    given = records(spark, b'\0\0\0\0\7{"order_id": "o1"}', b'{"order_id": "o1"}')
    found = decoded(given, SCHEMA, registry_header=True).orderBy("offset").collect()
    assert [each["order_id"] for each in found] == ["o1", None]
    assert found[1]["_error"] == "no schema registry header"


def test_avro_in_spark(spark: SparkSession) -> None:
    schema: dict[str, Any] = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "order_id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    data = AvroSerializer(schema).serialize({"order_id": "o1", "at": AT})
    given = records(spark, data, data[:-1], None)
    found = decoded(given, schema, format="avro").orderBy("offset")
    # A number, because a timestamp depends on the time zone of this process.
    rows = found.selectExpr("order_id", "unix_millis(at)", "_error").collect()
    assert tuple(rows[0]) == ("o1", int(AT.timestamp() * 1000), None)
    assert rows[1][0] is None
    assert rows[1]["_error"]
    assert tuple(rows[2]) == (None, None, None)


def test_protobuf_in_spark(spark: SparkSession) -> None:
    from google.protobuf.wrappers_pb2 import StringValue

    given = records(spark, StringValue(value="alice").SerializeToString(), b"\x0a\xff")
    found = decoded(given, StringValue, format="protobuf", into="name").orderBy("offset").collect()
    assert found[0]["name"]["value"] == "alice"
    assert found[1]["name"] is None
    assert "DecodeError" in found[1]["_error"]


class Stored:
    """Return a dead letter as a consumer receives it."""

    def __init__(self, row: Any) -> None:
        self.raw_key, self.raw_value = bytes(row["key"]), bytes(row["value"])
        self.headers = [(each["key"], bytes(each["value"])) for each in row["headers"]]
        self.topic, self.partition, self.offset, self.timestamp = row["topic"], 0, 0, None


def test_dead_letters_have_the_headers_of_workers(spark: SparkSession) -> None:
    rows = decoded(records(spark, b'{"order_id": "o1"}', b"{"), SCHEMA)
    valid, letters = split(rows, group_id="billing", headers=True)
    assert [each["order_id"] for each in valid.collect()] == ["o1"]
    assert "_error" not in valid.columns
    (row,) = letters.collect()
    assert row["topic"] == "orders.dlq"
    letter = DeadLetter.of(Stored(row))  # type: ignore[arg-type]
    assert letter.value == b"{"
    assert letter.headers == [("color", b"red")]
    assert letter.origin.topic == "orders"
    assert (letter.origin.partition, letter.origin.offset) == (0, 1)
    assert letter.origin.timestamp == int(AT.timestamp() * 1000)
    assert (letter.origin.group, letter.origin.attempts) == ("billing", 1)
    assert letter.error_type == "DecodeError"
    assert letter.error_message.startswith("not JSON that fits")
    assert letter.timestamp > letter.origin.timestamp

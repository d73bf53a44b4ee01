"""Decoding of Avro and Protobuf values as in Spark's workers, without Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from millstream.client.serializer import AvroSerializer
from millstream.spark.values.avro_decoder import AvroDecoder
from millstream.spark.values.protobuf_decoder import ProtobufDecoder
from millstream.spark.values.value_decoder import Decoder, decode_array

HEADER = b"\0\0\0\0\7"
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": "State"},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
        {
            "name": "buyer",
            "type": {
                "type": "record",
                "name": "Buyer",
                "fields": [{"name": "name", "type": "string"}],
            },
        },
    ],
}
ORDER = {
    "id": "o1",
    "count": 2,
    "note": None,
    "state": "PAID",
    "before": "NEW",
    "token": uuid.UUID(int=7),
    "at": dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC),
    "day": dt.date(2026, 3, 2),
    "price": decimal.Decimal("12.50"),
    "tags": ["a", "b"],
    "sizes": {"s": 1},
    "buyer": {"name": "alice"},
}


def rows(decoder: Decoder, values: list[bytes | None]) -> list[dict[str, Any]]:
    """Decode with a pickled copy of the decoder, as a worker does."""
    copy = pickle.loads(pickle.dumps(decoder))
    kind = StructType([StructField("value", copy.type), StructField("error", StringType())])
    arrow_type = to_arrow_type(kind, timezone="UTC")
    found: list[dict[str, Any]] = decode_array(
        copy, pa.array(values, pa.binary()), arrow_type
    ).to_pylist()
    return found


def test_avro_types() -> None:
    data = AvroSerializer(AVRO).serialize(ORDER)
    (row,) = rows(AvroDecoder(json.dumps(AVRO)), [data])
    assert row["error"] is None
    assert row["value"] == ORDER | {"token": str(ORDER["token"]), "sizes": [("s", 1)]}


def test_avro_values_that_do_not_decode_say_why() -> None:
    data = AvroSerializer(AVRO).serialize(ORDER)
    found = rows(AvroDecoder(AVRO), [data, data[:-3], data + b"x", b"", None])
    assert [each["value"] is None for each in found] == [False, True, True, True, True]
    assert [each["error"] is None for each in found] == [True, False, False, False, True]
    assert "1 bytes are left" in found[2]["error"]


def test_avro_registry_header() -> None:
    data = AvroSerializer(AVRO).serialize(ORDER)
    good, bad = rows(AvroDecoder(AVRO, registry_header=True), [HEADER + data, data])
    assert good["value"]["id"] == "o1"
    assert bad["error"] == "ValueError: no schema registry header"


@pytest.mark.parametrize(
    ("field", "reason"), [("R", "contains itself"), (["int", "string"], "union")]
)
def test_avro_schemas_without_a_column_type(field: Any, reason: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": field}]}
    with pytest.raises(ValueError, match=reason):
        AvroDecoder(schema)


def test_avro_schemas_without_columns() -> None:
    with pytest.raises(ValueError, match="not a record"):
        AvroDecoder({"type": "string"})


FIELD = descriptor_pb2.FieldDescriptorProto


def order_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    fields: list[tuple[str, Any, Any, str | None]] = [
        ("id", FIELD.TYPE_STRING, FIELD.LABEL_OPTIONAL, None),
        ("count", FIELD.TYPE_INT32, FIELD.LABEL_OPTIONAL, None),
        ("state", FIELD.TYPE_ENUM, FIELD.LABEL_OPTIONAL, ".shop.State"),
        ("at", FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        ("tags", FIELD.TYPE_STRING, FIELD.LABEL_REPEATED, None),
        ("raw", FIELD.TYPE_BYTES, FIELD.LABEL_OPTIONAL, None),
        ("big", FIELD.TYPE_UINT64, FIELD.LABEL_OPTIONAL, None),
        ("sizes", FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, ".shop.Order.SizesEntry"),
    ]
    for number, (name, kind, label, type_name) in enumerate(fields, start=1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    entry = order.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
    return file


@pytest.fixture(scope="module")
def order_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool.Add(stamp)
    pool.Add(order_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_types(order_class: Any) -> None:
    message = order_class(id="o1", count=2, state=1, tags=["a"], raw=b"\xff", big=2**64 - 1)
    message.at.FromDatetime(dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC))
    message.sizes["s"] = 3
    full, empty = rows(ProtobufDecoder(order_class), [message.SerializeToString(), b""])
    assert full == {
        "value": {
            "id": "o1",
            "count": 2,
            "state": "PAID",
            "at": dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC),
            "tags": ["a"],
            "raw": b"\xff",
            "big": 2**64 - 1,
            "sizes": [("s", 3)],
        },
        "error": None,
    }
    assert empty["value"]["id"] == ""
    assert empty["value"]["at"] is None


def test_protobuf_descriptor_sets_and_registry_headers(order_class: Any, tmp_path: Any) -> None:
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    path = tmp_path / "order.desc"
    files = descriptor_pb2.FileDescriptorSet(file=[stamp, order_file()])
    path.write_bytes(files.SerializeToString())
    data = order_class(id="o1").SerializeToString()
    decoder = ProtobufDecoder(path, "shop.Order", registry_header=True)
    found = rows(decoder, [HEADER + b"\0" + data, HEADER + b"\2\0" + data, data, HEADER])
    assert [each["value"] and each["value"]["id"] for each in found] == ["o1", "o1", None, None]
    with pytest.raises(ValueError, match=r"no message 'shop\.Bill'"):
        ProtobufDecoder(path, "shop.Bill")
    with pytest.raises(ValueError, match="set message=NAME"):
        ProtobufDecoder(path)


def test_protobuf_values_that_do_not_decode_say_why(order_class: Any) -> None:
    (row,) = rows(ProtobufDecoder(order_class), [b"\x0a\xff"])
    assert row["value"] is None
    assert "DecodeError" in row["error"]

"""Decodes Avro's binary encoding into columns. Needs `millstream[avro]`.

`_PRIMITIVE` and `_LOGICAL` map Avro types to Spark types. A union of null and one type becomes a
nullable column. Other unions are rejected.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import types as t

from millstream.client.serializer import AvroSerializer
from millstream.spark.values.value_decoder import without_registry_header

_PRIMITIVE: Final[dict[str, Callable[[], t.DataType]]] = {
    "boolean": t.BooleanType,
    "int": t.IntegerType,
    "long": t.LongType,
    "float": t.FloatType,
    "double": t.DoubleType,
    "bytes": t.BinaryType,
    "string": t.StringType,
    "fixed": t.BinaryType,
    "enum": t.StringType,
}
_LOGICAL: Final[dict[str, Callable[[], t.DataType]]] = {
    "date": t.DateType,
    "timestamp-millis": t.TimestampType,
    "timestamp-micros": t.TimestampType,
    "local-timestamp-millis": t.TimestampNTZType,
    "local-timestamp-micros": t.TimestampNTZType,
    "uuid": t.StringType,
}


class AvroDecoder:
    """Decodes values of one record schema."""

    def __init__(self, schema: Mapping[str, Any] | str, *, registry_header: bool = False) -> None:
        self._schema = json.loads(schema) if isinstance(schema, str) else dict(schema)
        self._registry_header = registry_header
        self.type = spark_schema(self._schema)
        self._serializer = AvroSerializer(self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._schema, self._registry_header)

    def decode(self, data: bytes, /) -> dict[str, Any]:
        body = without_registry_header(data) if self._registry_header else data
        value = _plain(self._serializer.deserialize(body))
        assert isinstance(value, dict)
        return value


def spark_schema(schema: Mapping[str, Any]) -> t.StructType:
    """Return the columns of a record schema. Raises ValueError for other schemas."""
    if schema.get("type") != "record":
        raise ValueError("the Avro schema is not a record, so it has no columns.")
    found = _struct(schema, {})
    assert isinstance(found, t.StructType)
    return found


def _rebuilt(schema: dict[str, Any], registry_header: bool) -> AvroDecoder:
    return AvroDecoder(schema, registry_header=registry_header)


def _struct(schema: Mapping[str, Any], named: dict[str, t.DataType]) -> t.DataType:
    fields = [t.StructField(each["name"], _type(each["type"], named)) for each in schema["fields"]]
    return t.StructType(fields)


def _type(schema: Any, named: dict[str, t.DataType]) -> t.DataType:
    """Return the Spark type. `named` holds the named types that the schema has defined so far."""
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema]()
        if schema in named:
            return named[schema]
        raise ValueError(f"the Avro type {schema!r} is unknown, or contains itself.")
    found = _described(schema, named)
    if "name" in schema:
        named[schema["name"]] = found
        if "namespace" in schema:
            named[f"{schema['namespace']}.{schema['name']}"] = found
    return found


def _described(schema: Mapping[str, Any], named: dict[str, t.DataType]) -> t.DataType:
    kind = schema["type"]
    if schema.get("logicalType") == "decimal":
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]()
    if kind == "record":
        return _struct(schema, named)
    if kind == "array":
        return t.ArrayType(_type(schema["items"], named))
    if kind == "map":
        return t.MapType(t.StringType(), _type(schema["values"], named))
    return _type(kind, named)


def _union(schema: list[Any], named: dict[str, t.DataType]) -> t.DataType:
    branches = [each for each in schema if each != "null"]
    if len(branches) != 1:
        raise ValueError(f"the Avro union {json.dumps(schema)} has no single column type.")
    return _type(branches[0], named)


def _plain(value: Any) -> Any:
    """Convert UUIDs to text, which Arrow expects. Arrow converts maps itself."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else value

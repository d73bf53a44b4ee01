"""The columns of the source, with the names, types and order of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.spark.error import OptionError
from millstream.spark.source.source_options import column_names

TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def schema_of(names: Sequence[str]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def source_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema that the options select. Raises OptionError."""
    return schema_of(column_names(options))


def requested_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema that the query set: a subset of the source's, in any order.

    Raises OptionError if a column has another name or type."""
    for field in schema.fields:
        if field.name not in TYPES:
            raise OptionError(
                f"the schema has a column {field.name}, but the source's are {', '.join(TYPES)}"
            )
        known = TYPES[field.name]
        if field.dataType != known:
            raise OptionError(
                f"the schema's column {field.name} is {field.dataType.simpleString()}, but the"
                f" source's is {known.simpleString()}"
            )
    return tuple(schema.fieldNames())

"""The columns of a DataFrame that the sink writes, as Arrow arrays of fixed types.

    topic      string                                     required unless the option names a topic
    key        string or binary                           optional, nullable
    value      string or binary                           required, nullable (a tombstone)
    headers    array<struct<key: string, value: binary>>  optional, nullable
    partition  int                                        optional; null: chosen by key
    timestamp  timestamp                                  optional; null: now

Column names are case-insensitive, and other columns are ignored, as in Spark's Kafka sink. Rows
that were read from a topic can therefore be written unchanged. Pure: this module knows Spark's
types and Arrow arrays, not the partitions of topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from millstream.spark.arrow import HEADER_TYPE
from millstream.spark.error import OptionError

_BYTES: Final = "STRING or BINARY"
_WANTED: Final = {
    "topic": "STRING",
    "key": _BYTES,
    "value": _BYTES,
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "partition": "INT",
    "timestamp": "TIMESTAMP",
}
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


class InputRows(NamedTuple):
    """The rows of one Arrow batch: arrays of equal length, or None for a missing column."""

    #: string
    topic: Any
    #: binary
    key: Any
    #: binary
    value: Any
    #: list<struct<key: string, value: binary>>
    headers: Any
    #: int32
    partition: Any
    #: timestamp[us, UTC]
    timestamp: Any

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The index of each column in a batch; -1 if the column is missing."""

    topic: int
    key: int
    value: int
    headers: int
    partition: int
    timestamp: int
    #: The topic option. It takes precedence over the column, as in Spark's Kafka sink.
    topic_default: str | None

    def rows(self, batch: pa.RecordBatch) -> InputRows:
        """Return the rows of a batch. Raises OptionError if a row has no topic."""
        topic = _column(batch, self.topic)
        if self.topic_default is not None:
            topic = None
        elif topic.null_count:
            raise OptionError(
                "null topic present in the data. Use the topic option for setting a topic."
            )
        timestamp = _column(batch, self.timestamp)
        return InputRows(
            None if topic is None else topic.cast(pa.string()),
            _as_binary(_column(batch, self.key)),
            _as_binary(_column(batch, self.value)),
            _as_headers(_column(batch, self.headers)),
            _column(batch, self.partition),
            None if timestamp is None else timestamp.cast(_TIMESTAMP),
        )


def plan_columns(schema: StructType, topic: str | None) -> ColumnPlan:
    """Find the columns. Raises OptionError that names the missing or mistyped column."""
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _WANTED:
            continue
        if name in places:
            raise OptionError(f"there are two columns named {name!r}.")
        if not _is_fit(name, field.dataType):
            raise OptionError(
                f"{name} attribute type must be a {_WANTED[name]}, and is "
                f"{field.dataType.simpleString().upper()}."
            )
        places[name] = place
    if "value" not in places:
        raise OptionError("Required attribute 'value' not found.")
    if topic is None and "topic" not in places:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic."
        )
    found = {name: places.get(name, -1) for name in _WANTED}
    return ColumnPlan(**found, topic_default=topic)


def _is_fit(name: str, kind: DataType) -> bool:
    match name:
        case "topic":
            return isinstance(kind, StringType)
        case "key" | "value":
            return isinstance(kind, StringType | BinaryType)
        case "partition":
            return isinstance(kind, IntegerType)
        case "timestamp":
            return isinstance(kind, TimestampType)
        case _:
            return isinstance(kind, ArrayType) and _is_header(kind.elementType)


def _is_header(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or len(kind) != 2:
        return False
    key, value = kind.fields
    return (
        (key.name, value.name) == ("key", "value")
        and isinstance(key.dataType, StringType)
        and isinstance(value.dataType, BinaryType)
    )


def _column(batch: pa.RecordBatch, place: int) -> Any:
    return None if place < 0 else batch.column(place)


def _as_binary(array: Any) -> Any:
    return None if array is None else array.cast(pa.binary())


def _as_headers(array: Any) -> Any:
    """Return the headers, or None if no row has any, so that encoding skips them."""
    if array is None or array.null_count == len(array):
        return None
    return array.cast(HEADER_TYPE)

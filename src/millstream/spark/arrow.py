"""Decoded rows as Arrow record batches, without a copy.

Owns the step from the kernels' plain buffers to pyarrow, and the schema: exactly what Spark makes
of the source's columns with the session's time zone UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from millstream.records.arrow_decode import Binary, Headers, Rows
from millstream.records.column import Columns

HEADER_TYPE: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)
TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADER_TYPE,
}


def columns_for(names: Sequence[str]) -> Columns:
    """What the kernel has to decode for the Spark columns `names`."""
    return Columns(
        key="key" in names,
        value="value" in names,
        timestamp="timestamp" in names,
        timestamp_type="timestampType" in names,
        headers="headers" in names,
    )


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of the Spark columns `names`, in their order."""
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def record_batch(rows: Rows, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as a record batch of the columns of `schema`, which shares their memory.

    The rows may not grow any more.
    """
    arrays = [_array(name, rows, topic, partition) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, rows: Rows, topic: str, partition: int) -> pa.Array:
    count = rows.count
    match name:
        case "key":
            return _binary(pa.binary(), rows.keys)
        case "value":
            return _binary(pa.binary(), rows.values)
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), count)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), count)
        case "offset":
            return _numbers(name, count, rows.offsets)
        case "timestamp":
            return _numbers(name, count, rows.timestamps)
        case "timestampType":
            return _numbers(name, count, rows.timestamp_types)
        case _:
            return _headers(rows.headers)


def _numbers(name: str, count: int, buffer: bytearray) -> pa.Array:
    return pa.Array.from_buffers(TYPES[name], count, [None, pa.py_buffer(buffer)], 0)


def _binary(kind: pa.DataType, column: Binary | None) -> pa.Array:
    if column is None:
        raise ValueError("the column was not decoded")
    buffers = [
        pa.py_buffer(column.validity) if column.null_count else None,
        pa.py_buffer(column.offsets),
        pa.py_buffer(memoryview(column.data)[: column.size]),
    ]
    return pa.Array.from_buffers(kind, column.rows, buffers, column.null_count)


def _headers(column: Headers | None) -> pa.Array:
    if column is None:
        raise ValueError("the headers were not decoded")
    entries = pa.StructArray.from_arrays(
        [_binary(pa.string(), column.names), _binary(pa.binary(), column.values)],
        fields=list(HEADER_TYPE.value_type),
    )
    validity = pa.py_buffer(column.validity) if column.null_count else None
    buffers = [validity, pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(
        HEADER_TYPE, column.rows, buffers, column.null_count, children=[entries]
    )

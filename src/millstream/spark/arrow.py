"""Converts between pyarrow and the plain buffers of the record kernels, without copies.

Decoded rows become record batches with the schema that Spark derives from the source's columns in
a session with time zone UTC. Arrow arrays become columns for encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from millstream.records.arrow import arrow_encode
from millstream.records.arrow.arrow_decode import BinaryBuilder, HeadersBuilder, Rows
from millstream.records.arrow.column import Columns

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
    """Return what the kernel decodes for the Spark columns `names`."""
    return Columns(
        key="key" in names,
        value="value" in names,
        timestamp="timestamp" in names,
        timestamp_type="timestampType" in names,
        headers="headers" in names,
    )


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of the Spark columns `names`, in that order."""
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def record_batch(rows: Rows, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a record batch with the columns of `schema`.

    The batch shares the memory of the rows, so no rows may be added later.
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


def _binary(kind: pa.DataType, column: BinaryBuilder | None) -> pa.Array:
    if column is None:
        raise ValueError("the column was not decoded")
    buffers = [
        pa.py_buffer(column.validity) if column.null_count else None,
        pa.py_buffer(column.offsets),
        pa.py_buffer(memoryview(column.data)[: column.size]),
    ]
    return pa.Array.from_buffers(kind, column.rows, buffers, column.null_count)


def _headers(column: HeadersBuilder | None) -> pa.Array:
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


def record_columns(
    key: pa.Array | None,
    value: pa.Array | None,
    headers: pa.Array | None = None,
    timestamp: pa.Array | None = None,
) -> arrow_encode.RecordColumns:
    """Return arrays of equal length as columns to encode. An array of nulls becomes None.

    Keys and values are binary or string, headers have `HEADER_TYPE`, timestamps are microseconds
    or int64. At least one array is required.
    """
    count = max(len(array) for array in (key, value, headers, timestamp) if array is not None)
    return arrow_encode.RecordColumns(
        count,
        _binary_input(key) if _has_content(key) else None,
        _binary_input(value) if _has_content(value) else None,
        _headers_input(headers) if _has_content(headers) else None,
        number_column(timestamp, 8) if _has_content(timestamp) else None,
    )


def number_column(array: pa.Array, width: int) -> arrow_encode.Column:
    """Return an array of numbers of `width` bytes, such as partitions (int32), as a column."""
    validity, numbers = array.buffers()
    return arrow_encode.Column(
        len(array), array.offset, _optional(array, validity), _bytes(numbers), width
    )


def _has_content(array: pa.Array | None) -> bool:
    return array is not None and array.null_count < len(array)


def _binary_input(array: pa.Array) -> arrow_encode.Binary:
    validity, offsets, data = array.buffers()
    return arrow_encode.Binary(
        len(array), array.offset, _optional(array, validity), _bytes(offsets), _bytes(data)
    )


def _headers_input(array: pa.Array) -> arrow_encode.Headers | None:
    entries = array.values
    if len(entries) == 0:
        return None
    names, values = entries.flatten()
    validity, offsets = array.buffers()[:2]
    return arrow_encode.Headers(
        len(array),
        array.offset,
        _optional(array, validity),
        _bytes(offsets),
        _binary_input(names),
        _binary_input(values),
    )


def _optional(array: pa.Array, validity: pa.Buffer | None) -> memoryview | None:
    return _bytes(validity) if array.null_count else None


def _bytes(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")

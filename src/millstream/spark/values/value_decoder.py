"""Decoders that run in Spark's Python workers, value by value, as one Arrow function.

A decoder has the Spark `type` of its values and `decode`, which gives a value as a dict of that
type or raises. It is pickled to the workers, so it keeps what it was made of and builds the rest
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: As long as a dead letter's message may be.
_MESSAGE_CHARACTERS_MAX: Final = 1000
#: What clients of a schema registry write before a value: a zero and the schema's number.
REGISTRY_HEADER_BYTES: Final = 5


class Decoder(Protocol):
    @property
    def type(self) -> StructType: ...

    def decode(self, data: bytes, /) -> dict[str, Any]: ...


def decoding_function(decoder: Decoder) -> Any:
    """A function of a binary column that gives `struct<value, error>`."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    kind = StructType([StructField("value", decoder.type), StructField("error", StringType())])
    arrow_type = to_arrow_type(kind, timezone="UTC")

    def decode(values: pa.Array) -> pa.Array:
        return decode_array(decoder, values, arrow_type)

    # The annotations of this module are text, which Spark can't tell the kind of function from.
    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    # Its type hints know only functions whose kind is given by number.
    make: Any = arrow_udf
    return make(decode, kind)


def decode_array(decoder: Decoder, values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Each value or its error; null values stay null."""
    value_type = arrow_type.field("value").type
    rows = [_decode(decoder, each, value_type) for each in values.to_pylist()]
    return pa.array(rows, type=arrow_type)


def _decode(decoder: Decoder, data: bytes | None, value_type: pa.DataType) -> dict[str, Any]:
    if data is None:
        return {"value": None, "error": None}
    try:
        value = decoder.decode(data)
        # What decodes may still not fit its column: a date beyond the calendar, say.
        pa.scalar(value, type=value_type)
    except Exception as error:  # noqa: BLE001 - whatever a decoder finds in foreign bytes
        reason = f"{type(error).__name__}: {error}"
        return {"value": None, "error": reason[:_MESSAGE_CHARACTERS_MAX]}
    return {"value": value, "error": None}


def without_registry_header(data: bytes) -> bytes:
    if len(data) < REGISTRY_HEADER_BYTES or data[0]:
        raise ValueError("no schema registry header")
    return data[REGISTRY_HEADER_BYTES:]

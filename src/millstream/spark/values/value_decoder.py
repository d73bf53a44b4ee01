"""Runs a decoder in Spark's Python workers, as an Arrow function over a binary column.

A decoder has the Spark `type` of its values, and `decode`, which returns a value as a dict of that
type or raises. Spark pickles decoders, so a decoder keeps its schema and rebuilds the rest in the
worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from millstream.client.error import RegistryUnavailable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The maximum length of a dead letter's error message.
_MESSAGE_CHARACTERS_MAX: Final = 1000
#: The header that schema registry clients write before a value: a zero byte and the schema id.
REGISTRY_HEADER_BYTES: Final = 5


class Decoder(Protocol):
    """Decodes the values of one schema."""

    @property
    def type(self) -> StructType: ...

    def decode(self, data: bytes, /) -> dict[str, Any]: ...


def decoding_function(decoder: Decoder) -> Any:
    """Return a Spark function from a binary column to `struct<value, error>`."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    kind = StructType([StructField("value", decoder.type), StructField("error", StringType())])
    arrow_type = to_arrow_type(kind, timezone="UTC")

    def decode(values: pa.Array) -> pa.Array:
        return decode_array(decoder, values, arrow_type)

    # Spark reads the kind of function from annotations, but those of this module are strings.
    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    # The type hints of `arrow_udf` do not include this signature.
    make: Any = arrow_udf
    return make(decode, kind)


def decode_array(decoder: Decoder, values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Decode each value, or return its error. Null values stay null."""
    value_type = arrow_type.field("value").type
    rows = [_decode(decoder, each, value_type) for each in values.to_pylist()]
    return pa.array(rows, type=arrow_type)


def _decode(decoder: Decoder, data: bytes | None, value_type: pa.DataType) -> dict[str, Any]:
    if data is None:
        return {"value": None, "error": None}
    try:
        value = decoder.decode(data)
        # A decoded value may still not fit its column, such as a date out of range.
        pa.scalar(value, type=value_type)
    except RegistryUnavailable:
        # The value may be valid. The task fails, and Spark retries it.
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise any error for invalid bytes
        reason = f"{type(error).__name__}: {error}"
        return {"value": None, "error": reason[:_MESSAGE_CHARACTERS_MAX]}
    return {"value": value, "error": None}


def without_registry_header(data: bytes) -> bytes:
    """Remove the schema registry header. Raises ValueError if there is none."""
    if len(data) < REGISTRY_HEADER_BYTES or data[0]:
        raise ValueError("no schema registry header")
    return data[REGISTRY_HEADER_BYTES:]

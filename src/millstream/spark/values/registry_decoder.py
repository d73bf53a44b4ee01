"""Decodes values with the schema that a schema registry has for their id.

Each value names the schema it was written with. The decoders look up that schema once in each
Python worker, through the serdes of `millstream.client.schema_registry`, and convert to the columns
of the reader. Spark pickles a decoder into every task; `_shared` gives all tasks of a worker the
same one, with the same cache of schemas.

A value that does not decode has an error of its own. A registry that cannot be reached is not the
value's fault: the task fails, and Spark retries it.
"""

from __future__ import annotations

import functools
import json
import pickle
from typing import Any, Final

from pyspark.sql import types as t

from millstream.client.schema_registry.registry import SchemaRegistry
from millstream.client.schema_registry.registry_format import (
    RegistryAvroSerde,
    RegistryJsonSerde,
    RegistryProtobufSerde,
)
from millstream.client.serde_context import RecordContext
from millstream.spark.values.avro_decoder import AvroDecoder, plain
from millstream.spark.values.protobuf_decoder import ProtobufDecoder
from millstream.spark.values.value_decoder import Decoder

#: Ids are unique in a registry, so the topic does not matter.
_CONTEXT: Final = RecordContext("", "value", [])
_DECODERS_MAX: Final = 32
#: The field with the text of a JSON value.
JSON_TEXT: Final = "text"


class RegistryAvroDecoder:
    """Decodes Avro of any registered schema that converts to this one."""

    def __init__(self, registry: SchemaRegistry, schema: Any) -> None:
        self._arguments = (registry, schema)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.type = AvroDecoder(text).type
        self._serde = RegistryAvroSerde(registry, text, subject="record")

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (RegistryAvroDecoder, pickle.dumps(self._arguments))

    def decode(self, data: bytes, /) -> dict[str, Any]:
        value = plain(self._serde.deserialize(data, _CONTEXT))
        assert isinstance(value, dict)
        return value


class RegistryProtobufDecoder:
    """Decodes messages of one type, written with any registered version of it."""

    def __init__(self, registry: SchemaRegistry, inner: ProtobufDecoder) -> None:
        self._arguments = (registry, inner)
        self._inner = inner
        self.type = inner.type
        self._serde = RegistryProtobufSerde(registry, inner.message, subject="record")

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (RegistryProtobufDecoder, pickle.dumps(self._arguments))

    def decode(self, data: bytes, /) -> dict[str, Any]:
        return self._inner.columns(self._serde.deserialize(data, _CONTEXT))


class RegistryJsonDecoder:
    """Validates JSON with its registered schema, and returns its text for Spark's parser."""

    type = t.StructType([t.StructField(JSON_TEXT, t.StringType())])

    def __init__(self, registry: SchemaRegistry) -> None:
        self._arguments = (registry,)
        self._serde = RegistryJsonSerde(registry, subject="record")

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (RegistryJsonDecoder, pickle.dumps(self._arguments))

    def decode(self, data: bytes, /) -> dict[str, Any]:
        return {JSON_TEXT: json.dumps(self._serde.deserialize(data, _CONTEXT))}


def registry_decoder(
    registry: SchemaRegistry, kind: str, schema: Any, message: str | None
) -> Decoder:
    """Return the decoder for a format."""
    if kind == "avro":
        return RegistryAvroDecoder(registry, schema)
    if kind == "json":
        return RegistryJsonDecoder(registry)
    return RegistryProtobufDecoder(registry, ProtobufDecoder(schema, message))


@functools.lru_cache(_DECODERS_MAX)
def _shared(kind: Any, arguments: bytes) -> Decoder:
    decoder: Decoder = kind(*pickle.loads(arguments))  # noqa: S301 - pickled by this module
    return decoder

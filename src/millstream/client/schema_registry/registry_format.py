"""The serdes of the three formats of schema registries, on confluent-kafka's classes.

Each is for producers, consumers and workers: it serializes and deserializes. All have the keywords
of `SerdeSettings`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from millstream.client.error import SerializationError, UsageError
from millstream.client.schema_registry.frame import Frame, message_indexes
from millstream.client.schema_registry.message_name import message_name, own_name
from millstream.client.schema_registry.registry import SchemaRegistry, imported
from millstream.client.schema_registry.registry_serde import (
    RegistrySerde,
    SerdeOptions,
    SerdeSettings,
)

#: A schema as text, as its JSON, or as confluent-kafka's `Schema` with references.
SchemaSource = str | Mapping[str, Any] | Any


class RegistryAvroSerde(RegistrySerde):
    """Avro with a schema registry.

    `schema` is what values are written with and converted to when they are read. Without it the
    serde reads values with the schema that they were written with, and writes only with
    `use_latest_version=True`. `to_dict` and `from_dict` convert objects.
    """

    def __init__(
        self,
        registry: SchemaRegistry | str,
        schema: SchemaSource = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        from_dict: Callable[[Any], Any] | None = None,
        **options: Unpack[SerdeOptions],
    ) -> None:
        settings = SerdeSettings.of(options)
        module = imported("RegistryAvroSerde", "confluent_kafka.schema_registry.avro")
        source = _schema(schema)

        def serializer(client: Any) -> Any:
            _check_writable(schema, settings)
            return module.AvroSerializer(client, source, _plain(to_dict), settings.writing())

        def deserializer(client: Any) -> Any:
            convert, conf = _plain(from_dict), settings.reading()
            return module.AvroDeserializer(client, source, convert, conf=conf)

        super().__init__(registry, serializer, deserializer)


class RegistryJsonSerde(RegistrySerde):
    """JSON with a JSON Schema of a schema registry. Values are validated in both directions.

    `schema`, `to_dict` and `from_dict` are as in `RegistryAvroSerde`.
    """

    def __init__(
        self,
        registry: SchemaRegistry | str,
        schema: SchemaSource = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        from_dict: Callable[[Any], Any] | None = None,
        **options: Unpack[SerdeOptions],
    ) -> None:
        settings = SerdeSettings.of(options)
        module = imported("RegistryJsonSerde", "confluent_kafka.schema_registry.json_schema")
        source = _schema(schema)

        def serializer(client: Any) -> Any:
            _check_writable(schema, settings)
            return module.JSONSerializer(source, client, _plain(to_dict), settings.writing())

        def deserializer(client: Any) -> Any:
            convert, conf = _plain(from_dict), settings.reading()
            return module.JSONDeserializer(source, convert, client, conf)

        super().__init__(registry, serializer, deserializer)


class RegistryProtobufSerde(RegistrySerde):
    """Messages of one generated Protobuf class with a schema registry.

    The class brings its schema. The files that it imports are registered under their names. A
    message of another type in the topic is an error.
    """

    def __init__(
        self,
        registry: SchemaRegistry | str,
        message: type[Any],
        **options: Unpack[SerdeOptions],
    ) -> None:
        settings = SerdeSettings.of(options)
        module = imported("RegistryProtobufSerde", "confluent_kafka.schema_registry.protobuf")
        base = imported("RegistryProtobufSerde", "google.protobuf.message").Message
        if not (isinstance(message, type) and issubclass(message, base)):
            raise UsageError(f"{message!r} is not a class that the Protobuf compiler generated.")

        def serializer(client: Any) -> Any:
            return module.ProtobufSerializer(message, client, settings.writing())

        def deserializer(client: Any) -> Any:
            return module.ProtobufDeserializer(message, settings.reading(), client)

        found = SchemaRegistry.of(registry)
        check = _MessageCheck(found, own_name(message.DESCRIPTOR))
        super().__init__(found, serializer, deserializer, check)


class _MessageCheck:
    """Rejects frames of other messages than the one that a serde is for."""

    def __init__(self, registry: SchemaRegistry, name: str) -> None:
        self._registry = registry
        self._name = name
        #: Names by schema id and message indexes.
        self._names: dict[tuple[Any, ...], str] = {}

    def __call__(self, frame: Frame) -> None:
        indexes, _ = message_indexes(frame.body)
        key = (frame.schema_id, *indexes)
        name = self._names.get(key)
        if name is None:
            schema = self._registry.schema(frame.schema_id, "PROTOBUF")
            name = self._names[key] = message_name(schema.text, indexes)
        if name != self._name:
            raise SerializationError(f"it is a message {name}, not a message {self._name}")


def _schema(given: SchemaSource) -> Any:
    return json.dumps(given) if isinstance(given, Mapping) else given


def _check_writable(schema: SchemaSource, settings: SerdeSettings) -> None:
    if schema is None and not settings.use_latest_version:
        raise UsageError(
            "The serde has no schema to write with: pass schema=..., or use_latest_version=True."
        )


def _plain(convert: Callable[[Any], Any] | None) -> Callable[[Any, Any], Any] | None:
    """Return a function as confluent-kafka calls it, with its context as second argument."""
    return None if convert is None else lambda value, _context: convert(value)

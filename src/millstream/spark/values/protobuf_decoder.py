"""Decodes Protobuf messages into columns. Needs `millstream[protobuf]`.

A field with presence is null if it is not set; other fields have their Protobuf default. An enum
value becomes its name, or its number if it has no name. `google.protobuf.Timestamp` becomes a
timestamp. Recursive message types are rejected.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import types as t

from millstream.client.schema_registry.frame import message_indexes
from millstream.spark.values.value_decoder import without_registry_header

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_SCALAR: Final[dict[int, t.DataType]] = {
    FieldDescriptor.CPPTYPE_BOOL: t.BooleanType(),
    FieldDescriptor.CPPTYPE_INT32: t.IntegerType(),
    FieldDescriptor.CPPTYPE_UINT32: t.LongType(),
    FieldDescriptor.CPPTYPE_INT64: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: t.FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.CPPTYPE_ENUM: t.StringType(),
}


class ProtobufDecoder:
    """Decodes messages of one type. Pickling keeps the files that define the type."""

    def __init__(
        self, schema: Any, message: str | None = None, *, registry_header: bool = False
    ) -> None:
        if hasattr(schema, "DESCRIPTOR"):
            self._files, self._name = _files_of(schema.DESCRIPTOR), schema.DESCRIPTOR.full_name
        elif message is None:
            raise ValueError("a Protobuf descriptor set holds many messages: set message=NAME.")
        else:
            self._files, self._name = _read(schema), message
        self._registry_header = registry_header
        descriptor = _descriptor(self._files, self._name)
        self.type = _struct(descriptor, ())
        #: The class of the messages.
        self.message = message_factory.GetMessageClass(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._files, self._name, self._registry_header)

    def decode(self, data: bytes, /) -> dict[str, Any]:
        body = _without_header(data) if self._registry_header else data
        return self.columns(self.message.FromString(body))

    def columns(self, message: Any) -> dict[str, Any]:
        """Return the fields of a message."""
        return _columns(message)


def _rebuilt(files: bytes, name: str, registry_header: bool) -> ProtobufDecoder:
    return ProtobufDecoder(files, name, registry_header=registry_header)


def _read(schema: bytes | str | Path) -> bytes:
    return schema if isinstance(schema, bytes) else Path(schema).read_bytes()


def _files_of(descriptor: Descriptor) -> bytes:
    """Return the file of a generated class and its imports as a descriptor set."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(file: Any) -> None:
        if file.name not in found:
            for each in file.dependencies:
                add(each)
            proto = descriptor_pb2.FileDescriptorProto()
            file.CopyToProto(proto)
            found[file.name] = proto

    add(descriptor.file)
    return bytes(descriptor_pb2.FileDescriptorSet(file=found.values()).SerializeToString())


def _descriptor(files: bytes, name: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(each)
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise ValueError(f"the descriptor set has no message {name!r}.") from None


def _struct(descriptor: Descriptor, outer: tuple[str, ...]) -> t.StructType:
    if descriptor.full_name in outer:
        raise ValueError(
            f"the message {descriptor.full_name} contains itself: no column type can hold it."
        )
    inner = (*outer, descriptor.full_name)
    return t.StructType(
        [t.StructField(each.name, _type(each, inner)) for each in descriptor.fields]
    )


def _type(field: FieldDescriptor, outer: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        pair = field.message_type.fields_by_name
        return t.MapType(_single(pair["key"], outer), _single(pair["value"], outer))
    one = _single(field, outer)
    return t.ArrayType(one) if field.is_repeated else one


def _single(field: FieldDescriptor, outer: tuple[str, ...]) -> t.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return t.TimestampType()
        return _struct(field.message_type, outer)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return t.BinaryType()
    return _SCALAR.get(field.cpp_type, t.StringType())


def _columns(message: Any) -> dict[str, Any]:
    return {each.name: _value(message, each) for each in message.DESCRIPTOR.fields}


def _value(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        kind = field.message_type.fields_by_name["value"]
        return {key: _plain(value[key], kind) for key in value}
    if field.is_repeated:
        return [_plain(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.ToDatetime(dt.UTC)
        return _columns(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _without_header(data: bytes) -> bytes:
    """Remove the schema registry header and the message indexes after it."""
    return message_indexes(without_registry_header(data))[1]

"""An order in the three formats of schema registries."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

AVRO: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "customer", "type": "string"}, {"name": "apples", "type": "int"}],
}
#: A later version: readers fill in the default.
AVRO_WITH_NOTE: Final[dict[str, Any]] = {
    **AVRO,
    "fields": [*AVRO["fields"], {"name": "note", "type": "string", "default": "none"}],
}
#: Readers with this schema cannot read the first one.
AVRO_WITHOUT_DEFAULT: Final[dict[str, Any]] = {
    **AVRO,
    "fields": [*AVRO["fields"], {"name": "price", "type": "double"}],
}
JSON: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"customer": {"type": "string"}, "apples": {"type": "integer"}},
    "required": ["customer", "apples"],
}
VALUE: Final = {"customer": "alice", "apples": 2}


def _classes() -> tuple[Any, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    first = file.message_type.add(name="Customer")
    first.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="customer", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order.field.add(name="apples", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    line = order.nested_type.add(name="Line")
    line.field.add(name="item", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("shop.Order", "shop.Order.Line")
    order_class, line_class = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(each)) for each in names
    )
    return order_class, line_class


#: `Order` is the second message of its file, `Line` a message inside it.
Order, Line = _classes()

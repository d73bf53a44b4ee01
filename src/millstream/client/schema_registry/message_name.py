"""The name of the message in a Protobuf frame, by the writer's schema and the message indexes.

The indexes point into the file that the writer registered. A reader's file may have its messages in
another order, so readers compare names. The package does not count: it can change without a change
of the encoding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from millstream.client.error import SerializationError


def message_name(schema: str, indexes: Sequence[int]) -> str:
    """Return the name without the package, such as `Order.Line`, in a serialized file."""
    from google.protobuf import descriptor_pb2, message

    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema))
    except (binascii.Error, ValueError, message.DecodeError) as error:
        raise SerializationError(
            "the schema registry does not return Protobuf schemas in the serialized format"
        ) from error
    names = []
    messages: Any = file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise SerializationError(f"the schema has no message with the indexes {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def own_name(descriptor: Any) -> str:
    """Return the name of a generated class without its package."""
    package = descriptor.file.package
    name: str = descriptor.full_name
    return name.removeprefix(f"{package}.") if package else name

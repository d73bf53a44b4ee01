"""The frame of a value that a registry's serializer wrote. Pure.

    in the value    0, schema id (4 bytes, big endian), [message indexes], payload
                    1, schema GUID (16 bytes), [message indexes], payload
    in headers      `__key_schema_id` or `__value_schema_id`: 1, schema GUID, [message indexes]

Only Protobuf has message indexes: zigzag varints, their count and then each index. They say which
message of the file it is. A single zero stands for the first message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.client.serde_context import Header, Part

HEADERS: Final[dict[Part, str]] = {"key": "__key_schema_id", "value": "__value_schema_id"}
_ID_BYTES: Final = 5
_GUID_BYTES: Final = 17
_VARINT_BITS_MAX: Final = 35
_INDEXES_MAX: Final = 64


class Frame(NamedTuple):
    """A parsed frame. `body` is the payload, with message indexes before it in Protobuf."""

    schema_id: int | uuid.UUID
    body: bytes


def joined(data: bytes, headers: Iterable[Header] | None, part: Part) -> bytes:
    """Return the bytes with the frame at their start, also if it is in a header."""
    name = HEADERS[part]
    for key, value in headers or ():
        if key == name and value is not None:
            return value + data
    return data


def parsed(framed: bytes) -> Frame:
    """Parse the frame at the start. Raises ValueError if there is none."""
    magic = framed[0] if framed else None
    if magic == 0 and len(framed) >= _ID_BYTES:
        return Frame(int.from_bytes(framed[1:_ID_BYTES]), framed[_ID_BYTES:])
    if magic == 1 and len(framed) >= _GUID_BYTES:
        return Frame(uuid.UUID(bytes=framed[1:_GUID_BYTES]), framed[_GUID_BYTES:])
    raise ValueError("it has no schema id: it was not written by a serializer of a schema registry")


def message_indexes(body: bytes) -> tuple[list[int], bytes]:
    """Split the body of a Protobuf frame into message indexes and payload."""
    count, at = _varint(body, 0)
    if count == 0:
        return [0], body[at:]
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"the frame has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        indexes.append(index)
    return indexes, body[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while at < len(data) and shift < _VARINT_BITS_MAX:
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueError("the message indexes of the frame are not complete")

"""The protocol's variable-length integers and tag sections, and the two errors of this layer.

Owns what generated codecs call when their straight-line code meets something rare: a varint
of more than one byte, a tag section that is not empty, a length that cannot be true. The
fixed-size types need nothing here: they are single letters of a `struct` format.

Varint: seven bits a byte, lowest first, top bit set on all but the last; five bytes at most.
Tag section: count, then for each field its tag, its size in bytes (all varints) and its body.
"""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Kafka's limit for a string's length in bytes, whatever its length prefix could express.
STRING_BYTES_MAX: Final = 0x7FFF

_VARINT_SHIFT_MAX: Final = 28


class DecodeError(ValueError):
    """The bytes are not a message of the expected schema and version."""


class EncodeError(ValueError):
    """The message holds a value that its schema cannot carry in the chosen version."""


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it."""
    if position >= len(buffer):
        raise DecodeError(f"a varint was expected at byte {position}, where the message ends")
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Like `read_uvarint`, for a caller that has read the first byte and found its top bit set."""
    value = first & 0x7F
    for shift in range(7, _VARINT_SHIFT_MAX + 1, 7):
        if position >= len(buffer):
            raise DecodeError(f"a varint is cut off at byte {position}, where the message ends")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError(f"the varint that ends at byte {position} has more than five bytes")


def finish_string_length(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """`finish_uvarint` for the length of a compact string, which is stored plus one."""
    value, position = finish_uvarint(buffer, position, first)
    if value - 1 > STRING_BYTES_MAX:
        raise DecodeError(f"a string of {value - 1} bytes is longer than the protocol allows")
    return value, position


def encode_uvarint(value: int) -> bytes:
    """Return `value` (not negative, below 2**32) as a varint."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise EncodeError(f"{value} does not fit an unsigned varint")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_string_length(value: int) -> bytes:
    """`encode_uvarint` for the length of a compact string, which is stored plus one."""
    if value - 1 > STRING_BYTES_MAX:
        raise EncodeError(f"a string of {value - 1} bytes is longer than the protocol allows")
    return encode_uvarint(value)


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Step over a tag section whose first byte, `count`, was just read and is not zero."""
    if count > 0x7F:
        count, position = finish_uvarint(buffer, position, count)
    size = len(buffer)
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        field_bytes, position = read_uvarint(buffer, position)
        position += field_bytes
        if position > size:
            fail_length(field_bytes, position - field_bytes, size)
    return position


def fail_length(length: int, position: int, end: int) -> NoReturn:
    """Report a length or count that is negative, null where it may not be, or past the end."""
    if length < 0:
        raise DecodeError(f"null or a negative length before byte {position} is not allowed here")
    raise DecodeError(
        f"a length of {length} before byte {position} does not fit the {end - position} bytes left"
    )


def fail_tag(tag: int, position: int, expected: int) -> NoReturn:
    """Report a known tagged field whose body did not end where its size said."""
    raise DecodeError(f"tagged field {tag} ends at byte {position}, its size says {expected}")


def fail_trailing(position: int, end: int) -> NoReturn:
    """Report bytes after the last field."""
    raise DecodeError(f"{end - position} bytes follow the end of the message at byte {position}")


def fail_absent(name: str, version: int) -> NoReturn:
    """Report a value for a field that this version cannot carry and that may not be dropped."""
    raise EncodeError(f"version {version} has no field {name}, and a value was given for it")

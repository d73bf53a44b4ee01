"""Variable-length integers and tag sections, and the errors of this package.

Holds the functions that generated codecs call in rare cases: a varint of more than one byte, a tag
section that is not empty, a length that cannot be right. Fixed-size types are single letters of a
`struct` format.

Varint: seven bits in each byte, lowest first; the top bit is set in all bytes but the last; at most
five bytes.
Tag section: count, then for each field its tag, its size in bytes (all varints) and its body.
"""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Kafka's limit for the length of a string in bytes; the length prefix could hold more.
STRING_BYTES_MAX: Final = 0x7FFF

_VARINT_SHIFT_MAX: Final = 28


class DecodeError(ValueError):
    """The bytes are not a message of the expected schema and version."""


class EncodeError(ValueError):
    """The message has a value that its schema cannot represent in the chosen version."""


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it."""
    if position >= len(buffer):
        raise DecodeError(f"a varint was expected at byte {position}, where the message ends")
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint whose first byte has its top bit set."""
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
    """Read the rest of the length of a compact string, which is stored plus one."""
    value, position = finish_uvarint(buffer, position, first)
    if value - 1 > STRING_BYTES_MAX:
        raise DecodeError(f"a string of {value - 1} bytes is longer than the protocol allows")
    return value, position


def encode_uvarint(value: int) -> bytes:
    """Return `value`, from 0 to 2**32 - 1, as a varint."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise EncodeError(f"{value} does not fit an unsigned varint")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_string_length(value: int) -> bytes:
    """Return the length of a compact string, which is stored plus one, as a varint."""
    if value - 1 > STRING_BYTES_MAX:
        raise EncodeError(f"a string of {value - 1} bytes is longer than the protocol allows")
    return encode_uvarint(value)


def skip_tags(buffer: Buffer, position: int, count: int) -> int:
    """Return the position after a tag section whose first byte, `count`, is not zero."""
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
    """Reject a length or count that is negative, past the end, or null where that is not
    allowed."""
    if length < 0:
        raise DecodeError(f"null or a negative length before byte {position} is not allowed here")
    raise DecodeError(
        f"a length of {length} before byte {position} does not fit the {end - position} bytes left"
    )


def fail_tag(tag: int, position: int, expected: int) -> NoReturn:
    """Reject a known tagged field whose body does not match its size."""
    raise DecodeError(f"tagged field {tag} ends at byte {position}, its size says {expected}")


def fail_trailing(position: int, end: int) -> NoReturn:
    """Reject bytes after the last field."""
    raise DecodeError(f"{end - position} bytes follow the end of the message at byte {position}")


def fail_absent(name: str, version: int) -> NoReturn:
    """Reject a value of a field that this version does not have and that is not ignorable."""
    raise EncodeError(f"version {version} has no field {name}, and a value was given for it")

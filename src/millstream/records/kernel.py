"""The loops that run once per record, over the plain bytes of a batch's records.

Plain Python, compiled with the C types of `kernel.pxd` where a C compiler exists. Both forms behave
the same, and `is_compiled` tells which one runs. Knows neither headers nor compression. Every
length is checked against the remaining bytes before it is used. Damage raises CorruptBatch.

    record   length varint, attributes 1, timestamp delta varlong, offset delta varint,
             key length varint (-1: null), key, value length varint (-1: null), value,
             header count varint, then for each: key length varint, key, value length, value

Varints are zigzag: at most 5 bytes for 32 bits, 10 for 64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from millstream.records.batch import CorruptBatch
from millstream.records.crc import Buffer

_RecordT = TypeVar("_RecordT", bound=tuple[Any, ...])

_new_tuple = tuple.__new__

_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -_INT64_MAX - 1


def is_compiled() -> bool:
    """Return whether this module runs as C."""
    return not __file__.endswith((".py", ".pyc"))


def _damage(reason: str, position: int) -> CorruptBatch:
    return CorruptBatch(f"{reason} at byte {position} of the records")


def _read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return (value, position after) of a 32-bit zigzag number."""
    raw = 0
    shift = 0
    byte = 0x80
    while byte >= 0x80:
        if position >= end or shift > 28:
            raise _damage("a number is cut off or longer than 32 bits", position)
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw > 0xFFFFFFFF:
        raise _damage("a number is longer than 32 bits", position)
    return (raw >> 1) ^ -(raw & 1), position


def _read_varlong(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return (value, position after) of a 64-bit zigzag number."""
    raw = 0
    shift = 0
    byte = 0x80
    while byte >= 0x80:
        if position >= end or shift > 63:
            raise _damage("a number is cut off or longer than 64 bits", position)
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            raise _damage("a number is longer than 64 bits", position)
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), position


def _read_size(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return (size, position after) of a length that fits before `end`; -1 for null."""
    size, position = _read_varint(data, position, end)
    if size > end - position or size < -1:
        raise _damage(f"length {size} does not fit", position)
    return size, position


def _add_delta(base: int, delta: int, position: int) -> int:
    """Return `base + delta`. A hostile delta must not overflow 64 bits."""
    if delta > _INT64_MAX - base if base > 0 else delta < _INT64_MIN - base:
        raise _damage("a timestamp is longer than 64 bits", position)
    return base + delta


def _read_headers(
    data: bytes, position: int, end: int, count: int
) -> list[tuple[str, bytes | None]]:
    """Return the `count` headers that fill `[position, end)` exactly."""
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = _read_size(data, position, end)
        if size < 0:
            raise _damage("a header has no key", position)
        # Not every client writes UTF-8. Other bytes must survive a rewrite unchanged.
        name = data[position : position + size].decode("utf-8", "surrogateescape")
        position += size
        size, position = _read_size(data, position, end)
        value: bytes | None = None
        if size >= 0:
            value = data[position : position + size]
            position += size
        headers.append((name, value))
    if position != end:
        raise _damage("a record is longer than its fields", position)
    return headers


def decode(
    record_type: type[_RecordT],
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[_RecordT]:
    """Exactly `count` records that fill `data`, as `record_type` tuples.

    `append_time`, where given, is every record's timestamp. `base_offset` and `base_timestamp`
    fit in 63 bits with room for the deltas, or the batch is rejected.
    """
    records: list[_RecordT] = []
    end = len(data)
    source = data
    position = 0
    for _ in range(count):
        size, position = _read_size(source, position, end)
        if size < 1:
            raise _damage("a record is empty", position)
        record_end = position + size
        # One byte of record attributes, unused in format v2.
        timestamp_delta, position = _read_varlong(source, position + 1, record_end)
        offset_delta, position = _read_varint(source, position, record_end)
        if offset_delta < 0:
            raise _damage(f"offset delta {offset_delta} is negative", position)
        key = value = None
        size, position = _read_size(source, position, record_end)
        if size >= 0:
            key = source[position : position + size]
            position += size
        size, position = _read_size(source, position, record_end)
        if size >= 0:
            value = source[position : position + size]
            position += size
        header_count, position = _read_size(source, position, record_end)
        if header_count < 0:
            raise _damage("header count is negative", position)
        headers = _read_headers(source, position, record_end, header_count)
        position = record_end
        timestamp = append_time
        if timestamp is None:
            timestamp = _add_delta(base_timestamp, timestamp_delta, position)
        records.append(
            _new_tuple(record_type, (base_offset + offset_delta, timestamp, key, value, headers))
        )
    if position != end:
        raise _damage("there are more bytes than records", position)
    return records


def find_rejected(
    data: bytes,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    is_key_required: bool,
    listed_max: int,
) -> tuple[list[tuple[int, int | None]], int, int, int]:
    """Check the `count` records of a produced batch that fill `data`; builds no records.

    Returns (listed, without_key, untimely, max_timestamp). `listed` has the first `listed_max` bad
    records: (index, None) of one without a key where `is_key_required`, else (index, timestamp) of
    one outside of [earliest, latest]. The two numbers count all of each kind; a record that is both
    counts as one without a key. A record without a timestamp (-1) is never untimely, and
    `max_timestamp` is -1 where no record has one. Raises CorruptBatch where the structure is
    broken or the offset deltas do not count up from 0.
    """
    listed: list[tuple[int, int | None]] = []
    without_key = 0
    untimely = 0
    max_timestamp = -1
    end = len(data)
    source = data
    position = 0
    for index in range(count):
        size, position = _read_size(source, position, end)
        record_end = position + size
        delta, position = _read_varlong(source, position + 1, record_end)
        timestamp = _add_delta(base_timestamp, delta, position)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        delta, position = _read_varint(source, position, record_end)
        if delta != index:
            raise _damage(f"record {index} has offset delta {delta}", position)
        size, position = _read_size(source, position, record_end)
        if size < 0 and is_key_required:
            without_key += 1
            if len(listed) < listed_max:
                listed.append((index, None))
        elif timestamp != -1 and (timestamp < earliest or timestamp > latest):
            untimely += 1
            if len(listed) < listed_max:
                listed.append((index, timestamp))
        position += max(size, 0)
        size, position = _read_size(source, position, record_end)
        position += max(size, 0)
        header_count, position = _read_size(source, position, record_end)
        _skip_headers(source, position, record_end, header_count)
        position = record_end
    if position != end:
        raise _damage(f"{end - position} bytes follow the last record", position)
    return listed, without_key, untimely, max_timestamp


def _skip_headers(data: bytes, position: int, end: int, count: int) -> None:
    """Check that `count` headers fill `[position, end)` exactly."""
    if count < 0:
        raise _damage("header count is negative", position)
    for _ in range(count):
        size, position = _read_size(data, position, end)
        if size < 0:
            raise _damage("a header has no key", position)
        position += size
        size, position = _read_size(data, position, end)
        position += max(size, 0)
    if position != end:
        raise _damage("a record is longer than its fields", position)


def _put_varint(target: bytearray, value: int) -> None:
    raw = value  # Unsigned in C, where a left shift of a negative number is undefined.
    raw = (raw << 1) ^ (value >> 63)
    while raw > 0x7F:
        target.append((raw & 0x7F) | 0x80)
        raw >>= 7
    target.append(raw)


def _put_bytes(target: bytearray, value: Buffer | None) -> None:
    if value is None:
        target.append(1)
    else:
        _put_varint(target, len(value))
        target += value


def encode(
    records: Iterable[
        tuple[int, int, Buffer | None, Buffer | None, Sequence[tuple[str, Buffer | None]]]
    ],
    base_offset: int,
    base_timestamp: int,
) -> bytearray:
    """The bytes of `records` given as (offset, timestamp, key, value, headers).

    The caller has made sure that offset deltas fit in 31 bits and timestamp deltas in 64.
    """
    target = bytearray()
    body = bytearray()
    for offset, timestamp, key, value, headers in records:
        body.clear()
        body.append(0)
        _put_varint(body, timestamp - base_timestamp)
        _put_varint(body, offset - base_offset)
        _put_bytes(body, key)
        _put_bytes(body, value)
        _put_varint(body, len(headers))
        for name, content in headers:
            _put_bytes(body, name.encode("utf-8", "surrogateescape"))
            _put_bytes(body, content)
        _put_varint(target, len(body))
        target += body
    return target

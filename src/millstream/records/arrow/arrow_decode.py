"""Decoding records into Arrow's buffers, without an object per record.

Owns `Rows`, the growing columns of the decoded rows, and `RecordRun`, which reads the records of
one batch into them and may pause between any two. Knows neither batch headers, compression and
transactions (see `fetched`) nor pyarrow: buffers are bytearrays in Arrow's columnar format.

Plain Python, compiled with the C types of `arrow_decode.pxd` where a C compiler exists. Both forms
behave the same. Every length is checked against the remaining bytes before it is used. Damage
raises CorruptBatch. Only the wanted columns of a record are read; the rest is skipped by the
record's length, unchecked.

    BinaryBuilder    offsets int32 (rows + 1), data, validity one bit a row (least significant
                     first)
    HeadersBuilder   offsets int32 (rows + 1) into two columns, names and values; validity: a record
                     without headers is null
    Rows             offset int64, timestamp int64 in microseconds, timestamp type int32
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.records.arrow.column import Columns
from millstream.records.batch import CorruptBatch
from millstream.records.crc import Buffer

_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -_INT64_MAX - 1
_MILLIS_MAX = _INT64_MAX // 1000
_DATA_CAPACITY = 16 * 1024
_HEADER_CAPACITY = 1024

address: Callable[[Buffer], Buffer]
copy: Callable[[bytearray, int, Buffer, int, int], None]
put_int32: Callable[[bytearray, int, int], None]
put_int64: Callable[[bytearray, int, int], None]


def is_compiled() -> bool:
    """Return whether this module runs as C."""
    return not __file__.endswith((".py", ".pyc"))


if not is_compiled():
    from millstream.records.arrow import memory

    # Imported here only: in the compiled form these names are C functions.
    for _name in ("address", "copy", "put_int32", "put_int64"):
        globals()[_name] = getattr(memory, _name)


def _damage(reason: str, position: int) -> CorruptBatch:
    return CorruptBatch(f"{reason} at byte {position} of the records")


class BinaryBuilder:
    """A growing column of binary values, any of which may be null."""

    def __init__(self, row_capacity: int, data_capacity: int) -> None:
        self.rows = 0
        self.null_count = 0
        #: Bytes of `data` in use. The rest is capacity.
        self.size = 0
        self.validity = bytearray((row_capacity + 7) // 8)
        self.offsets = bytearray(4 * (row_capacity + 1))
        self.data = bytearray(data_capacity)
        self._rebase()

    def _rebase(self) -> None:
        """Update addresses and capacities after the buffers were created or grown."""
        self._validity = self.validity
        self._offsets = self.offsets
        self._data = self.data
        self._row_capacity = min(8 * len(self.validity), len(self.offsets) // 4 - 1)
        self._data_capacity = len(self.data)

    def _grow_rows(self) -> None:
        self.validity += bytes(len(self.validity) + 1)
        self.offsets += bytes(len(self.offsets) + 32)
        self._rebase()

    def _grow_data(self, size: int) -> None:
        self.data += bytes(max(size, len(self.data)))
        self._rebase()

    def append(self, source: Buffer, start: int, size: int) -> None:
        """Append `size` bytes of `source` from `start` on; null if `size` is -1."""
        row = self.rows
        if row == self._row_capacity:
            self._grow_rows()
        if size < 0:
            self.null_count += 1
        else:
            if size > self._data_capacity - self.size:
                self._grow_data(size)
            copy(self._data, self.size, source, start, size)
            self.size += size
            self._validity[row >> 3] |= 1 << (row & 7)
        self.rows = row + 1
        put_int32(self._offsets, row + 1, self.size)


class HeadersBuilder:
    """A growing column of lists of headers. A record without headers has a null list."""

    def __init__(self, rows_max: int) -> None:
        self.rows = 0
        self.null_count = 0
        self.validity = bytearray((rows_max + 7) // 8)
        self.offsets = bytearray(4 * (rows_max + 1))
        self.names = BinaryBuilder(_HEADER_CAPACITY, _HEADER_CAPACITY)
        self.values = BinaryBuilder(_HEADER_CAPACITY, _HEADER_CAPACITY)
        self._validity = self.validity
        self._offsets = self.offsets

    def end_row(self, count: int) -> None:
        """End a row whose `count` headers were appended to `names` and `values`."""
        row = self.rows
        if count > 0:
            self._validity[row >> 3] |= 1 << (row & 7)
        else:
            self.null_count += 1
        self.rows = row + 1
        put_int32(self._offsets, row + 1, self.names.rows)


class Rows:
    """The columns of at most `rows_max` rows, or of `bytes_max` bytes plus one record.

    `data_capacity` is the room that values get before they need more.
    """

    def __init__(
        self, columns: Columns, rows_max: int, bytes_max: int, data_capacity: int = _DATA_CAPACITY
    ) -> None:
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.count = 0
        #: Bytes of the records that became rows, limited by `bytes_max`.
        self.size = 0
        self.offsets = bytearray(8 * rows_max)
        self.timestamps = bytearray(8 * rows_max if columns.timestamp else 0)
        self.timestamp_types = bytearray(4 * rows_max if columns.timestamp_type else 0)
        self.keys = BinaryBuilder(rows_max, _DATA_CAPACITY) if columns.key else None
        self.values = BinaryBuilder(rows_max, data_capacity) if columns.value else None
        self.headers = HeadersBuilder(rows_max) if columns.headers else None
        self._offsets = self.offsets
        self._timestamps = self.timestamps
        self._timestamp_types = self.timestamp_types
        self._has_timestamps = columns.timestamp
        self._has_timestamp_types = columns.timestamp_type

    def is_full(self) -> bool:
        return self.count >= self.rows_max or self.size >= self.bytes_max

    def start_row(self, offset: int, timestamp: int, timestamp_type: int, size: int) -> None:
        """The numbers of the next row, whose record has `size` bytes; there is room for it.

        The timestamp comes in milliseconds; one that microseconds cannot hold is cut to the
        nearest that they can.
        """
        put_int64(self._offsets, self.count, offset)
        if self._has_timestamps:
            if timestamp > _MILLIS_MAX:
                timestamp = _INT64_MAX
            elif timestamp < -_MILLIS_MAX:
                timestamp = _INT64_MIN
            else:
                timestamp *= 1000
            put_int64(self._timestamps, self.count, timestamp)
        if self._has_timestamp_types:
            put_int32(self._timestamp_types, self.count, timestamp_type)
        self.count += 1
        self.size += size


class RecordRun:
    """The records of one batch, read once from first to last.

    `data` are the plain bytes of `count` records, whose offset deltas ascend and are at most
    `delta_max`. `append_time`, where given, is every record's timestamp.
    """

    def __init__(
        self,
        data: Buffer,
        count: int,
        base_offset: int,
        delta_max: int,
        base_timestamp: int,
        append_time: int | None,
    ) -> None:
        if not 0 <= base_offset <= _INT64_MAX - delta_max:
            raise CorruptBatch(f"base offset {base_offset} is absurd")
        self._data = data
        self._source = address(self._data)
        self._position = 0
        self._end = len(data)
        #: Records that were not read yet.
        self.remaining = count
        self._base_offset = base_offset
        self._base_timestamp = base_timestamp
        self._has_append_time = append_time is not None
        self._append_time = 0 if append_time is None else append_time
        self._delta = -1
        self._delta_max = delta_max

    def read_into(self, rows: Rows, start: int, end: int) -> None:
        """Append the records with offsets in `[start, end)` until `rows` is full.

        They are through when `remaining` is 0. Damage leaves the rows before it whole.
        """
        while self.remaining > 0 and not rows.is_full():
            self._read_record(rows, start, end)
        if self.remaining == 0 and self._position != self._end:
            raise _damage("there are more bytes than records", self._position)

    def _read_record(self, rows: Rows, start: int, end: int) -> None:
        size = self._read_size(self._end)
        if size < 1:
            raise _damage("a record is empty", self._position)
        record_end = self._position + size
        # One byte of record attributes, unused in format v2.
        self._position += 1
        timestamp = self._read_timestamp(record_end)
        delta = self._read_varint(record_end)
        if delta <= self._delta or delta > self._delta_max:
            raise _damage(f"offset delta {delta} is out of order or range", self._position)
        self._delta = delta
        self.remaining -= 1
        if self._base_offset + delta >= end:
            self.remaining = 0
            record_end = self._end
        elif self._base_offset + delta >= start:
            self._append(rows, self._base_offset + delta, timestamp, size, record_end)
        self._position = record_end

    def _append(
        self, rows: Rows, offset: int, timestamp: int, record_size: int, record_end: int
    ) -> None:
        """Append the record whose key is next as a row. A damaged record adds nothing."""
        key_size = self._read_size(record_end)
        key_start = self._position
        self._position += max(key_size, 0)
        value_size = self._read_size(record_end)
        value_start = self._position
        self._position += max(value_size, 0)
        if rows.headers is not None:
            self._check_headers(record_end)
        rows.start_row(offset, timestamp, 1 if self._has_append_time else 0, record_size)
        if rows.keys is not None:
            rows.keys.append(self._source, key_start, key_size)
        if rows.values is not None:
            rows.values.append(self._source, value_start, value_size)
        if rows.headers is not None:
            self._append_headers(rows.headers, record_end)

    def _check_headers(self, end: int) -> None:
        """Check that the next headers fill the record to its end. Does not move."""
        start = self._position
        count = self._read_size(end)
        if count < 0:
            raise _damage("header count is negative", start)
        for _ in range(count):
            size = self._read_size(end)
            if size < 0:
                raise _damage("a header has no key", self._position)
            self._position += size
            size = self._read_size(end)
            self._position += max(size, 0)
        if self._position != end:
            raise _damage("a record is longer than its fields", self._position)
        self._position = start

    def _append_headers(self, headers: HeadersBuilder, end: int) -> None:
        """Append the next headers, which were checked."""
        count = self._read_size(end)
        for _ in range(count):
            size = self._read_size(end)
            self._append_name(headers.names, size)
            self._position += size
            size = self._read_size(end)
            headers.values.append(self._source, self._position, size)
            self._position += max(size, 0)
        headers.end_row(count)

    def _append_name(self, names: BinaryBuilder, size: int) -> None:
        """Append a header's name. Bytes that are not UTF-8 are replaced, as in Java's clients."""
        bits = 0
        for index in range(self._position, self._position + size):
            bits |= self._source[index]
        if bits < 0x80:
            names.append(self._source, self._position, size)
        else:
            raw = bytes(self._data[self._position : self._position + size])
            name = raw.decode("utf-8", "replace").encode()
            names.append(name, 0, len(name))

    def _read_timestamp(self, end: int) -> int:
        """Return the record's timestamp or the batch's. Rejects a delta that overflows 64 bits."""
        delta = self._read_varlong(end)
        if self._has_append_time:
            return self._append_time
        base = self._base_timestamp
        if delta > _INT64_MAX - base if base > 0 else delta < _INT64_MIN - base:
            raise _damage("a timestamp is longer than 64 bits", self._position)
        return base + delta

    def _read_varint(self, end: int) -> int:
        """Read a 32-bit zigzag number that ends before `end`."""
        raw = 0
        shift = 0
        byte = 0x80
        while byte >= 0x80:
            if self._position >= end or shift > 28:
                raise _damage("a number is cut off or longer than 32 bits", self._position)
            byte = self._source[self._position]
            self._position += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
        if raw > 0xFFFFFFFF:
            raise _damage("a number is longer than 32 bits", self._position)
        return (raw >> 1) ^ -(raw & 1)

    def _read_varlong(self, end: int) -> int:
        """Read a 64-bit zigzag number that ends before `end`."""
        raw = 0
        shift = 0
        byte = 0x80
        while byte >= 0x80:
            if self._position >= end or shift > 63:
                raise _damage("a number is cut off or longer than 64 bits", self._position)
            byte = self._source[self._position]
            self._position += 1
            if shift == 63 and byte > 1:
                raise _damage("a number is longer than 64 bits", self._position)
            raw |= (byte & 0x7F) << shift
            shift += 7
        return (raw >> 1) ^ -(raw & 1)

    def _read_size(self, end: int) -> int:
        """Read a length that fits before `end`; -1 for null."""
        size = self._read_varint(end)
        if size > end - self._position or size < -1:
            raise _damage(f"length {size} does not fit", self._position)
        return size

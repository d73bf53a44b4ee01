"""Encoding Arrow's columns as records of batches, without an object per row.

Owns reading Arrow's buffers, the choice of a partition for each row, and the open batch of each
partition. Rows are appended in order to the batch of their partition. A batch is finished when the
next record could exceed the limit. The bytes of the header stay free; `encoded` fills them in and
compresses. Does not know pyarrow: buffers are bytes-like objects.

Plain Python, compiled with the C types of `arrow_encode.pxd` where a C compiler exists. Both forms
behave the same. Buffers are checked against the number of rows, and each value against its buffer.
Inconsistent columns raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.records.batch import HEADER_BYTES
from millstream.records.crc import Buffer

#: Most bytes of a record besides key, value and headers; and most bytes of its length.
_OVERHEAD_MAX = 21
_LENGTH_BYTES_MAX = 5
_DATA_CAPACITY = 16 * 1024
_HEADER_BYTES = HEADER_BYTES
_MICROS = 1000
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF

address: Callable[[Buffer], Buffer]
copy: Callable[[bytearray, int, Buffer, int, int], None]
get_int32: Callable[[Buffer, int], int]
get_int64: Callable[[Buffer, int], int]
put_int32: Callable[[bytearray, int, int], None]


def is_compiled() -> bool:
    """Return whether this module runs as C."""
    return not __file__.endswith((".py", ".pyc"))


if not is_compiled():
    from millstream.records.arrow import memory

    # Imported here only: in the compiled form these names are C functions.
    for _name in ("address", "copy", "get_int32", "get_int64", "put_int32"):
        globals()[_name] = getattr(memory, _name)


def _varint_size(value: int) -> int:
    raw = value  # Unsigned in C, where a left shift of a negative number is undefined.
    raw = (raw << 1) ^ (value >> 63)
    size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


def _encoded_size(size: int) -> int:
    """Return the bytes of a value of `size` bytes (-1: null) with its length."""
    return _varint_size(size) + max(size, 0)


class Column:
    """A column's validity bitmap (None: nothing is null) and its values.

    `rows` rows begin at row `offset` of the buffers. `values` are numbers of `width` bytes, one for
    each row and `extra` more.
    """

    def __init__(
        self,
        rows: int,
        offset: int,
        validity: Buffer | None,
        values: Buffer,
        width: int,
        extra: int = 0,
    ) -> None:
        needed = width * (offset + rows + extra) if rows else 0
        if rows < 0 or offset < 0 or len(values) < needed:
            raise ValueError(f"{len(values)} bytes of numbers are too few for {rows} rows")
        if validity is not None and 8 * len(validity) < offset + rows:
            raise ValueError(f"{len(validity)} bytes of validity are too few for {rows} rows")
        self.rows = rows
        self._offset = offset
        self._has_bitmap = validity is not None
        self._bitmap_view = b"" if validity is None else validity
        self._bitmap = address(self._bitmap_view)
        self._numbers_view = values
        self._numbers = address(self._numbers_view)

    def is_null(self, row: int) -> bool:
        row += self._offset
        return self._has_bitmap and not (self._bitmap[row >> 3] >> (row & 7)) & 1

    def int32(self, row: int) -> int:
        return get_int32(self._numbers, row + self._offset)

    def int64(self, row: int) -> int:
        return get_int64(self._numbers, row + self._offset)


class Binary:
    """A binary or string column with int32 offsets."""

    def __init__(
        self, rows: int, offset: int, validity: Buffer | None, offsets: Buffer, data: Buffer
    ) -> None:
        self._column = Column(rows, offset, validity, offsets, 4, 1)
        self.rows = rows
        self._data_view = data
        self._data_size = len(data)
        self.data = address(self._data_view)

    def start(self, row: int) -> int:
        return self._column.int32(row)

    def size(self, row: int) -> int:
        """Return the value's length; -1 for null."""
        if self._column.is_null(row):
            return -1
        start = self._column.int32(row)
        end = self._column.int32(row + 1)
        if start < 0 or end < start or end > self._data_size:
            raise ValueError(f"row {row} has the bytes {start} to {end} of {self._data_size}")
        return end - start


class Headers:
    """A column of lists of headers: int32 offsets into the columns of names and values."""

    def __init__(
        self,
        rows: int,
        offset: int,
        validity: Buffer | None,
        offsets: Buffer,
        names: Binary,
        values: Binary,
    ) -> None:
        self._column = Column(rows, offset, validity, offsets, 4, 1)
        self.rows = rows
        self.names = names
        self.values = values
        self._entries = min(names.rows, values.rows)

    def start(self, row: int) -> int:
        return self._column.int32(row)

    def count(self, row: int) -> int:
        """Return the number of headers of the row; 0 for a null list."""
        if self._column.is_null(row):
            return 0
        start = self._column.int32(row)
        end = self._column.int32(row + 1)
        if start < 0 or end < start or end > self._entries:
            raise ValueError(f"row {row} has the headers {start} to {end} of {self._entries}")
        return end - start

    def encoded_size(self, row: int) -> int:
        """Return the bytes of the row's headers. Raises ValueError if one has no name."""
        start = self.start(row)
        count = self.count(row)
        total = _varint_size(count)
        for entry in range(start, start + count):
            size = self.names.size(entry)
            if size < 0:
                raise ValueError(f"a header of row {row} has no key")
            total += _encoded_size(size) + _encoded_size(self.values.size(entry))
        return total


class RecordColumns:
    """The columns of some rows. A column that is null in every row is None.

    `timestamps` are int64, in microseconds since 1970.
    """

    def __init__(
        self,
        rows: int,
        keys: Binary | None,
        values: Binary | None,
        headers: Headers | None = None,
        timestamps: Column | None = None,
    ) -> None:
        for column in (keys, values, headers, timestamps):
            if column is not None and column.rows != rows:
                raise ValueError(f"a column has {column.rows} rows and not {rows}")
        self.rows = rows
        self.keys = keys
        self.values = values
        self.headers = headers
        self.timestamps = timestamps

    def key_size(self, row: int) -> int:
        """Return the size of the key; -1 for null."""
        return -1 if self.keys is None else self.keys.size(row)

    def fields_size(self, row: int) -> int:
        """Return the bytes of key, value and headers in a record."""
        size = _encoded_size(self.key_size(row))
        size += 1 if self.values is None else _encoded_size(self.values.size(row))
        size += 1 if self.headers is None else self.headers.encoded_size(row)
        return size

    def timestamp(self, row: int, default: int) -> int:
        """Return the timestamp in milliseconds."""
        if self.timestamps is None or self.timestamps.is_null(row):
            return default
        return self.timestamps.int64(row) // _MICROS


def murmur2(data: Buffer, start: int, size: int) -> int:
    """Return the unsigned 32-bit hash (murmur2) of Java's client for `size` bytes."""
    digest = _SEED ^ size
    position = start
    for _ in range(size >> 2):
        # By bytes: in C, a byte that is shifted to the sign bit would become negative.
        word = data[position + 3]
        word = word << 8 | data[position + 2]
        word = word << 8 | data[position + 1]
        word = word << 8 | data[position]
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        word = (word * _MULTIPLIER) & _MASK
        digest = ((digest * _MULTIPLIER) & _MASK) ^ word
        position += 4
    rest = size & 3
    if rest:
        word = data[position]
        if rest > 1:
            word |= data[position + 1] << 8
        if rest > 2:
            word |= data[position + 2] << 16
        digest = ((digest ^ word) * _MULTIPLIER) & _MASK
    digest ^= digest >> 13
    digest = (digest * _MULTIPLIER) & _MASK
    return digest ^ digest >> 15


def choose_partitions(
    columns: RecordColumns, given: Column | None, partition_count: int, turn: int, turn_rows: int
) -> bytearray:
    """Return an int32 for each row: its given partition (int32, null: none), or that of its key.

    Rows with neither go round robin: `turn_rows` of them to partition `turn`, modulo the count,
    then as many to the next. Raises ValueError for a given partition that does not exist.
    """
    if partition_count < 1 or turn < 0 or turn_rows < 1:
        raise ValueError("partitions, turns and rows of a turn must be positive")
    chosen = bytearray(4 * columns.rows)
    target = chosen
    left = turn_rows
    for row in range(columns.rows):
        size = columns.key_size(row)
        if given is not None and not given.is_null(row):
            partition = given.int32(row)
            if not 0 <= partition < partition_count:
                raise ValueError(f"partition {partition} is not one of {partition_count}")
        elif size >= 0 and columns.keys is not None:
            digest = murmur2(columns.keys.data, columns.keys.start(row), size)
            partition = (digest & 0x7FFFFFFF) % partition_count
        else:
            if left == 0:
                turn += 1
                left = turn_rows
            left -= 1
            partition = turn % partition_count
        put_int32(target, row, partition)
    return chosen


class OpenBatch:
    """The records of one open batch of a partition, after free bytes for the header.

    `capacity` is the room that they get before they need more.
    """

    def __init__(self, partition: int, capacity: int) -> None:
        self.partition = partition
        self.count = 0
        #: Bytes of `data` in use. The rest is capacity.
        self.size = _HEADER_BYTES
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.data = bytearray(max(capacity, _HEADER_BYTES))
        self._data = self.data
        self._capacity = len(self.data)

    def append(self, columns: RecordColumns, row: int, timestamp: int, fields_size: int) -> None:
        """Append a row, whose key, value and headers take `fields_size` bytes."""
        if self.count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        size = 1 + _varint_size(delta) + _varint_size(self.count) + fields_size
        self._reserve(size + _LENGTH_BYTES_MAX)
        self._put_varint(size)
        # One byte of record attributes, unused in format v2.
        self._put_varint(0)
        self._put_varint(delta)
        self._put_varint(self.count)
        self._put_binary(columns.keys, row)
        self._put_binary(columns.values, row)
        self._put_headers(columns.headers, row)
        self.count += 1

    def _reserve(self, size: int) -> None:
        if size > self._capacity - self.size:
            self.data += bytes(max(size, self._capacity))
            self._data = self.data
            self._capacity = len(self.data)

    def _put_headers(self, headers: Headers | None, row: int) -> None:
        if headers is None:
            self._put_varint(0)
        else:
            start = headers.start(row)
            count = headers.count(row)
            self._put_varint(count)
            for entry in range(start, start + count):
                self._put_binary(headers.names, entry)
                self._put_binary(headers.values, entry)

    def _put_binary(self, column: Binary | None, row: int) -> None:
        if column is None:
            self._put_varint(-1)
        else:
            size = column.size(row)
            self._put_varint(size)
            if size > 0:
                copy(self._data, self.size, column.data, column.start(row), size)
                self.size += size

    def _put_varint(self, value: int) -> None:
        raw = value  # Unsigned in C, where a left shift of a negative number is undefined.
        raw = (raw << 1) ^ (value >> 63)
        while raw > 0x7F:
            self._data[self.size] = (raw & 0x7F) | 0x80
            self.size += 1
            raw >>= 7
        self._data[self.size] = raw
        self.size += 1


class BatchWriter:
    """The open and the finished batches of all partitions of a topic.

    A batch with its header has at most `batch_bytes`, unless a single record is larger.
    """

    def __init__(self, partition_count: int, batch_bytes: int) -> None:
        self._partition_count = partition_count
        self._batch_bytes = batch_bytes
        self._open: list[OpenBatch | None] = [None] * partition_count
        #: In the order in which they were finished. The caller removes them.
        self.finished: list[OpenBatch] = []

    def append(self, columns: RecordColumns, partitions: Buffer, default_timestamp: int) -> None:
        """Append each row to its partition in `partitions` (int32).

        Rows without a timestamp get `default_timestamp`, in milliseconds. Raises ValueError; the
        rows before the invalid one are then in their batches.
        """
        chosen = Column(columns.rows, 0, None, partitions, 4)
        for row in range(columns.rows):
            partition = chosen.int32(row)
            if not 0 <= partition < self._partition_count:
                raise ValueError(f"partition {partition} is not one of {self._partition_count}")
            size = columns.fields_size(row)
            batch = self._open[partition]
            if batch is None:
                batch = OpenBatch(partition, _DATA_CAPACITY)
                self._open[partition] = batch
            elif batch.size + size + _OVERHEAD_MAX > self._batch_bytes:
                self.finished.append(batch)
                # The next batch will probably be full too, so it gets all of its memory at once.
                batch = OpenBatch(partition, self._batch_bytes)
                self._open[partition] = batch
            batch.append(columns, row, columns.timestamp(row, default_timestamp), size)

    def flush(self) -> None:
        """Finish every batch."""
        for batch in self._open:
            if batch is not None:
                self.finished.append(batch)
        self._open = [None] * self._partition_count

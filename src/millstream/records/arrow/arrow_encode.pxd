# C types for arrow_encode.py, read by Cython beside it. Names and meaning are the source's; where a
# type is narrower than Python's int, arrow_encode.py checks the range before it gets there.

cimport cython
from millstream.records.arrow.memory cimport address, copy, get_int32, get_int64, put_int32

cdef Py_ssize_t _OVERHEAD_MAX
cdef Py_ssize_t _LENGTH_BYTES_MAX
cdef Py_ssize_t _DATA_CAPACITY
cdef Py_ssize_t _HEADER_BYTES
cdef long long _MICROS
cdef unsigned long long _SEED
cdef unsigned long long _MULTIPLIER
cdef unsigned long long _MASK

@cython.locals(raw="unsigned long long", size=Py_ssize_t)
cdef Py_ssize_t _varint_size(long long value) noexcept

cdef Py_ssize_t _encoded_size(Py_ssize_t size) noexcept


@cython.final
cdef class Column:
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t _offset
    cdef bint _has_bitmap
    cdef const unsigned char[::1] _bitmap_view
    cdef const unsigned char* _bitmap
    cdef const unsigned char[::1] _numbers_view
    cdef const unsigned char* _numbers

    cdef bint is_null(self, Py_ssize_t row) noexcept
    cdef int int32(self, Py_ssize_t row) noexcept
    cdef long long int64(self, Py_ssize_t row) noexcept


@cython.final
cdef class Binary:
    cdef Column _column
    cdef readonly Py_ssize_t rows
    cdef const unsigned char[::1] _data_view
    cdef Py_ssize_t _data_size
    cdef const unsigned char* data

    cdef Py_ssize_t start(self, Py_ssize_t row) noexcept
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t size(self, Py_ssize_t row) except -2


@cython.final
cdef class Headers:
    cdef Column _column
    cdef readonly Py_ssize_t rows
    cdef Binary names
    cdef Binary values
    cdef Py_ssize_t _entries

    cdef Py_ssize_t start(self, Py_ssize_t row) noexcept
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t count(self, Py_ssize_t row) except -1
    @cython.locals(
        start=Py_ssize_t, count=Py_ssize_t, total=Py_ssize_t, entry=Py_ssize_t, size=Py_ssize_t
    )
    cdef Py_ssize_t encoded_size(self, Py_ssize_t row) except -1


@cython.final
cdef class RecordColumns:
    cdef readonly Py_ssize_t rows
    cdef Binary keys
    cdef Binary values
    cdef Headers headers
    cdef Column timestamps

    cdef Py_ssize_t key_size(self, Py_ssize_t row) except -2
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t fields_size(self, Py_ssize_t row) except -1
    cdef long long timestamp(self, Py_ssize_t row, long long default) noexcept


@cython.locals(
    digest="unsigned long long", word="unsigned long long", position=Py_ssize_t, rest=Py_ssize_t,
    _=Py_ssize_t,
)
cdef unsigned long long murmur2(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t size
) noexcept

@cython.locals(
    target="unsigned char*", left="long long", row=Py_ssize_t, size=Py_ssize_t, partition=int,
    digest="unsigned long long",
)
cpdef bytearray choose_partitions(
    RecordColumns columns, Column given, int partition_count, long long turn, long long turn_rows
)


@cython.final
cdef class OpenBatch:
    cdef readonly int partition
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly bytearray data
    cdef unsigned char* _data
    cdef Py_ssize_t _capacity

    @cython.locals(delta="long long", size=Py_ssize_t)
    cdef int append(
        self, RecordColumns columns, Py_ssize_t row, long long timestamp, Py_ssize_t fields_size
    ) except -1
    cdef int _reserve(self, Py_ssize_t size) except -1
    @cython.locals(start=Py_ssize_t, count=Py_ssize_t, entry=Py_ssize_t)
    cdef int _put_headers(self, Headers headers, Py_ssize_t row) except -1
    @cython.locals(size=Py_ssize_t)
    cdef int _put_binary(self, Binary column, Py_ssize_t row) except -1
    @cython.locals(raw="unsigned long long")
    cdef int _put_varint(self, long long value) except -1


@cython.final
cdef class BatchWriter:
    cdef Py_ssize_t _partition_count
    cdef Py_ssize_t _batch_bytes
    cdef list _open
    cdef readonly list finished

    @cython.locals(
        chosen=Column, row=Py_ssize_t, partition=int, size=Py_ssize_t, batch=OpenBatch
    )
    cpdef append(self, RecordColumns columns, partitions, long long default_timestamp)
    @cython.locals(batch=OpenBatch)
    cpdef flush(self)

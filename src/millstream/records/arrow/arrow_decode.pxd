# C types for arrow_decode.py, read by Cython beside it. Names and meaning are the source's; where a
# type is narrower than Python's int, arrow_decode.py checks the range before it gets there.

cimport cython
from millstream.records.arrow.memory cimport address, copy, put_int32, put_int64

cdef long long _INT64_MAX
cdef long long _INT64_MIN
cdef long long _MILLIS_MAX


@cython.final
cdef class BinaryBuilder:
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_count
    cdef readonly Py_ssize_t size
    cdef readonly bytearray validity
    cdef readonly bytearray offsets
    cdef readonly bytearray data
    cdef unsigned char* _validity
    cdef unsigned char* _offsets
    cdef unsigned char* _data
    cdef Py_ssize_t _row_capacity
    cdef Py_ssize_t _data_capacity

    cdef int _rebase(self) except -1
    cdef int _grow_rows(self) except -1
    cdef int _grow_data(self, Py_ssize_t size) except -1
    @cython.locals(row=Py_ssize_t)
    cdef int append(
        self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size
    ) except -1


@cython.final
cdef class HeadersBuilder:
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_count
    cdef readonly bytearray validity
    cdef readonly bytearray offsets
    cdef readonly BinaryBuilder names
    cdef readonly BinaryBuilder values
    cdef unsigned char* _validity
    cdef unsigned char* _offsets

    @cython.locals(row=Py_ssize_t)
    cdef int end_row(self, Py_ssize_t count) except -1


@cython.final
cdef class Rows:
    cdef readonly Py_ssize_t rows_max
    cdef readonly Py_ssize_t bytes_max
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly bytearray timestamp_types
    cdef readonly BinaryBuilder keys
    cdef readonly BinaryBuilder values
    cdef readonly HeadersBuilder headers
    cdef unsigned char* _offsets
    cdef unsigned char* _timestamps
    cdef unsigned char* _timestamp_types
    cdef bint _has_timestamps
    cdef bint _has_timestamp_types

    cpdef bint is_full(self)
    cdef int start_row(
        self, long long offset, long long timestamp, int timestamp_type, Py_ssize_t size
    ) except -1


@cython.final
cdef class RecordRun:
    cdef const unsigned char[::1] _data
    cdef const unsigned char* _source
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end
    cdef readonly Py_ssize_t remaining
    cdef long long _base_offset
    cdef long long _base_timestamp
    cdef bint _has_append_time
    cdef long long _append_time
    cdef long long _delta
    cdef long long _delta_max

    cpdef read_into(self, Rows rows, long long start, long long end)
    @cython.locals(
        size=Py_ssize_t, record_end=Py_ssize_t, timestamp="long long", delta="long long"
    )
    cdef int _read_record(self, Rows rows, long long start, long long end) except -1
    @cython.locals(
        key_size=Py_ssize_t, key_start=Py_ssize_t, value_size=Py_ssize_t, value_start=Py_ssize_t
    )
    cdef int _append(
        self, Rows rows, long long offset, long long timestamp, Py_ssize_t record_size,
        Py_ssize_t record_end
    ) except -1
    @cython.locals(start=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t, _=Py_ssize_t)
    cdef int _check_headers(self, Py_ssize_t end) except -1
    @cython.locals(count=Py_ssize_t, size=Py_ssize_t, _=Py_ssize_t)
    cdef int _append_headers(self, HeadersBuilder headers, Py_ssize_t end) except -1
    @cython.locals(bits="unsigned char", index=Py_ssize_t, raw=bytes, name=bytes)
    cdef int _append_name(self, BinaryBuilder names, Py_ssize_t size) except -1
    @cython.locals(delta="long long", base="long long")
    cdef Py_ssize_t _read_timestamp(self, Py_ssize_t end) except? -1
    @cython.locals(raw="unsigned long long", byte="unsigned long long", shift=int)
    cdef Py_ssize_t _read_varint(self, Py_ssize_t end) except? -1
    @cython.locals(raw="unsigned long long", byte="unsigned long long", shift=int)
    cdef Py_ssize_t _read_varlong(self, Py_ssize_t end) except? -1
    @cython.locals(size="long long")
    cdef Py_ssize_t _read_size(self, Py_ssize_t end) except -2

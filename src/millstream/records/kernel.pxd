# C types for kernel.py, read by Cython beside it. Names and meaning are the source's; where a
# type is narrower than Python's int, kernel.py checks the range before it gets there.

cimport cython

cdef long long _INT64_MAX
cdef long long _INT64_MIN
cdef object _new_tuple

@cython.locals(raw="unsigned long long", byte="unsigned long long", shift=int)
cdef (long long, Py_ssize_t) _read_varint(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) except *

@cython.locals(raw="unsigned long long", byte="unsigned long long", shift=int)
cdef (long long, Py_ssize_t) _read_varlong(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) except *

@cython.locals(size="long long")
cdef (long long, Py_ssize_t) _read_size(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) except *

cdef long long _add_delta(long long base, long long delta, Py_ssize_t position) except? -1

@cython.locals(size="long long", headers=list, _=Py_ssize_t)
cdef list _read_headers(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count
)

@cython.locals(
    records=list, end=Py_ssize_t, source="const unsigned char *", position=Py_ssize_t,
    record_end=Py_ssize_t, size="long long", timestamp_delta="long long",
    offset_delta="long long", header_count="long long", _=Py_ssize_t,
)
cpdef list decode(
    record_type, bytes data, Py_ssize_t count, long long base_offset, long long base_timestamp,
    append_time
)

@cython.locals(
    listed=list, without_key=Py_ssize_t, untimely=Py_ssize_t, max_timestamp="long long",
    end=Py_ssize_t, source="const unsigned char *", position=Py_ssize_t, record_end=Py_ssize_t,
    size="long long", delta="long long", timestamp="long long", header_count="long long",
    index=Py_ssize_t,
)
cpdef tuple find_rejected(
    bytes data, Py_ssize_t count, long long base_timestamp, long long earliest, long long latest,
    bint is_key_required, Py_ssize_t listed_max
)

@cython.locals(size="long long", _=Py_ssize_t)
cdef int _skip_headers(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count
) except -1

@cython.locals(raw="unsigned long long")
cdef int _put_varint(bytearray target, long long value) except -1

cdef int _put_bytes(bytearray target, value) except -1

@cython.locals(target=bytearray, body=bytearray)
cpdef bytearray encode(records, long long base_offset, long long base_timestamp)

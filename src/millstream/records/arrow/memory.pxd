# The C form of memory.py: what Python has no words for and a kernel needs for every record. Only
# inline functions, so that a kernel that cimports them needs no compiled memory module.

cimport cython
from libc.string cimport memcpy


@cython.boundscheck(False)
cdef inline const unsigned char* address(const unsigned char[::1] view) noexcept:
    return &view[0] if view.shape[0] > 0 else NULL


cdef inline void copy(
    unsigned char* target, Py_ssize_t position, const unsigned char* source, Py_ssize_t start,
    Py_ssize_t size
) noexcept:
    memcpy(target + position, source + start, size)


cdef inline void put_int32(unsigned char* target, Py_ssize_t index, int value) noexcept:
    memcpy(target + 4 * index, &value, 4)


cdef inline void put_int64(unsigned char* target, Py_ssize_t index, long long value) noexcept:
    memcpy(target + 8 * index, &value, 8)


cdef inline int get_int32(const unsigned char* source, Py_ssize_t index) noexcept:
    cdef int value
    memcpy(&value, source + 4 * index, 4)
    return value


cdef inline long long get_int64(const unsigned char* source, Py_ssize_t index) noexcept:
    cdef long long value
    memcpy(&value, source + 8 * index, 8)
    return value

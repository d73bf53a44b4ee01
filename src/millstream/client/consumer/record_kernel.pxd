# C types for kernel.py, read by Cython beside it.

cdef class Record:
    cdef readonly object _message

cdef class DecodedRecord(Record):
    cdef object _key
    cdef object _value

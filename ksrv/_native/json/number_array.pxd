"""C declarations of native/json/number_array.hpp for the other compiled modules."""

from libc.stdint cimport uint64_t

from ksrv._native.tensor.datatype cimport Datatype


cdef extern from "json/number_array.hpp" namespace "ksrv" nogil:
    cdef enum NumbersFault:
        NUMBERS_OK
        NUMBERS_SYNTAX
        NUMBERS_END
        NUMBERS_KIND
        NUMBERS_FRACTION
        NUMBERS_RANGE

    cdef cppclass NumbersResult:
        NumbersFault error
        size_t offset
        uint64_t count

    NumbersFault read_numbers(
        const char *data, size_t length, Datatype datatype, void *out, uint64_t capacity,
        NumbersResult *result
    )

# Locals.
# cython: freethreading_compatible = True
"""The numbers of a JSON tensor, straight into an array: Python face of number_array.hpp."""

from cpython.buffer cimport (
    Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uint64_t

import numpy as np

from ksrv._native.tensor.datatype cimport (
    DT_BYTES, DT_FP16, DT_BF16, DT_INVALID, Datatype, datatype_of,
)

from ksrv._native.tensor.datatype import dtype_string

cdef dict CODES = {
    <int>NUMBERS_SYNTAX: "syntax",
    <int>NUMBERS_END: "end",
    <int>NUMBERS_KIND: "kind",
    <int>NUMBERS_FRACTION: "fraction",
    <int>NUMBERS_RANGE: "range",
}


class NumbersError(ValueError):
    """What is wrong with the numbers of a JSON tensor.

    Attributes:
        code: "syntax", "end", "kind", "fraction", "range" or "count".
        offset: The byte, counted from the opening bracket.
        count: The index of the value at fault; for "count" how many values there are.
    """

    def __init__(self, code, offset, count):
        super().__init__(code)
        self.code = code
        self.offset = offset
        self.count = count


def read(buffer, size_t begin, size_t end, str datatype not None, uint64_t count):
    """Return the values of a JSON array, flat or nested, as a one-dimensional array.

    Args:
        buffer: Any C-contiguous buffer.
        begin: Where in it the opening bracket is.
        end: Where the byte behind the closing bracket is.
        datatype: A KServe v2 datatype other than BYTES, FP16 and BF16.
        count: The number of values that the shape asks for.

    Raises:
        NumbersError: The array does not hold exactly `count` values of the datatype.
        ValueError: JSON does not carry the datatype, or the span lies outside the buffer.
    """
    cdef bytes encoded = datatype.encode("utf-8", "surrogatepass")
    cdef Datatype found = datatype_of(encoded, <size_t>len(encoded))
    cdef Py_buffer export
    cdef Py_buffer target
    cdef NumbersResult result
    cdef uint64_t capacity = 0
    cdef object array
    cdef const char *start
    cdef void *out
    if found == DT_INVALID or found == DT_BYTES or found == DT_FP16 or found == DT_BF16:
        raise ValueError(f"{datatype} has no JSON form")
    PyObject_GetBuffer(buffer, &export, PyBUF_SIMPLE)
    try:
        if begin > end or end > <size_t>export.len:
            raise ValueError(f"the span {begin} to {end} does not lie within {export.len} bytes")
        # A value takes two bytes at least; a count that cannot be met is not allocated for.
        if count <= (end - begin) / 2:
            capacity = count
        array = np.empty(capacity, dtype_string(datatype))
        PyObject_GetBuffer(array, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        start = <const char *>export.buf + begin
        out = target.buf
        with nogil:
            read_numbers(start, end - begin, found, out, capacity, &result)
        PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&export)
    if result.error != NUMBERS_OK:
        raise NumbersError(CODES[<int>result.error], result.offset, result.count)
    if result.count != count:
        raise NumbersError("count", 0, result.count)
    return array

# Safe without the GIL: functions use only local variables.
# cython: freethreading_compatible = True
"""Reads the numbers of a JSON tensor into an array, and writes them, with number_array.hpp."""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
cimport cython
from libc.stdint cimport uint64_t

from native.base.text_writer cimport TextWriter
from native.json.number_array cimport (
    NUMBERS_END, NUMBERS_FRACTION, NUMBERS_KIND, NUMBERS_OK, NUMBERS_RANGE, NUMBERS_SYNTAX,
    NumbersResult, read_numbers,
)
from native.json.number_writer cimport json_value_bytes, put_numbers
from native.tensor.datatype cimport (
    DT_BF16, DT_BYTES, DT_FP16, DT_INVALID, Datatype, datatype_of, item_size_of,
)

from ksrv._native.memory.exported_bytes cimport ExportedBytes

import numpy as np


from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.datatype import DTYPES

if not cython.compiled:
    from typing import Any

    import numpy.typing as npt
    from typing_extensions import Buffer

cdef dict CODES = {
    <int>NUMBERS_SYNTAX: "syntax",
    <int>NUMBERS_END: "end",
    <int>NUMBERS_KIND: "kind",
    <int>NUMBERS_FRACTION: "fraction",
    <int>NUMBERS_RANGE: "range",
}


class NumbersError(ValueError):
    """A fault in the numbers of a JSON tensor.

    Attributes:
        code: "syntax", "end", "kind", "fraction", "range" or "count".
        offset: The byte, counted from the opening bracket.
        count: The index of the faulty value; for "count" the number of values in the text.
    """

    code: str
    offset: int
    count: int

    def __init__(self, code: str, offset: int, count: int):
        super().__init__(code)
        self.code = code
        self.offset = offset
        self.count = count


def read(
    buffer: Buffer,
    size_t begin,
    size_t end,
    str datatype not None,
    uint64_t count,
) -> npt.NDArray[Any]:
    """Return the values of a JSON array, flat or nested, as a one-dimensional array.

    Args:
        begin: Offset of the opening bracket.
        end: Offset of the byte after the closing bracket.
        datatype: A KServe v2 datatype other than BYTES, FP16 and BF16.
        count: The number of values that the shape asks for.

    Raises:
        NumbersError: The array does not hold exactly `count` values of the datatype.
        ValueError: JSON cannot represent the datatype, or the span exceeds the buffer.
    """
    cdef bytes encoded = datatype.encode("utf-8", "surrogatepass")
    cdef Datatype found = datatype_of(encoded, <size_t>len(encoded))
    cdef ExportedBytes text
    cdef Py_buffer target
    cdef NumbersResult result
    cdef uint64_t capacity = 0
    cdef object array, block
    cdef const char *start
    cdef void *out
    if found == DT_INVALID or found == DT_BYTES or found == DT_FP16 or found == DT_BF16:
        raise ValueError(f"{datatype} has no JSON form")
    text.take(buffer)
    if begin > end or end > text.length:
        raise ValueError(f"the span {begin} to {end} does not lie within {text.length} bytes")
    # A value takes at least two bytes, so memory is not allocated for an impossible count.
    if count <= (end - begin) / 2:
        capacity = count
    # A large block can be lent to a handler process, like the memory of a body.
    block = buffer_pool.lease_body(capacity * item_size_of(found))
    array = np.ndarray(capacity, DTYPES[<int>found], block)
    PyObject_GetBuffer(array, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    start = <const char *>text.data + begin
    out = target.buf
    with nogil:
        read_numbers(start, end - begin, found, out, capacity, &result)
    PyBuffer_Release(&target)
    if result.error != NUMBERS_OK:
        raise NumbersError(CODES[<int>result.error], result.offset, result.count)
    if result.count != count:
        raise NumbersError("count", 0, result.count)
    return array


def write(array: Buffer, str datatype not None) -> bytes:
    """Return the values of an array as a flat JSON array. NaN and infinities become null.

    Args:
        array: Any C-contiguous buffer of the datatype's values.
        datatype: A KServe v2 datatype other than BYTES, FP16 and BF16.

    Raises:
        ValueError: JSON cannot represent the datatype, or the buffer does not hold whole values.
    """
    cdef bytes encoded = datatype.encode("utf-8", "surrogatepass")
    cdef Datatype found = datatype_of(encoded, <size_t>len(encoded))
    cdef size_t width = json_value_bytes(found)
    cdef ExportedBytes source
    cdef uint64_t count = 0
    cdef size_t length = 0
    cdef bytes text
    cdef char *room
    if width == 0:
        raise ValueError(f"{datatype} has no JSON form")
    source.take(array)
    count = source.length // item_size_of(found)
    if count * item_size_of(found) != source.length:
        raise ValueError(f"{source.length} bytes are not {datatype} values")
    text = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * width + 2))
    room = PyBytes_AS_STRING(text)
    with nogil:
        length = _write(room, count * width + 2, found, source.data, count)
    return text[:length]


cdef size_t _write(
    char *room, size_t size, Datatype datatype, const unsigned char *data, uint64_t count
) noexcept nogil:
    cdef TextWriter *out = new TextWriter(room, size)
    cdef size_t length
    put_numbers(out[0], datatype, data, count)
    length = out.length()
    del out
    return length

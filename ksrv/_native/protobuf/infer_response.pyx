# Safe without the GIL: functions use only local variables.
# cython: freethreading_compatible = True
"""Writes ModelInferResponse messages, with one copy of their tensors or without a copy.

The small fields are encoded first. Then the message is allocated once, in its final size, and every
tensor is copied into raw_output_contents. If the message may be sent in parts, large tensors are
not copied. wire_format.hpp has the wire format.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from native.protobuf.wire_format cimport (
    BYTES as WIRE_BYTES, FIXED64 as WIRE_FIXED64, VARINT as WIRE_VARINT, Writer, put_varint,
    varint_size,
)

if not cython.compiled:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, TypeAlias

    import numpy.typing as npt

    Parameters: TypeAlias = Mapping[str, bool | int | float | str]
    Values: TypeAlias = npt.NDArray[Any] | list[bytes | memoryview]
    OutputTensor: TypeAlias = tuple[str, str, Sequence[int], Parameters, Values]

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

MAX_MESSAGE = 2147483647

cdef enum:
    RELEASE_FROM = 65536  # copies of this size or more are made without the GIL
    # Fields of ModelInferResponse: 1 model_name, 2 model_version, 3 id, 4 parameters, 5 outputs,
    # and of an output: 1 name, 2 datatype, 3 shape, 4 parameters.
    RAW_OUTPUT_CONTENTS = 6
    # The field of ModelStreamInferResponse.
    INFER_RESPONSE = 2
    # Tensors of this size or more are not copied if the message is sent in parts.
    APART_FROM = 65536
    # Fields of InferParameter.
    BOOL_PARAM = 1
    INT64_PARAM = 2
    STRING_PARAM = 3
    DOUBLE_PARAM = 4
    UINT64_PARAM = 5


cdef int _write_text(Writer &out, unsigned field, str text) except -1:
    cdef Py_ssize_t size
    cdef const char *encoded = PyUnicode_AsUTF8AndSize(text, &size)
    if size:
        out.bytes(field, encoded, <size_t>size)
    return 0


cdef int _write_parameters(Writer &out, unsigned field, parameters) except -1:
    cdef Writer entry
    cdef Writer choice
    cdef Py_ssize_t size
    cdef const char *encoded
    cdef double number
    cdef uint64_t bits
    for key, value in parameters.items():
        entry.clear()
        choice.clear()
        encoded = PyUnicode_AsUTF8AndSize(key, &size)
        entry.bytes(1, encoded, <size_t>size)
        if isinstance(value, bool):
            choice.tag(BOOL_PARAM, WIRE_VARINT)
            choice.varint(1 if value else 0)
        elif isinstance(value, int):
            if value > 0x7FFFFFFFFFFFFFFF:
                bits = value
                choice.tag(UINT64_PARAM, WIRE_VARINT)
            else:
                bits = <uint64_t><int64_t>value
                choice.tag(INT64_PARAM, WIRE_VARINT)
            choice.varint(bits)
        elif isinstance(value, float):
            number = value
            memcpy(&bits, &number, sizeof(bits))
            choice.tag(DOUBLE_PARAM, WIRE_FIXED64)
            choice.fixed64(bits)
        elif isinstance(value, str):
            encoded = PyUnicode_AsUTF8AndSize(value, &size)
            choice.bytes(STRING_PARAM, encoded, <size_t>size)
        else:
            raise TypeError(
                f"parameter {key!r} is a {type(value).__name__}, not a bool, int, float or str"
            )
        entry.bytes(2, choice.data(), choice.size())
        if entry.failed() or choice.failed():
            raise MemoryError("no memory for a response's parameters")
        out.bytes(field, entry.data(), entry.size())
    return 0


cdef int _write_output(
    Writer &out, Writer &entry, Writer &shape, str name, str datatype, dimensions, parameters
) except -1:
    cdef int64_t dimension
    entry.clear()
    shape.clear()
    _write_text(entry, 1, name)
    _write_text(entry, 2, datatype)
    for dimension in dimensions:
        shape.varint(<uint64_t>dimension)
    if shape.size():
        entry.bytes(3, shape.data(), shape.size())
    if parameters:
        _write_parameters(entry, 4, parameters)
    if entry.failed() or shape.failed():
        raise MemoryError("no memory for a response's small fields")
    out.bytes(5, entry.data(), entry.size())
    return 0


@cython.final
cdef class _Payload:
    """Holds the exported buffers of one output: of one array, or of the elements of BYTES."""

    cdef Py_buffer *exports
    cdef Py_ssize_t count
    cdef bint elements
    cdef size_t size
    cdef object data

    def __cinit__(self, data):
        cdef object item
        self.data = data
        self.elements = isinstance(data, list)
        cdef Py_ssize_t expected = len(data) if self.elements else 1
        self.exports = <Py_buffer *>PyMem_Malloc(<size_t>expected * sizeof(Py_buffer))
        if self.exports == NULL:
            raise MemoryError("no memory for an output's buffers")
        for item in data if self.elements else (data,):
            if self.count == expected:
                raise RuntimeError("an output's list of elements grew while it was read")
            PyObject_GetBuffer(item, &self.exports[self.count], PyBUF_SIMPLE)
            self.size += <size_t>self.exports[self.count].len
            if self.elements:
                self.size += 4
                if <uint64_t>self.exports[self.count].len > 0xFFFFFFFF:
                    self.count += 1  # so that __dealloc__ releases it
                    raise ValueError("an element of 4 GiB or more has no length prefix")
            self.count += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.exports != NULL:
            for i in range(self.count):
                PyBuffer_Release(&self.exports[i])
            PyMem_Free(self.exports)

    cdef bint is_separate(self):
        """Whether the bytes become a separate part of a message in parts."""
        return not self.elements and self.size >= APART_FROM

    cdef unsigned char *copy(self, unsigned char *out) noexcept nogil:
        cdef Py_ssize_t i
        cdef uint32_t length
        for i in range(self.count):
            if self.elements:
                length = <uint32_t>self.exports[i].len
                memcpy(out, &length, 4)
                out += 4
            if self.exports[i].len:
                memcpy(out, self.exports[i].buf, <size_t>self.exports[i].len)
            out += self.exports[i].len
        return out


cdef bytes _written(Writer &out):
    return PyBytes_FromStringAndSize(<const char *>out.data(), <Py_ssize_t>out.size())


cdef list _parts(Writer &head, list payloads):
    """Return the parts of a message: bytes and uncopied tensors. None if all are copied."""
    cdef list parts = []
    cdef _Payload payload
    cdef bint any_separate = False
    cdef bytes small
    for payload in payloads:
        any_separate = any_separate or payload.is_separate()
    if not any_separate:
        return None
    for payload in payloads:
        head.tag(RAW_OUTPUT_CONTENTS, WIRE_BYTES)
        head.varint(payload.size)
        if payload.is_separate():
            parts.append(_written(head))
            parts.append(payload.data)
        elif payload.elements:
            parts.append(_written(head))
            small = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>payload.size)
            payload.copy(<unsigned char *>PyBytes_AS_STRING(small))
            parts.append(small)
        else:
            head.raw(payload.exports[0].buf, payload.size)
            continue
        head.clear()
    if head.failed():
        raise MemoryError("no memory for a response's small fields")
    if head.size():
        parts.append(_written(head))
    return parts


def render(
    str model_name not None,
    str model_version not None,
    str id not None,
    parameters not None: Parameters,
    outputs not None: Iterable[OutputTensor],
    *,
    bint stream=False,
    bint apart=False,
) -> Any:
    """Serialize a ModelInferResponse with its tensors in raw_output_contents.

    Args:
        parameters: The response's parameters by name: bool, int, float or str.
        outputs: For each output its name, datatype, shape, parameters and data: a C-contiguous
            little-endian buffer, or the list of elements of a BYTES tensor.
        stream: Whether to wrap the answer into a ModelStreamInferResponse.
        apart: Whether the message may be returned in parts, with large tensors left in the caller's
            memory.

    Returns:
        The message, or the list of its parts.

    Raises:
        ValueError: The message would be longer than protobuf allows.
        OverflowError: A parameter does not fit 64 bits.
        TypeError: A parameter is not a scalar.
        UnicodeEncodeError: A name or string parameter is not valid Unicode.
        BufferError: A buffer is not contiguous.
    """
    cdef Writer head
    cdef Writer entry
    cdef Writer shape
    cdef list payloads = []
    cdef _Payload payload
    cdef uint64_t total
    cdef uint64_t wrapped = 0
    cdef bytes message
    cdef unsigned char *out
    cdef list parts = None
    _write_text(head, 1, model_name)
    _write_text(head, 2, model_version)
    _write_text(head, 3, id)
    if parameters:
        _write_parameters(head, 4, parameters)
    for name, datatype, dimensions, output_parameters, data in outputs:
        _write_output(
            head, entry, shape, name, datatype, dimensions, output_parameters
        )
        payloads.append(_Payload(data))
    if head.failed():
        raise MemoryError("no memory for a response's small fields")
    total = head.size()
    for payload in payloads:
        total += 1 + varint_size(payload.size) + payload.size
    if stream:
        wrapped = total
        total += 1 + varint_size(wrapped)
    if total > <uint64_t>0x7FFFFFFF:
        raise ValueError(
            f"the answer has {total} bytes, and a gRPC message holds at most {0x7FFFFFFF}; "
            f"send smaller batches, or use REST"
        )
    if apart and not stream:
        parts = _parts(head, payloads)
        if parts is not None:
            return parts
    message = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    out = <unsigned char *>PyBytes_AS_STRING(message)
    if stream:
        out[0] = (INFER_RESPONSE << 3) | WIRE_BYTES
        out = put_varint(out + 1, wrapped)
    memcpy(out, head.data(), head.size())
    out += head.size()
    for payload in payloads:
        out[0] = (RAW_OUTPUT_CONTENTS << 3) | WIRE_BYTES
        out = put_varint(out + 1, payload.size)
        if payload.size >= RELEASE_FROM:
            with nogil:
                out = payload.copy(out)
        else:
            out = payload.copy(out)
    return message

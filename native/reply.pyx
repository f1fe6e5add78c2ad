"""The answer that nearly every binary request gets, written without a JSON library.

It is the same text, byte for byte, as the general renderer writes. What is not of the common form
(an output as JSON, parameters, headers of the handler, a name that needs escaping, an array that
must be made contiguous first) is left to that renderer.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

cdef enum:
    ROOM = 4096


cdef struct Writer:
    char text[ROOM]
    Py_ssize_t length
    bint full


cdef inline void put(Writer *out, const char *text, Py_ssize_t length) noexcept:
    if out.length + length > ROOM:
        out.full = True
        return
    memcpy(out.text + out.length, text, length)
    out.length += length


cdef inline void put_text(Writer *out, const char *text) noexcept:
    cdef Py_ssize_t length = 0
    while text[length]:
        length += 1
    put(out, text, length)


cdef inline void put_number(Writer *out, int64_t number) noexcept:
    cdef char digits[24]
    put(out, digits, snprintf(digits, 24, "%lld", <long long>number))


cdef bint put_string(Writer *out, object text) except -1:
    """Write a JSON string; False for one that needs escaping or is not ASCII."""
    cdef Py_ssize_t length, i
    cdef const char *raw
    if type(text) is not str:
        return False
    raw = PyUnicode_AsUTF8AndSize(text, &length)
    for i in range(length):
        if raw[i] < 0x20 or raw[i] == c'"' or raw[i] == c"\\" or raw[i] == 0x7f:
            return False
    put(out, b'"', 1)
    put(out, raw, length)
    put(out, b'"', 1)
    return True


cdef Py_ssize_t block_bytes(object data) except -2:
    """The bytes of an array that can be sent as it lies; -1 for one that cannot."""
    cdef Py_buffer view
    cdef Py_ssize_t nbytes = -1
    if not PyObject_CheckBuffer(data):
        return -1
    try:
        PyObject_GetBuffer(data, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):
        return -1
    if view.format == NULL or view.format[0] != c">":
        nbytes = view.len
    PyBuffer_Release(&view)
    return nbytes


cdef bint is_binary(object name, object asked, bint otherwise) except -1:
    cdef object one
    cdef bint binary = otherwise
    for one in asked:
        if one.name == name:
            binary = otherwise if one.binary is None else one.binary
    return binary


def binary_reply(response, request):
    """Write an answer of the common form.

    Args:
        response: The `InferResponse`.
        request: The `InferRequest` that it answers.

    Returns:
        The header lines that Falcon would send and the parts of the body, or None where the
        general renderer is needed.
    """
    cdef Writer out
    cdef Writer fields
    cdef Py_ssize_t nbytes
    cdef int64_t total
    cdef object tensor, data, stage, nanoseconds
    cdef object asked = request.outputs
    cdef bint otherwise = request.binary_output
    cdef bint first = True
    cdef list parts = [None]
    cdef char number[48]
    if response.headers or response.parameters or not response.outputs:
        return None
    out.length = fields.length = 0
    out.full = fields.full = False
    put_text(&out, b'{"model_name":')
    if not put_string(&out, response.model_name):
        return None
    if response.model_version:
        put_text(&out, b',"model_version":')
        if not put_string(&out, response.model_version):
            return None
    if response.id:
        put_text(&out, b',"id":')
        if not put_string(&out, response.id):
            return None
    put_text(&out, b',"outputs":[')
    total = 0
    for tensor in response.outputs:
        data = tensor.data
        if tensor.parameters or not is_binary(tensor.name, asked, otherwise):
            return None
        nbytes = block_bytes(data)
        if nbytes < 0:
            return None
        put_text(&out, b'{"name":' if first else b',{"name":')
        if not put_string(&out, tensor.name):
            return None
        put_text(&out, b',"datatype":')
        if not put_string(&out, tensor.datatype):
            return None
        put_text(&out, b',"shape":[')
        first = True
        for size in tensor.shape:
            if not first:
                put(&out, b",", 1)
            put_number(&out, size)
            first = False
        put_text(&out, b'],"parameters":{"binary_data_size":')
        put_number(&out, nbytes)
        put_text(&out, b"}}")
        first = False
        total += nbytes
        parts.append(data)
    put_text(&out, b"]}")
    put_text(&fields, b"content-type: application/octet-stream\r\n")
    put_text(&fields, b"inference-header-content-length: ")
    put_number(&fields, out.length)
    if response.timings:
        put_text(&fields, b"\r\nserver-timing: ")
        first = True
        for stage, nanoseconds in response.timings.items():
            if not first:
                put_text(&fields, b", ")
            first = False
            put_text(&fields, PyUnicode_AsUTF8AndSize(stage, NULL))
            put(&fields, number, snprintf(number, 48, ";dur=%.3f", <double>nanoseconds / 1e6))
    put_text(&fields, b"\r\ncontent-length: ")
    put_number(&fields, out.length + total)
    put_text(&fields, b"\r\n")
    if out.full or fields.full:
        return None
    parts[0] = PyBytes_FromStringAndSize(out.text, out.length)
    return PyBytes_FromStringAndSize(fields.text, fields.length), parts

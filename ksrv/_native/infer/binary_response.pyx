# Needs the GIL: Python objects pass from one thread to another.
"""Writes the most common binary answers without a JSON library.

The text is byte for byte the text of the general renderer. Answers of any other form (an output as
JSON, parameters, headers of the handler, a name that needs escaping, an array that must be made
contiguous) are left to the general renderer.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint64_t

from ksrv._native.tensor.datatype cimport RANK_LIMIT

if not cython.compiled:
    from typing import Any

cdef extern from "infer/binary_response.hpp" namespace "ksrv" nogil:
    cdef cppclass TextWriter:
        const char *text()
        size_t length()
        bint full()

    # 4 KiB is enough for nearly every answer. Longer answers are left to the general renderer.
    cdef cppclass Text "ksrv::TextRoom<4096>"(TextWriter):
        Text()

    bint begin_reply(
        TextWriter &out, const char *model, size_t model_length, const char *version,
        size_t version_length, const char *id, size_t id_length
    )
    bint begin_output(
        TextWriter &out, bint first, const char *name, size_t name_length, const char *datatype,
        size_t datatype_length, const int64_t *shape, int rank, int64_t rows
    )
    void end_binary_output(TextWriter &out, int64_t nbytes)
    void end_reply(TextWriter &out)
    void begin_fields(TextWriter &fields, size_t json_length)
    void put_stage(
        TextWriter &fields, bint first, const char *stage, size_t length, uint64_t nanoseconds
    )
    void end_fields(TextWriter &fields, bint timed, uint64_t content_length)

cdef struct Words:
    const char *text
    size_t length


cdef bint words(object text, Words *out) except -1:
    """Read the UTF-8 of a string. False if the value is not a string."""
    cdef Py_ssize_t length = 0
    if type(text) is not str:
        return False
    out.text = PyUnicode_AsUTF8AndSize(text, &length)
    out.length = <size_t>length
    return True


cdef Py_ssize_t block_bytes(object data) except -2:
    """Return the bytes of an array that can be sent without a copy, or -1 for any other array."""
    cdef Py_buffer view
    cdef Py_ssize_t nbytes = -1
    if not PyObject_CheckBuffer(data):
        return -1
    try:
        PyObject_GetBuffer(data, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):
        return -1
    if view.format == NULL or view.format[0] != c">":  # big-endian numbers would be converted
        nbytes = view.len
    PyBuffer_Release(&view)
    return nbytes


cdef bint is_binary(object name, object asked, bint otherwise) except -1:
    """Whether an output is sent as binary data: by its entry in `asked`, else `otherwise`."""
    cdef object output
    cdef bint binary = otherwise
    for output in asked:
        if output.name == name:
            binary = otherwise if output.binary is None else output.binary
    return binary


def binary_reply(object response, object request) -> tuple[bytes, list[Any]] | None:
    """Write an answer of the common form.

    Args:
        response: The `InferResponse`.
        request: The `InferRequest` that it answers.

    Returns:
        The header lines that Falcon would send and the parts of the body, or None if the general
        renderer is needed.
    """
    cdef Text out
    cdef Text fields
    cdef Words model, version, id_, name, kind
    cdef int64_t shape[RANK_LIMIT]
    cdef int rank
    cdef Py_ssize_t nbytes
    cdef uint64_t total = 0
    cdef object tensor, data, stage, nanoseconds
    cdef object asked = request.outputs
    cdef bint otherwise = request.binary_output
    cdef bint first = True
    cdef list parts = [None]  # the JSON, whose length is known last, then the tensors
    if response.headers or response.parameters or not response.outputs:
        return None
    if not (words(response.model_name, &model) and words(response.model_version, &version)
            and words(response.id, &id_)):
        return None
    if not begin_reply(out, model.text, model.length, version.text, version.length, id_.text,
                       id_.length):
        return None
    for tensor in response.outputs:
        data = tensor.data
        if tensor.parameters or not is_binary(tensor.name, asked, otherwise):
            return None
        nbytes = block_bytes(data)
        if nbytes < 0 or not (words(tensor.name, &name) and words(tensor.datatype, &kind)):
            return None
        rank = 0
        for size in tensor.shape:
            if rank == RANK_LIMIT:
                return None
            shape[rank] = size
            rank += 1
        # -1: the shape has the number of rows already
        if not begin_output(
            out, first, name.text, name.length, kind.text, kind.length, shape, rank, -1
        ):
            return None
        end_binary_output(out, nbytes)
        first = False
        total += <uint64_t>nbytes
        parts.append(data)
    end_reply(out)
    begin_fields(fields, out.length())
    first = True
    for stage, nanoseconds in response.timings.items():
        if not words(stage, &name):
            return None
        put_stage(fields, first, name.text, name.length, nanoseconds)
        first = False
    end_fields(fields, not first, out.length() + total)
    if out.full() or fields.full():
        return None
    parts[0] = PyBytes_FromStringAndSize(out.text(), <Py_ssize_t>out.length())
    return PyBytes_FromStringAndSize(fields.text(), <Py_ssize_t>fields.length()), parts

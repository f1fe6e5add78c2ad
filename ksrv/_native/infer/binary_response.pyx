# Needs the GIL: Python objects pass from one thread to another.
"""Writes the most common answers with binary tensors over REST, without a JSON library.

The general renderer is in `ksrv.server.rest.fast_path` and `ksrv.protocol.rest`; the text is byte
for byte the same. Answers of any other form (an output as JSON, parameters, headers of the handler,
a name that needs escaping, an array that must be made contiguous) are left to it.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
cimport cython
from libc.stdint cimport int64_t, uint64_t

from native.infer.binary_response cimport (
    ReplyText, begin_fields, begin_output, begin_reply, end_binary_output, end_fields, end_reply,
    put_stage,
)
from native.tensor.datatype cimport MAX_RANK as RANK_LIMIT

if not cython.compiled:
    from typing import Any

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


cdef bint is_binary(object name, object requested, bint default) except -1:
    """Whether an output is sent as binary data: by its entry in `requested`, else `default`."""
    cdef object output
    cdef bint binary = default
    for output in requested:
        if output.name == name:
            binary = default if output.binary is None else output.binary
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
    cdef ReplyText out
    cdef ReplyText fields
    cdef Words model, version, id_, name, kind
    cdef int64_t shape[RANK_LIMIT]
    cdef int rank
    cdef Py_ssize_t nbytes
    cdef uint64_t total = 0
    cdef object tensor, data, stage, nanoseconds
    cdef object requested = request.outputs
    cdef bint default = request.binary_output
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
        if tensor.parameters or not is_binary(tensor.name, requested, default):
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
        if not begin_output[int64_t](
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

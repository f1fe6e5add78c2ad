# Safe without the GIL: a scan's results are written only by the call that creates them.
# cython: freethreading_compatible = True
"""PredictRequest and PredictResponse without the protobuf library, by predict_message.hpp.

`PREDICT_FORM` gives the gRPC server the functions with which a Predict call needs no Python before
its handler.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
cimport cython
from libc.stdint cimport int64_t
from libcpp.string cimport string

from native.grpc.fast_call cimport MessageForm as CMessageForm
from native.protobuf.infer_request cimport Limits, Outcome, Request
from native.protobuf.wire_format cimport Writer
from native.tensor.datatype cimport DATATYPES, DT_COUNT, Datatype, datatype_of

from ksrv._native.grpc.grpc_call cimport MessageForm, form_of
from ksrv._native.protobuf.infer_request cimport ksrv_scan

if not cython.compiled:
    from ksrv._native.protobuf.infer_request import Request as ScannedRequest

cdef extern from "../ksrv/dialects/tfserving/predict_message.hpp" namespace "ksrv::tfserving" nogil:
    cdef struct Kind:
        int number
        unsigned field
    const Kind KINDS[]
    const CMessageForm PREDICT
    Outcome c_scan "ksrv::tfserving::scan_request"(
        const unsigned char *message, size_t size, const Limits &limits, Request &found
    ) noexcept
    bint is_raw(Datatype kind) noexcept
    void put_varints(Writer &out, Datatype kind, const unsigned char *data, size_t size) noexcept
    void put_head(
        Writer &out, const string &name, Datatype kind, const int64_t *shape, size_t rank,
        size_t length,
    ) noexcept
    void put_spec(Writer &out, const string &name, const char *version) noexcept

PREDICT_FORM: MessageForm = form_of(&PREDICT)
"""The form of Predict's messages."""
NUMBERS: dict[str, int] = {
    (<bytes>DATATYPES[i].name).decode(): KINDS[i].number for i in range(<int>DT_COUNT)
}
"""The value in TensorFlow's DataType of each datatype."""
FIELDS: dict[str, int] = {
    (<bytes>DATATYPES[i].name).decode(): KINDS[i].field for i in range(<int>DT_COUNT)
}
"""The number of the typed field in TensorProto of each datatype."""
RAW_FIELDS: frozenset[str] = frozenset([name for i, name in enumerate(FIELDS) if is_raw(i)])
"""The datatypes whose values in a typed field are the bytes of the array."""


def scan(
    message not None: bytes | memoryview,
    *,
    size_t inputs,
    size_t rank,
    size_t parameters,
    size_t text,
) -> ScannedRequest | None:
    """Record the fields of a serialized PredictRequest; see `ksrv._native.protobuf.infer_request`.

    Args:
        message: The received bytes; any contiguous buffer.
        inputs: Limit for the inputs, and for the requested outputs.
        rank: Limit for the dimensions of a shape; at most 32.
        parameters: At least 1, for the version.
        text: Limit for the bytes of all names together.

    Returns:
        The request, or None if the message must be re-encoded with the protobuf class first.

    Raises:
        MessageError: The bytes are not a PredictRequest, or exceed a limit.
    """
    cdef Limits limits
    limits.inputs, limits.rank, limits.parameters, limits.text = inputs, rank, parameters, text
    return ksrv_scan(message, c_scan, "PredictRequest", limits)


def output_head(
    str name not None, str datatype not None, tuple shape not None: tuple[int, ...], size_t length
) -> bytes:
    """Return the bytes of an entry of `outputs` in front of its values.

    Args:
        shape: At most 32 dimensions.
        length: The bytes of the values; of BYTES with the tags of `string_val`.
    """
    cdef int64_t[32] sizes
    cdef Py_ssize_t i, rank = min(len(shape), 32)
    cdef Writer out
    for i in range(rank):
        sizes[i] = shape[i]
    put_head(out, name.encode(), _datatype(datatype), sizes, <size_t>rank, length)
    return _written(out)


def varint_values(str datatype not None, data not None: bytes | memoryview) -> bytes:
    """Return the bytes of an array of integers, or the bits of 16-bit floats, as varints."""
    cdef Datatype kind = _datatype(datatype)
    cdef Py_buffer view
    cdef Writer out
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    put_varints(out, kind, <const unsigned char *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return _written(out)


def spec_field(str name not None, str version not None) -> bytes:
    """Return the field `model_spec` of an answer."""
    cdef bytes shown = version.encode()
    cdef Writer out
    put_spec(out, name.encode(), shown)
    return _written(out)


cdef Datatype _datatype(str name):
    cdef bytes encoded = name.encode()
    return datatype_of(encoded, <size_t>len(encoded))


cdef bytes _written(Writer &out):
    if out.failed():
        raise MemoryError()
    return PyBytes_FromStringAndSize(<const char *>out.data(), <Py_ssize_t>out.size())

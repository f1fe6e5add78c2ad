# It relies on the GIL: Python objects are read and made.
"""The common form of CALL and RESULT: a few small arrays of numbers, in the message itself.

They are copied into the message and out of it, which is cheaper than a shared block that both sides
keep books of, and records instead of JSON name them. Whatever is of another form goes the general
way, which `ksrv.engine.processes.messages` has.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from ksrv._native.tensor.datatype cimport (
    DIMENSION_LIMIT, DT_BYTES, DT_INVALID, RANK_LIMIT, SIZE_OK, Datatype, SizeLimits,
    checked_nbytes, datatype_of, item_size_of,
)
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.tensor.tensor cimport Tensor, ksrv_tensor

from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES, NAMES as DATATYPE_NAMES

cnp.import_array()

cdef tuple DTYPES = DATATYPE_DTYPES
cdef tuple NAMES = DATATYPE_NAMES

PLAIN_BYTES = 32 * 1024
"""The most that the arrays of one message have together; above it shared blocks are cheaper."""
PLAIN_TENSORS = 16

cdef enum:
    MOST_BYTES = 32 * 1024  # PLAIN_BYTES
    MOST_TENSORS = 16       # PLAIN_TENSORS
    MOST_NAME = 4096


cdef struct Head:
    uint64_t number
    uint32_t tensors
    uint16_t name_length
    uint16_t span_length

# Its shape and its name follow it; behind all records lie the bytes, one tensor after the other.
cdef struct Record:
    uint32_t nbytes
    uint16_t name_length
    uint8_t datatype
    uint8_t rank


cdef struct Text:
    const char *data
    size_t length


cdef bint _is_short(object text, Text *out) except -1:
    """Take a text as UTF-8; False where it is long or none, or no UTF-8 says it."""
    cdef Py_ssize_t length = 0
    if not isinstance(text, str):
        return False
    try:
        out.data = PyUnicode_AsUTF8AndSize(text, &length)
    except UnicodeEncodeError:
        return False
    out.length = <size_t>length
    return length <= MOST_NAME


cdef bint _take(Tensor tensor, Record *record, Text *name) except -1:
    """Describe a tensor; False where it is not of the common form."""
    cdef cnp.ndarray array
    cdef Text kind
    cdef Datatype code
    if tensor.parameters or not cnp.PyArray_CheckExact(tensor.data):
        return False
    array = <cnp.ndarray>tensor.data
    if not (cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_ISNOTSWAPPED(array)):
        return False
    if not (_is_short(tensor.name, name) and _is_short(tensor.datatype, &kind)):
        return False
    code = datatype_of(kind.data, kind.length)
    if code == DT_INVALID or code == DT_BYTES or cnp.PyArray_NBYTES(array) > MOST_BYTES:
        return False
    if (cnp.PyArray_NDIM(array) > RANK_LIMIT
            or <object>cnp.PyArray_DESCR(array) is not <object>DTYPES[<int>code]):
        return False
    record.nbytes = <uint32_t>cnp.PyArray_NBYTES(array)
    record.name_length = <uint16_t>name.length
    record.datatype = <uint8_t>code
    record.rank = <uint8_t>cnp.PyArray_NDIM(array)
    return True


cdef inline char *_put(char *at, const void *data, size_t length) noexcept:
    memcpy(at, data, length)
    return at + length


def write(uint64_t number, name, span, list tensors not None):
    """Return a call's or a result's message.

    Args:
        name: The called model; "" in a result.
        span: The `traceparent` of the call; "" without one.
        tensors: The inputs or the outputs.

    Returns:
        The payload, or None where the tensors are not of the common form.
    """
    cdef Record records[MOST_TENSORS]
    cdef Text names[MOST_TENSORS]
    cdef Text model, traced
    cdef Head head
    cdef cnp.ndarray array
    cdef size_t total = sizeof(Head), nbytes = 0, i, count = <size_t>len(tensors)
    cdef int64_t size
    cdef int k
    if count > MOST_TENSORS or not (_is_short(name, &model) and _is_short(span, &traced)):
        return None
    for i in range(count):
        if not _take(<Tensor?>tensors[i], &records[i], &names[i]):
            return None
        nbytes += records[i].nbytes
        total += sizeof(Record) + records[i].rank * sizeof(int64_t) + names[i].length
    if nbytes > MOST_BYTES:
        return None
    total += model.length + traced.length + nbytes
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef char *at = PyBytes_AS_STRING(payload)
    memset(&head, 0, sizeof(Head))
    head.number = number
    head.tensors = <uint32_t>count
    head.name_length = <uint16_t>model.length
    head.span_length = <uint16_t>traced.length
    at = _put(at, &head, sizeof(Head))
    at = _put(at, model.data, model.length)
    at = _put(at, traced.data, traced.length)
    for i in range(count):
        array = <cnp.ndarray>(<Tensor>tensors[i]).data
        at = _put(at, &records[i], sizeof(Record))
        for k in range(records[i].rank):
            size = cnp.PyArray_DIM(array, k)
            at = _put(at, &size, sizeof(int64_t))
        at = _put(at, names[i].data, names[i].length)
    for i in range(count):
        array = <cnp.ndarray>(<Tensor>tensors[i]).data
        at = _put(at, cnp.PyArray_DATA(array), records[i].nbytes)
    return payload


cdef class _Reader:
    """The bytes of a message that are left."""

    cdef const char *at
    cdef size_t left

    cdef const char *take(self, size_t length) except NULL:
        cdef const char *found = self.at
        if length > self.left:
            raise ValueError("the message ends too soon")
        self.at += length
        self.left -= length
        return found

    cdef str text(self, size_t length):
        return PyUnicode_DecodeUTF8(self.take(length), <Py_ssize_t>length, NULL)


def read(bytes payload not None) -> tuple:
    """Read what `write` wrote; the arrays are the reader's own.

    Returns:
        The call's number, the name, the span and the tensors.

    Raises:
        ValueError: It does not add up.
    """
    cdef _Reader reader = _Reader.__new__(_Reader)
    cdef Head head
    cdef Record record
    cdef int64_t shape[RANK_LIMIT]
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef cnp.ndarray array
    cdef list tensors = []
    cdef int k
    reader.at = PyBytes_AS_STRING(payload)
    reader.left = <size_t>PyBytes_GET_SIZE(payload)
    memcpy(&head, reader.take(sizeof(Head)), sizeof(Head))
    if head.tensors > MOST_TENSORS:
        raise ValueError(f"{head.tensors} tensors are too many for a message without blocks")
    name, span = reader.text(head.name_length), reader.text(head.span_length)
    for _ in range(head.tensors):
        memcpy(&record, reader.take(sizeof(Record)), sizeof(Record))
        if record.rank > RANK_LIMIT:
            raise ValueError(f"a tensor has the rank {record.rank}")
        memcpy(shape, reader.take(record.rank * sizeof(int64_t)), record.rank * sizeof(int64_t))
        _check(&record, shape)
        for k in range(record.rank):
            sizes[k] = <cnp.npy_intp>shape[k]
        array = new_array(DTYPES[record.datatype], record.rank, sizes)
        tensors.append(ksrv_tensor(
            reader.text(record.name_length), NAMES[record.datatype],
            tuple([shape[k] for k in range(record.rank)]), array,
        ))
    for tensor in tensors:
        array = <cnp.ndarray>(<Tensor>tensor).data
        memcpy(
            cnp.PyArray_DATA(array), reader.take(<size_t>cnp.PyArray_NBYTES(array)),
            <size_t>cnp.PyArray_NBYTES(array),
        )
    if reader.left:
        raise ValueError(f"{reader.left} bytes follow the last tensor")
    return head.number, name, span, tensors


cdef int _check(const Record *record, const int64_t *shape) except -1:
    """Raise ValueError unless a tensor's shape has its record's size, and that is small."""
    cdef SizeLimits limits
    cdef uint64_t elements = 0, nbytes = 0
    cdef size_t where = 0
    if record.datatype >= DT_BYTES:
        raise ValueError(f"a tensor has the datatype number {record.datatype}")
    limits.rank = RANK_LIMIT
    limits.dimension = DIMENSION_LIMIT
    limits.bytes = MOST_BYTES
    if checked_nbytes(
        shape, record.rank, item_size_of(<Datatype>record.datatype), limits, &elements, &nbytes,
        &where,
    ) != SIZE_OK or nbytes != record.nbytes:
        raise ValueError("a tensor has another size than its shape, or too large a one")
    return 0

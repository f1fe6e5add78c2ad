# Safe without the GIL: a header is written only by the call that creates it.
# cython: freethreading_compatible = True
"""Reads an HTTP body into a JSON header and tensor views, with infer_header_reader.hpp.

Tensors of fixed size become arrays over the body's memory if they are aligned to their item size.
Other blocks are copied once, and the copy is counted. For BYTES blocks and JSON data only offsets
are returned. A fault is raised as numbers and names, without a sentence.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
cimport cython
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool

from native.infer.infer_header cimport (
    HEADER_BYTES_UNSIZED, HEADER_CONTROL, HEADER_DATATYPE, HEADER_DATA_AND_SHARED,
    HEADER_DATA_AND_SIZE, HEADER_DEPTH, HEADER_DIMENSION, HEADER_DUPLICATE_NAME, HEADER_EMPTY,
    HEADER_END, HEADER_ESCAPE, HEADER_MEMORY, HEADER_MISSING, HEADER_NEGATIVE, HEADER_NO_DATA,
    HEADER_NUMBER, HEADER_OK, HEADER_OVERFLOW, HEADER_RESERVED, HEADER_SHORT, HEADER_SIZE_INVALID,
    HEADER_SIZE_LIST_COUNT, HEADER_SIZE_MISMATCH, HEADER_SIZE_ZERO, HEADER_SURPLUS, HEADER_SYNTAX,
    HEADER_TOO_MANY, HEADER_TRAILING, HEADER_TWICE, HEADER_TYPE, HEADER_UTF8, HeaderError,
    HeaderFault, HeaderLimits, InferHeader, InputHeader, OutputHeader, PARAM_FLOAT, PARAM_INT,
    PARAM_STRING, PARAM_UINT, Parameter, SIZE_LIST, SharedMemory, Text,
)
from native.infer.infer_header_reader cimport scan_infer_header
from native.infer.tensor_blocks cimport find_not_bool, split_blocks
from native.json.scanner cimport Cursor, parse_digits
from native.memory.buffer_pool cimport count_copy as count_copied
from native.tensor.datatype cimport (
    DT_BOOL, DT_BYTES, DT_INVALID, Datatype, datatype_of, item_size_of,
)

from ksrv._native.memory.exported_bytes cimport ExportedBytes

import numpy as np


from ksrv._native.memory.buffer_pool import block_under
from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES
from ksrv._native.tensor.datatype import NAMES as DATATYPE_NAMES

if not cython.compiled:
    from typing import Any

    import numpy.typing as npt
    from typing_extensions import Buffer

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

cdef enum:
    # Longer headers are read without the GIL. For shorter headers, releasing it costs more.
    JSON_WITHOUT_GIL_BYTES = 32768

cdef object ndarray = np.ndarray
cdef object empty = np.empty

cdef list NAMES = list(DATATYPE_NAMES)
cdef tuple DTYPES = DATATYPE_DTYPES

cdef dict CODES = {
    <int>HEADER_EMPTY: "empty",
    <int>HEADER_END: "end",
    <int>HEADER_SYNTAX: "syntax",
    <int>HEADER_DEPTH: "depth",
    <int>HEADER_CONTROL: "control",
    <int>HEADER_ESCAPE: "escape",
    <int>HEADER_UTF8: "utf8",
    <int>HEADER_TRAILING: "trailing",
    <int>HEADER_TYPE: "type",
    <int>HEADER_TWICE: "twice",
    <int>HEADER_MISSING: "missing",
    <int>HEADER_TOO_MANY: "too_many",
    <int>HEADER_DATATYPE: "datatype",
    <int>HEADER_DIMENSION: "dimension",
    <int>HEADER_NEGATIVE: "negative",
    <int>HEADER_OVERFLOW: "overflow",
    <int>HEADER_NUMBER: "number",
    <int>HEADER_RESERVED: "reserved",
    <int>HEADER_DUPLICATE_NAME: "duplicate_name",
    <int>HEADER_SIZE_INVALID: "size_invalid",
    <int>HEADER_DATA_AND_SIZE: "data_and_size",
    <int>HEADER_DATA_AND_SHARED: "data_and_shared",
    <int>HEADER_SIZE_MISMATCH: "size_mismatch",
    <int>HEADER_SIZE_LIST_COUNT: "size_list_count",
    <int>HEADER_SIZE_ZERO: "size_zero",
    <int>HEADER_BYTES_UNSIZED: "bytes_unsized",
    <int>HEADER_NO_DATA: "no_data",
    <int>HEADER_SHORT: "short",
    <int>HEADER_SURPLUS: "surplus",
}


class BodyError(ValueError):
    """A fault in a body, as numbers and names.

    Attributes:
        code: The kind of fault, such as "size_mismatch".
        offset: The byte of the body at which the fault is.
        place: "request", "input" or "output".
        index: The number of the input or output.
        owner: The name of the input or output; "" if the fault precedes the name.
        field: The protocol's name for the faulty part. `wanted` says what the part must be.
        name: The faulty name or word from the client.
        expected: The expected number. `received` is the client's number.
    """

    code: str
    offset: int
    place: str
    index: int
    owner: str
    field: str
    wanted: str
    name: str
    expected: int
    received: int

    def __init__(
        self,
        code: str,
        offset: int,
        place: str = "request",
        index: int = 0,
        owner: str = "",
        field: str = "",
        wanted: str = "",
        name: str = "",
        expected: int = 0,
        received: int = 0,
    ):
        super().__init__(code)
        self.code = code
        self.offset = offset
        self.place = place
        self.index = index
        self.owner = owner
        self.field = field
        self.wanted = wanted
        self.name = name
        self.expected = expected
        self.received = received


cdef class Bounds:
    """Limits for reading a header.

    Args:
        depth: The most levels of nesting, at most 512.
        size_list: The most sizes in the list form of binary_data_size.
        open_texts: Whether texts in `data` may have the shape [-1].
    """

    cdef HeaderLimits limits

    def __init__(
        self, unsigned depth=64, size_t rank=32, int64_t dimension=2147483647, size_t inputs=256,
        size_t parameters=256, size_t size_list=65536, bint open_texts=False
    ):
        self.limits.depth = min(depth, 512)
        self.limits.rank = rank
        self.limits.dimension = dimension
        self.limits.inputs = inputs
        self.limits.parameters = parameters
        self.limits.size_list = size_list
        self.limits.open_texts = open_texts


cdef Bounds DEFAULT_BOUNDS = Bounds()


@cython.final
@cython.freelist(16)
cdef class Input:
    """One input of the header, and its position in the body.

    Attributes:
        elements: The product of the shape.
        data: Begin and end of the JSON `data` array in the body, or None.
        offset: The first byte of the binary block of `length` bytes.
        sizes: The list form of binary_data_size, or None.
        shared_memory: Region, offset and size, or None.
        array: The tensor, if it is binary and its datatype has a fixed size.
    """

    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple shape
    cdef readonly object elements
    cdef readonly dict parameters
    cdef readonly object data
    cdef readonly size_t offset
    cdef readonly size_t length
    cdef readonly object sizes
    cdef readonly object shared_memory
    cdef readonly object array

    shape: tuple[int, ...]
    elements: int
    parameters: dict[str, bool | int | float | str]
    data: tuple[int, int] | None
    sizes: tuple[int, ...] | None
    shared_memory: tuple[str, int, int] | None
    array: npt.NDArray[Any] | None


@cython.final
@cython.freelist(16)
cdef class Output:
    """One requested output of the header."""

    cdef readonly str name
    cdef readonly object binary
    cdef readonly object classification
    cdef readonly dict parameters
    cdef readonly object shared_memory

    binary: bool | None
    classification: int
    parameters: dict[str, bool | int | float | str]
    shared_memory: tuple[str, int, int] | None


@cython.final
@cython.freelist(16)
cdef class Header:
    """The JSON header of an infer request.

    Attributes:
        binary_output: The parameter binary_data_output, or None.
        mark_final: The parameter triton_enable_empty_final_response.
        json_length: The bytes of the JSON object.
    """

    cdef readonly str id
    cdef readonly dict parameters
    cdef readonly object binary_output
    cdef readonly bint mark_final
    cdef readonly object timeout_us
    cdef readonly object priority
    cdef readonly size_t json_length
    cdef readonly list inputs
    cdef readonly list outputs

    parameters: dict[str, bool | int | float | str]
    binary_output: bool | None
    timeout_us: int
    priority: int
    inputs: list[Input]
    outputs: list[Output]


cdef inline str _text(const Text &text):
    if text.length == 0:
        return ""
    return PyUnicode_DecodeUTF8(text.data, <Py_ssize_t>text.length, NULL)


cdef object _flag(int value):
    return None if value < 0 else value == 1


cdef object _value(const Parameter &parameter):
    if parameter.kind == PARAM_STRING:
        return _text(parameter.text)
    if parameter.kind == PARAM_INT:
        return parameter.integer
    if parameter.kind == PARAM_UINT:
        return parameter.unsigned_integer
    if parameter.kind == PARAM_FLOAT:
        return parameter.real
    return parameter.integer == 1


cdef dict _parameters(InferHeader &header, size_t first, size_t count):
    cdef dict found = {}
    cdef size_t i
    for i in range(first, first + count):
        found[_text(header.parameters[i].key)] = _value(header.parameters[i])
    return found


cdef object _shared(const SharedMemory &shared):
    if not shared.given:
        return None
    return (_text(shared.region), shared.offset, shared.byte_size)


cdef object _view(
    object buffer, const ExportedBytes &body, size_t offset, size_t length, Datatype datatype,
    tuple shape, str name, size_t index
):
    cdef object array
    cdef Py_buffer target
    cdef size_t item = item_size_of(datatype)
    cdef size_t bad
    cdef const unsigned char *start = body.data + offset
    if datatype == DT_BOOL:
        bad = find_not_bool(start, length)
        if bad != length:
            raise BodyError(
                "not_bool", offset + bad, "input", index, name, expected=bad, received=start[bad]
            )
    if length == 0:
        return empty(shape, DTYPES[<int>datatype])
    if <uintptr_t>start % item == 0:
        owner, begin = block_under(buffer)
        return ndarray(shape, DTYPES[<int>datatype], owner, begin + offset)
    array = empty(shape, DTYPES[<int>datatype])
    PyObject_GetBuffer(array, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    memcpy(target.buf, start, length)
    PyBuffer_Release(&target)
    count_copied(length)
    return array


cdef Input _input(object buffer, const ExportedBytes &body, InferHeader &header, size_t index):
    cdef const InputHeader *entry = &header.inputs[index]
    cdef Input made = Input.__new__(Input)
    cdef size_t i
    cdef tuple shape
    cdef object dimension
    made.name = _text(entry.name)
    made.datatype = NAMES[<int>entry.datatype]
    shape = PyTuple_New(<Py_ssize_t>entry.rank)
    for i in range(entry.rank):
        dimension = header.shapes[entry.shape_first + i]
        Py_INCREF(dimension)
        PyTuple_SET_ITEM(shape, <Py_ssize_t>i, dimension)
    made.shape = shape
    made.elements = entry.elements
    made.parameters = _parameters(header, entry.parameters_first, entry.parameters_count)
    made.shared_memory = _shared(entry.shared)
    if entry.has_data:
        made.data = (entry.data_begin, entry.data_end)
        return made
    made.offset = entry.offset
    made.length = entry.length
    if entry.size_form == SIZE_LIST:
        made.sizes = tuple([header.sizes[entry.sizes_first + i] for i in range(entry.sizes_count)])
    if entry.datatype == DT_BYTES or entry.shared.given:
        return made
    made.array = _view(
        buffer, body, entry.offset, entry.length, entry.datatype, shape, made.name, index
    )
    return made


cdef Output _output(InferHeader &header, size_t index):
    cdef const OutputHeader *entry = &header.outputs[index]
    cdef Output made = Output.__new__(Output)
    made.name = _text(entry.name)
    made.binary = _flag(entry.binary)
    made.classification = entry.classification
    made.parameters = _parameters(header, entry.parameters_first, entry.parameters_count)
    made.shared_memory = _shared(entry.shared)
    return made


cdef object _error(const HeaderFault &fault):
    if fault.error == HEADER_MEMORY:
        return MemoryError()
    return BodyError(
        CODES[<int>fault.error],
        fault.offset,
        ("request", "input", "output")[<int>fault.place],
        fault.index,
        _text(fault.owner),
        fault.field.decode("ascii"),
        fault.wanted.decode("ascii"),
        _text(fault.name),
        fault.expected,
        fault.received,
    )


def digits(str text not None, uint64_t limit) -> int:
    """Return the number that `text` writes in 1 to 10 ASCII digits without anything else.

    Returns:
        The number; -1 if the text has another form, -2 if it is longer or exceeds the limit.
    """
    cdef bytes encoded = text.encode("utf-8", "surrogatepass")
    cdef Cursor cursor
    cdef uint64_t value = 0
    cdef cbool too_large = False
    cursor.at = encoded
    cursor.end = cursor.at + len(encoded)
    if parse_digits(cursor, 10, limit, &value, &too_large):
        return value if cursor.at == cursor.end else -1
    return -2 if too_large and encoded.isdigit() else -1


def view(
    buffer: Buffer,
    size_t offset,
    str datatype not None,
    tuple shape not None: tuple[int, ...],
    str name not None="",
    size_t index=0,
) -> npt.NDArray[np.generic]:
    """Return the tensor at `offset` of the buffer.

    Args:
        datatype: A KServe v2 datatype of fixed size.

    Returns:
        An array over the buffer's memory, or a counted copy if the bytes are not aligned.

    Raises:
        BodyError: A BOOL byte is neither 0 nor 1.
        ValueError: The datatype is unknown, or the tensor exceeds the buffer.
    """
    cdef bytes encoded = datatype.encode("utf-8", "surrogatepass")
    cdef Datatype found = datatype_of(encoded, <size_t>len(encoded))
    cdef ExportedBytes body
    cdef object elements = 1
    if found == DT_INVALID or found == DT_BYTES:
        raise ValueError(f"{datatype} is not a datatype of fixed size")
    for dimension in shape:
        elements *= dimension
    body.take(buffer)
    nbytes = elements * item_size_of(found)
    if nbytes < 0 or offset + nbytes > body.length:
        raise ValueError(f"{nbytes} bytes at {offset} do not lie within {body.length} bytes")
    return _view(buffer, body, offset, nbytes, found, shape, name, index)


def read(buffer: Buffer, size_t json_length, Bounds bounds=None) -> Header:
    """Read the JSON header at the start of the body, and where each tensor is.

    Args:
        buffer: The whole body; any C-contiguous buffer.
        json_length: How many bytes of the body are JSON.
        bounds: The limits, by default the limits of the protocol notes.

    Raises:
        BodyError: The body is not a well-formed infer request.
        ValueError: `json_length` exceeds the body.
    """
    cdef ExportedBytes body
    cdef InferHeader scanned
    cdef HeaderFault fault
    cdef HeaderError error
    cdef Header header
    cdef const HeaderLimits *limits
    cdef const char *text
    cdef size_t i
    if bounds is None:
        bounds = DEFAULT_BOUNDS
    limits = &bounds.limits
    body.take(buffer)
    if json_length > body.length:
        raise ValueError("the header is longer than the body")
    text = <const char *>body.data
    if json_length > JSON_WITHOUT_GIL_BYTES:
        with nogil:
            error = scan_infer_header(text, json_length, limits[0], &scanned, &fault)
    else:
        error = scan_infer_header(text, json_length, limits[0], &scanned, &fault)
    if error == HEADER_OK:
        error = split_blocks(&scanned, json_length, body.length, &fault)
    if error != HEADER_OK:
        raise _error(fault)
    header = Header.__new__(Header)
    header.id = _text(scanned.id)
    header.parameters = _parameters(scanned, scanned.parameters_first, scanned.parameters_count)
    header.binary_output = _flag(scanned.binary_output)
    header.mark_final = scanned.mark_final == 1
    header.timeout_us = scanned.timeout_us
    header.priority = scanned.priority
    header.json_length = scanned.json_length
    header.inputs = [_input(buffer, body, scanned, i) for i in range(scanned.inputs.size())]
    header.outputs = [_output(scanned, i) for i in range(scanned.outputs.size())]
    return header

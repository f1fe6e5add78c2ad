# Safe without the GIL: a header is written only by the call that creates it.
# cython: freethreading_compatible = True
"""Reads an HTTP body into a JSON header and tensor views, with infer_header_reader.hpp.

Tensors of fixed size become arrays over the body's memory if they are aligned to their item size.
Other blocks are copied once, and the copy is counted. For BYTES blocks and JSON data only offsets
are returned. A fault is raised as numbers and names, without a sentence:
`ksrv.protocol.error_texts` makes the text. `read` is the entry.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
cimport cython
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy
from libcpp.string_view cimport string_view

from native.infer.infer_header cimport (
    HEADER_ERROR_NAMES, HEADER_MEMORY, HEADER_OK, HeaderError, HeaderFault, HeaderLimits,
    InferHeader, InputHeader, OutputHeader, PARAM_FLOAT, PARAM_INT, PARAM_STRING, PARAM_UINT,
    Parameter, Parameters, SIZE_LIST,
)
from native.infer.infer_header_reader cimport read_infer_header
from native.memory.buffer_pool cimport count_copy as count_copied
from native.tensor.datatype cimport DT_BOOL, DT_BYTES, Datatype, find_not_bool, item_size_of

from ksrv._native.memory.exported_bytes cimport ExportedBytes

from dataclasses import dataclass

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


@dataclass(eq=False)
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
        expected: The expected number. For some codes the index of the faulty part instead, such as
            the byte of a BOOL tensor; `ksrv.protocol.error_texts` has the texts.
        received: The client's number.
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


cdef class Bounds:
    """Limits for reading a header.

    Args:
        depth: The most levels of nesting, at most 512.
        size_list: The most sizes in the list form of binary_data_size.
        open_texts: Whether texts in `data` may have the shape [-1], and `data` may be one text.
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
        in_shared_memory: Whether the parameters name shared memory.
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
    cdef readonly bint in_shared_memory
    cdef readonly object array

    shape: tuple[int, ...]
    elements: int
    parameters: dict[str, bool | int | float | str]
    data: tuple[int, int] | None
    sizes: tuple[int, ...] | None
    array: npt.NDArray[Any] | None


@cython.final
@cython.freelist(16)
cdef class Header:
    """The JSON header of an infer request.

    Attributes:
        json_length: The bytes of the JSON object.
        outputs: The names of the requested outputs, with their parameters.
    """

    cdef readonly str id
    cdef readonly dict parameters
    cdef readonly size_t json_length
    cdef readonly list inputs
    cdef readonly list outputs

    parameters: dict[str, bool | int | float | str]
    inputs: list[Input]
    outputs: list[tuple[str, dict[str, bool | int | float | str]]]


cdef inline str _text(string_view text):
    if text.empty():
        return ""
    return PyUnicode_DecodeUTF8(text.data(), <Py_ssize_t>text.size(), NULL)


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


cdef dict _parameters(InferHeader &header, const Parameters &owner):
    cdef dict found = {}
    cdef size_t i
    for i in range(owner.first, owner.first + owner.count):
        found[_text(header.parameters[i].key)] = _value(header.parameters[i])
    return found


cdef object _view(
    object buffer, const ExportedBytes &body, size_t offset, size_t length, Datatype datatype,
    tuple shape, str name, size_t index
):
    """Return a tensor of the body as an array, which shares the memory of `buffer` if possible.

    `name` and `index` are of the input, for the error.
    """
    cdef object array
    cdef Py_buffer target
    cdef size_t item = item_size_of(datatype)
    cdef size_t bad
    cdef const unsigned char *start = body.data + offset
    if datatype == DT_BOOL:
        bad = find_not_bool(start, length)
        if bad != length:
            raise BodyError(
                "not_bool", offset + bad, "input", index, name, "", "", "", bad, start[bad]
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
    made.parameters = _parameters(header, entry.parameters)
    made.in_shared_memory = entry.shared
    if entry.has_data:
        made.data = (entry.data_begin, entry.data_end)
        return made
    made.offset = entry.offset
    made.length = entry.length
    if entry.size_form == SIZE_LIST:
        made.sizes = tuple([header.sizes[entry.sizes_first + i] for i in range(entry.sizes_count)])
    if entry.datatype == DT_BYTES or entry.shared:
        return made
    made.array = _view(
        buffer, body, entry.offset, entry.length, entry.datatype, shape, made.name, index
    )
    return made


cdef tuple _output(InferHeader &header, size_t index):
    cdef const OutputHeader *entry = &header.outputs[index]
    return _text(entry.name), _parameters(header, entry.parameters)


cdef object _error(const HeaderFault &fault):
    if fault.error == HEADER_MEMORY:
        return MemoryError()
    return BodyError(
        HEADER_ERROR_NAMES[<int>fault.error].decode().lower(),
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
            error = read_infer_header(
                text, json_length, body.length, limits[0], &scanned, &fault
            )
    else:
        error = read_infer_header(text, json_length, body.length, limits[0], &scanned, &fault)
    if error != HEADER_OK:
        raise _error(fault)
    header = Header.__new__(Header)
    header.id = _text(scanned.id)
    header.parameters = _parameters(scanned, scanned.request_parameters)
    header.json_length = scanned.json_length
    header.inputs = [_input(buffer, body, scanned, i) for i in range(scanned.inputs.size())]
    header.outputs = [_output(scanned, i) for i in range(scanned.outputs.size())]
    return header

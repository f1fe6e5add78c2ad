# Safe without the GIL: a scan's results are written only by the call that creates them.
# cython: freethreading_compatible = True
"""Reads serialized ModelInferRequests without the protobuf library.

`scan` records the fields of a received message and their offsets. Tensors stay in the message's
bytes until `Request.decode` or `Request.elements` reads them. native/protobuf/infer_request.hpp
does the work, on top of the wire format in wire_format.hpp.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from native.protobuf.infer_request cimport (
    BOOL_PARAM, DOUBLE_PARAM, INPUTS as OUTCOME_INPUTS, INT64_PARAM, Input as CInput,
    Limits as CLimits, MALFORMED as OUTCOME_MALFORMED, OK as OUTCOME_OK, Outcome,
    PARAMETERS as OUTCOME_PARAMETERS, Parameter as CParameter, Parameters as CParameters,
    RANK as OUTCOME_RANK, Request as CRequest, STRING_PARAM, TEXT as OUTCOME_TEXT, UINT64_PARAM,
    decode_contents, next_element, scan as c_scan,
)
from native.protobuf.wire_format cimport Span
from native.tensor.datatype cimport (
    DATATYPES, DT_INVALID, Datatype, MAX_RANK as RANK_LIMIT, datatype_of, item_size_of,
)

if not cython.compiled:
    from typing import Any, TypeAlias

    import numpy.typing as npt

    Parameters: TypeAlias = dict[str, bool | int | float | str | None]

cdef enum:
    VIEW_FROM_BYTES = 65536  # elements from this size on are not copied
    BYTES_FIELD = 8  # bytes_contents in InferTensorContents


class MessageError(ValueError):
    """The bytes are not a request that ksrv reads. The text is for the client."""


class ValueOutOfRange(MessageError):
    """A typed value does not fit its tensor's datatype.

    Attributes:
        index: The index in the flat tensor.
    """

    index: int
    value: int

    def __init__(self, str message, index: int, value: int):
        super().__init__(message)
        self.index = index
        self.value = value


@cython.final
cdef class Input:
    """One entry of a request's `inputs`. Its values are still in the message.

    Attributes:
        fields: The typed fields that have values, as bits `1 << number`.
        elements: The number of values, if only one typed field has values.
        has_contents: Whether `contents` is present, even if empty.
        packed: Offset and length of the packed values, if the typed field is not BYTES.
    """

    cdef readonly str name
    cdef readonly str datatype
    cdef readonly tuple shape
    cdef readonly dict parameters
    cdef readonly unsigned fields
    cdef readonly uint64_t elements
    cdef readonly bint has_contents
    cdef readonly tuple packed
    cdef Span _contents

    shape: tuple[int, ...]
    parameters: Parameters
    packed: tuple[int, int]


@cython.final
cdef class Request:
    """The result of a scan.

    Attributes:
        message: The scanned bytes, to which the offsets refer.
        outputs: The name and the parameters of every entry of `outputs`.
        raw: Offset and length of every entry of raw_input_contents.
    """

    cdef readonly object message
    cdef const unsigned char *base  # first byte of `message`
    cdef readonly str model_name
    cdef readonly str model_version
    cdef readonly str id
    cdef readonly dict parameters
    cdef readonly list inputs
    cdef readonly list outputs
    cdef readonly list raw

    message: bytes | memoryview
    parameters: Parameters
    inputs: list[Input]
    outputs: list[tuple[str, Parameters]]
    raw: list[tuple[int, int]]

    def decode(
        self,
        Input entry not None,
        out not None: npt.NDArray[Any] | bytearray | memoryview,
        str datatype=None,
    ) -> None:
        """Decode the packed varints of an input into a buffer.

        Args:
            entry: An input of this request with values in one typed field only, of integers or
                BOOL.
            out: A writable C-contiguous buffer for exactly `entry.elements` items.
            datatype: The datatype of the items; None for the input's.

        Raises:
            ValueOutOfRange: A value does not fit the datatype.
            ValueError: The buffer has another size.
        """
        cdef bytes encoded = (datatype or entry.datatype).encode()
        cdef Datatype kind = datatype_of(encoded, <size_t>len(encoded))
        cdef const unsigned char *p = self.base + <size_t>entry.packed[0]
        cdef Py_buffer target
        cdef size_t done
        cdef size_t count = entry.elements
        cdef int64_t value = 0
        cdef size_t width = item_size_of(kind)
        PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if <size_t>target.len != count * width:
                raise ValueError(f"{count} values of {width} bytes do not fill {target.len} bytes")
            with nogil:
                done = decode_contents(kind, p, count, target.buf, &value)
        finally:
            PyBuffer_Release(&target)
        if done != count:
            raise ValueOutOfRange(
                f"value {value} at index {done} does not fit {entry.datatype}", done, value
            )

    def elements(self, Input entry not None, bint views=False) -> list[bytes | memoryview]:
        """Return the elements of an input's bytes_contents, in order.

        Args:
            views: Whether all elements are memoryviews, instead of only elements of 64 KiB or more.
        """
        cdef const unsigned char *base = self.base
        cdef size_t at = entry._contents.offset
        cdef size_t end = at + entry._contents.length
        cdef Span part
        cdef object whole = memoryview(self.message)
        cdef uint64_t expected = (
            entry.elements if entry.fields == <unsigned>(1 << BYTES_FIELD) else 0
        )
        cdef list found = []
        while <uint64_t>len(found) < expected and next_element(base, &at, end, &part):
            element = whole[part.offset:part.offset + part.length]
            found.append(element if views or part.length >= VIEW_FROM_BYTES else bytes(element))
        return found


cdef inline str _text(const char *base, Span part):
    return PyUnicode_DecodeUTF8(base + part.offset, <Py_ssize_t>part.length, "strict")


cdef object _value(const char *base, const CParameter *parameter):
    cdef double number
    if parameter.choice == STRING_PARAM:
        return _text(base, parameter.text)
    if parameter.choice == BOOL_PARAM:
        return parameter.bits != 0
    if parameter.choice == INT64_PARAM:
        return <int64_t>parameter.bits
    if parameter.choice == UINT64_PARAM:
        return parameter.bits
    if parameter.choice == DOUBLE_PARAM:
        memcpy(&number, &parameter.bits, sizeof(number))
        return number
    return None


cdef dict _parameters(const char *base, const CParameters &notes, size_t first, size_t count):
    cdef dict found = {}
    cdef size_t i
    cdef const CParameter *parameter
    for i in range(first, first + count):
        parameter = &notes[i]
        found[_text(base, parameter.key)] = _value(base, parameter)
    return found


cdef Input _input(const char *base, const CRequest &notes, const CInput *source):
    cdef Input made = Input.__new__(Input)
    cdef size_t i
    made.name = _text(base, source.name)
    if source.type == DT_INVALID:
        made.datatype = _text(base, source.datatype)
    else:
        made.datatype = (<bytes>DATATYPES[<int>source.type].name).decode()
    made.shape = tuple([source.shape[i] for i in range(source.rank)])
    made.parameters = _parameters(
        base, notes.inner_parameters, source.first_parameter, source.parameters
    )
    made.fields = source.fields
    made.elements = source.elements
    made.has_contents = source.has_contents
    made._contents = source.contents
    made.packed = (source.packed.offset, source.packed.length)
    return made


cdef object _refusal(Outcome outcome, const CRequest &notes, const CLimits &limits, str kind):
    if outcome == OUTCOME_MALFORMED:
        return MessageError(
            f"the request is not a {kind}: its bytes stop making sense at offset "
            f"{notes.failed_at}"
        )
    if outcome == OUTCOME_INPUTS:
        return MessageError(
            f"the request has more than {limits.inputs} inputs, raw_input_contents or requested "
            f"outputs, and the limit --limits-inputs is {limits.inputs}"
        )
    if outcome == OUTCOME_RANK:
        return MessageError(
            f"a shape has {notes.counted} dimensions, and the limit --limits-rank is {limits.rank}"
        )
    if outcome == OUTCOME_PARAMETERS:
        return MessageError(
            f"the request has more than {limits.parameters} parameters, and the limit "
            f"--limits-parameters is {limits.parameters}"
        )
    if outcome == OUTCOME_TEXT:
        return MessageError(
            f"the request's names and strings have {notes.counted} bytes or more, and the limit "
            f"--limits-json is {limits.text}"
        )
    return MemoryError("no memory for the notes of a scan")


def scan(
    message not None: bytes | memoryview,
    *,
    size_t inputs=256,
    size_t rank=32,
    size_t parameters=1024,
    size_t text=67108864,
) -> Request | None:
    """Record the fields of a serialized ModelInferRequest.

    Args:
        message: The received bytes; any contiguous buffer.
        inputs: Limit for the inputs, for the raw entries and for the requested outputs, each.
        rank: Limit for the dimensions of a shape; at most 32.
        parameters: Limit for all parameters, including the parameters of inputs and outputs.
        text: Limit for the bytes of all names and strings together.

    Returns:
        The request, or None if the message is valid but not in the usual form. The caller must then
        re-encode it with the protobuf class first. The limits were checked in both cases.

    Raises:
        MessageError: The bytes are not a ModelInferRequest, or exceed a limit.
    """
    cdef CLimits limits
    limits.inputs, limits.rank, limits.parameters, limits.text = inputs, rank, parameters, text
    return ksrv_scan(message, c_scan, "ModelInferRequest", limits)


cdef object ksrv_scan(object message, Scan scan_message, str kind, CLimits limits):
    cdef CRequest notes  # the fields of the message as offsets
    cdef const char *base
    cdef Outcome outcome
    cdef Request made = Request.__new__(Request)
    cdef size_t i
    limits.rank = limits.rank if limits.rank < RANK_LIMIT else <size_t>RANK_LIMIT
    cdef Py_buffer view
    PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
    base = <const char *>view.buf
    cdef size_t size = <size_t>view.len
    # Released now and not when `made` is deleted, because the collector may clear a memoryview
    # whose buffer is exported, which crashes CPython 3.11. A received message is never resized or
    # released.
    PyBuffer_Release(&view)
    with nogil:
        outcome = scan_message(<const unsigned char *>base, size, limits, notes)
    if outcome != OUTCOME_OK:
        raise _refusal(outcome, notes, limits, kind)
    if notes.unsure:
        return None
    made.message = message
    made.base = <const unsigned char *>base
    made.model_name = _text(base, notes.model_name)
    made.model_version = _text(base, notes.model_version)
    made.id = _text(base, notes.id)
    made.parameters = _parameters(base, notes.parameters, 0, notes.parameters.size())
    made.inputs = [_input(base, notes, &notes.inputs[i]) for i in range(notes.inputs.size())]
    made.outputs = []
    for i in range(notes.outputs.size()):
        output = &notes.outputs[i]
        parameters_of = _parameters(
            base, notes.inner_parameters, output.first_parameter, output.parameters
        )
        made.outputs.append((_text(base, output.name), parameters_of))
    made.raw = [(notes.raw[i].offset, notes.raw[i].length) for i in range(notes.raw.size())]
    return made

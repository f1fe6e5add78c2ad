# Safe without the GIL: local variables only. An exported buffer cannot be resized, and a second
# pass checks for room.
# cython: freethreading_compatible = True
"""Reads BYTES tensors into lists of elements, and writes them.

An element of 64 KiB or more, and every image, is a memoryview into the received buffer. Smaller
elements are `bytes`, which cost less to make than a view. bytes_tensor.hpp has the rule for
reading.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from native.tensor.bytes_tensor cimport (
    BYTES_BARE, BYTES_PREFIXED, BytesForm, ElementFault, PREFIX_BYTES, bytes_form, element_length,
    walk_prefixed, write_element_length,
)
from native.tensor.image_signature cimport image_format_name, image_signature

if not cython.compiled:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyBytes_Check(object item)
    bint PyUnicode_Check(object item)

VIEW_BYTES = 65536

cdef enum:
    VIEW_FROM = 65536
    QUOTED = 64

cdef uint64_t LONGEST = 0xFFFFFFFF


class ElementsError(ValueError):
    """The bytes are not the expected elements. The text is for the client."""


cdef str _quote(str name):
    # The rule of ksrv.errors.quote, which compiled modules must not import.
    cdef str shown = ascii(name[:QUOTED + 1])
    shown = shown[1:len(shown) - 1]
    if len(name) > QUOTED or len(shown) > QUOTED:
        shown = shown[:QUOTED].rstrip("\\") + "..."
    return f"'{shown}'"


cdef class _Received:
    """Holds an exported buffer."""

    cdef Py_buffer export
    cdef object source
    cdef object view
    cdef bint open

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.export, PyBUF_SIMPLE)
        self.open = True
        self.source = buffer
        self.view = None

    def __dealloc__(self):
        if self.open:
            PyBuffer_Release(&self.export)

    cdef const unsigned char *data(self):
        return <const unsigned char *>self.export.buf

    cdef size_t length(self):
        return <size_t>self.export.len

    cdef object element(self, size_t offset, size_t length, bint as_view):
        if not as_view and length < VIEW_FROM:
            return PyBytes_FromStringAndSize(<char *>self.export.buf + offset, <Py_ssize_t>length)
        if self.view is None:
            self.view = PyMemoryView_FromObject(self.source)
            if self.view.ndim != 1 or self.view.itemsize != 1 or self.view.format != "B":
                self.view = self.view.cast("B")
        return self.view[offset:offset + length]


cdef str _explain(const ElementFault *fault, uint64_t count, str name):
    cdef str start = f"BYTES data of input {_quote(name)}: not {count} length-prefixed elements ("
    cdef str reason
    if fault.trailing:
        reason = (
            f"{fault.remaining} bytes follow the last element at offset {fault.offset})"
        )
    elif fault.short_prefix:
        reason = (
            f"element {fault.index} needs a 4-byte length at offset {fault.offset}, "
            f"{fault.remaining} remain)"
        )
    else:
        reason = (
            f"element {fault.index} claims {fault.claimed} bytes at offset {fault.offset}, "
            f"{fault.remaining} remain)"
        )
    if count > 1:
        reason += (
            "; accepted are elements that each have a 4-byte little-endian length in front, or "
            "bare elements one after the other with their sizes in 'binary_data_size', "
            "as in \"9821,12302\""
        )
    return start + reason


cdef list _prefixed(_Received received, uint64_t count, bint as_views):
    cdef list elements = PyList_New(<Py_ssize_t>count)
    cdef const unsigned char *data = received.data()
    cdef size_t offset = 0
    cdef size_t length
    cdef uint64_t i
    cdef object element
    for i in range(count):
        length = element_length(data + offset)
        offset += PREFIX_BYTES
        if as_views or length >= VIEW_FROM:
            element = received.element(offset, length, True)
        else:
            element = PyBytes_FromStringAndSize(<const char *>data + offset, <Py_ssize_t>length)
        Py_INCREF(element)
        PyList_SET_ITEM(elements, <Py_ssize_t>i, element)
        offset += length
    return elements


def signature(buffer: Buffer) -> str | None:
    """Return the image format of the signature at the start ("jpeg", "png", ...), or None."""
    cdef _Received received = _Received(buffer)
    cdef const char *found = image_format_name(
        image_signature(received.data(), received.length())
    )
    return None if found == NULL else found.decode("ascii")


def decode(buffer: Buffer, uint64_t count, str name not None="") -> list[bytes | memoryview]:
    """Return exactly `count` length-prefixed elements, which must use up the buffer.

    Args:
        name: The input's name, for the error text.

    Raises:
        ElementsError: The bytes are not `count` prefixed elements.
    """
    cdef _Received received = _Received(buffer)
    cdef ElementFault fault
    if not walk_prefixed(received.data(), received.length(), count, &fault):
        raise ElementsError(_explain(&fault, count, name))
    return _prefixed(received, count, False)


def split_sizes(
    buffer: Buffer,
    sizes: Sequence[int],
    bint is_image=False,
    str name not None="",
) -> list[bytes | memoryview]:
    """Return bare elements that follow each other with the given sizes.

    Args:
        sizes: One size for each element. The sum must be the buffer's length.
        is_image: Whether every element is a memoryview, however small.
        name: The input's name, for the error text.

    Raises:
        ElementsError: A size is negative, or the sizes do not add up to the buffer's length.
    """
    cdef _Received received = _Received(buffer)
    cdef tuple checked = tuple(sizes)
    cdef object total = 0
    cdef size_t offset = 0
    cdef size_t length
    cdef list elements = []
    for size in checked:
        if size < 0:
            raise ElementsError(f"BYTES data of input {_quote(name)}: {size} is not a size")
        total += size
    if total != received.length():
        raise ElementsError(
            f"BYTES data of input {_quote(name)}: the {len(checked)} sizes add up to {total} "
            f"bytes, but there are {received.length()}"
        )
    for size in checked:
        length = size
        elements.append(received.element(offset, length, is_image))
        offset += length
    return elements


def read(
    buffer: Buffer,
    uint64_t count,
    sizes: Sequence[int] | None,
    bint is_image,
    str name not None,
) -> list[bytes | memoryview]:
    """Return the elements of a BYTES tensor, by the rule that REST and gRPC share.

    With `sizes` the elements are bare. Without `sizes`, exactly `count` length-prefixed elements
    must use up the buffer. Otherwise, if `count` is 1 and the input takes images, the whole buffer
    is the image.

    Args:
        buffer: The tensor's bytes; any C-contiguous buffer.
        sizes: The client's size list, or None.
        is_image: Whether the model's input takes encoded images.
        name: The input's name, for the error text.

    Returns:
        One `bytes` per element; a memoryview for each image and each element of 64 KiB or more.

    Raises:
        ElementsError: The bytes are not `count` elements in any accepted form.
    """
    cdef _Received received
    cdef ElementFault fault
    cdef BytesForm form
    if sizes is not None:
        if <uint64_t>len(sizes) != count:
            raise ElementsError(
                f"BYTES data of input {_quote(name)}: 'binary_data_size' lists {len(sizes)} sizes, "
                f"but the shape has {count} elements"
            )
        return split_sizes(buffer, sizes, is_image, name)
    received = _Received(buffer)
    form = bytes_form(received.data(), received.length(), count, is_image, &fault)
    if form == BYTES_BARE:
        return [received.element(0, received.length(), True)]
    if form == BYTES_PREFIXED:
        return _prefixed(received, count, is_image)
    raise ElementsError(_explain(&fault, count, name))


cdef Py_ssize_t _size_of(object item, Py_ssize_t index) except -1:
    cdef Py_ssize_t size
    cdef Py_buffer export
    if PyBytes_Check(item):
        size = PyBytes_GET_SIZE(item)
    elif PyUnicode_Check(item):
        try:
            PyUnicode_AsUTF8AndSize(item, &size)
        except UnicodeEncodeError as error:
            raise ElementsError(f"element {index} is a string that has no UTF-8 form") from error
    elif type(item) is memoryview or type(item) is bytearray:
        try:
            PyObject_GetBuffer(item, &export, PyBUF_SIMPLE)
        except BufferError as error:
            raise ElementsError(f"element {index} is a view with gaps") from error
        size = export.len
        PyBuffer_Release(&export)
    else:
        raise TypeError(
            f"element {index} is a {type(item).__name__}; a BYTES element is bytes, a bytearray, "
            f"a memoryview or a str"
        )
    if <uint64_t>size > LONGEST:
        raise ElementsError(f"element {index} has {size} bytes; its length must fit into 32 bits")
    return size


cdef Py_ssize_t _copy_into(object item, unsigned char *target, Py_ssize_t room) except -1:
    # `room` is the result of the first pass. A bytearray that has grown since must not overflow.
    cdef Py_ssize_t size
    cdef Py_buffer export
    cdef const char *text
    if PyBytes_Check(item):
        size = PyBytes_GET_SIZE(item)
        if size <= room:
            memcpy(target, PyBytes_AS_STRING(item), <size_t>size)
    elif PyUnicode_Check(item):
        text = PyUnicode_AsUTF8AndSize(item, &size)
        if size <= room:
            memcpy(target, text, <size_t>size)
    else:
        PyObject_GetBuffer(item, &export, PyBUF_SIMPLE)
        size = export.len
        if size <= room:
            memcpy(target, export.buf, <size_t>size)
        PyBuffer_Release(&export)
    if size > room:
        raise RuntimeError("an element grew while it was being encoded")
    return size


def encode(elements: Iterable[bytes | bytearray | memoryview | str]) -> bytes:
    """Return the elements one after the other, each after its 4-byte little-endian length.

    Args:
        elements: An iterable of bytes, bytearray, memoryview or str (written as UTF-8).

    Raises:
        TypeError: An element is something else.
        ElementsError: A string has no UTF-8 form, or an element is longer than 32 bits can say.
    """
    cdef tuple items = tuple(elements)
    cdef Py_ssize_t count = PyTuple_GET_SIZE(items)
    cdef Py_ssize_t total = 4 * count
    cdef Py_ssize_t i, size
    cdef object item
    cdef bytes encoded
    cdef unsigned char *target
    cdef unsigned char *end
    for i in range(count):
        item = <object>PyTuple_GET_ITEM(items, i)
        if type(item) is bytes:
            size = PyBytes_GET_SIZE(item)
            if <uint64_t>size > LONGEST:
                size = _size_of(item, i)
            total += size
        else:
            total += _size_of(item, i)
    encoded = PyBytes_FromStringAndSize(NULL, total)
    target = <unsigned char *>PyBytes_AS_STRING(encoded)
    end = target + total
    for i in range(count):
        item = <object>PyTuple_GET_ITEM(items, i)
        if end - target < 4:
            raise RuntimeError("an element grew while it was being encoded")
        if type(item) is bytes:
            size = PyBytes_GET_SIZE(item)
            if size > end - target - 4:
                raise RuntimeError("an element grew while it was being encoded")
            memcpy(target + 4, PyBytes_AS_STRING(item), <size_t>size)
        else:
            size = _copy_into(item, target + 4, end - target - 4)
        write_element_length(target, <unsigned int>size)
        target += 4 + size
    if target != end:
        raise RuntimeError("an element shrank while it was being encoded")
    return encoded

# Safe without the GIL: local variables only. An exported buffer cannot be resized.
# cython: freethreading_compatible = True
"""Reads BYTES tensors into lists of elements, and writes them.

An element of 64 KiB or more, and every image, is a memoryview into the received buffer. Smaller
elements are `bytes`, which cost less to make than a view. bytes_tensor.hpp has the rule for
reading.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
cimport cython
from libc.stdint cimport uint64_t

from native.tensor.bytes_tensor cimport (
    BYTES_BARE, BYTES_PREFIXED, BytesForm, ElementFault, PREFIX_BYTES, bytes_form, element_length,
    write_element_length,
)
from native.tensor.image_signature cimport image_format_name, image_signature

from ksrv._native.memory.exported_bytes cimport ExportedBytes

if not cython.compiled:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

cdef enum:
    VIEW_FROM_BYTES = 65536    # elements from this size on are not copied
    QUOTED_CHARACTERS = 64     # of a name in an error text

cdef uint64_t LONGEST_ELEMENT = 0xFFFFFFFF  # what a 4-byte length can say


class ElementsError(ValueError):
    """The bytes are not the expected elements. The text is for the client."""


cdef str _quote(str name):
    # The rule of ksrv.errors.quote, which compiled modules must not import.
    cdef str shown = ascii(name[:QUOTED_CHARACTERS + 1])
    shown = shown[1:len(shown) - 1]
    if len(name) > QUOTED_CHARACTERS or len(shown) > QUOTED_CHARACTERS:
        # No backslash at the end: its escape may have been cut.
        shown = shown[:QUOTED_CHARACTERS].rstrip("\\") + "..."
    return f"'{shown}'"


cdef object _element(
    object buffer, const ExportedBytes &body, size_t offset, size_t length, bint as_view
):
    if not as_view and length < VIEW_FROM_BYTES:
        return PyBytes_FromStringAndSize(<const char *>body.data + offset, <Py_ssize_t>length)
    view = memoryview(buffer)
    if view.ndim != 1 or view.format != "B":
        view = view.cast("B")
    return view[offset:offset + length]


cdef str _explain(const ElementFault *fault, uint64_t count, str name):
    cdef str start = f"BYTES data of input {_quote(name)}: not {count} length-prefixed elements"
    cdef str reason
    if fault.trailing:
        reason = f"{fault.remaining} bytes follow the last element at offset {fault.offset}"
    elif fault.short_prefix:
        reason = (
            f"element {fault.index} needs a 4-byte length at offset {fault.offset}, "
            f"{fault.remaining} remain"
        )
    else:
        reason = (
            f"element {fault.index} claims {fault.claimed} bytes at offset {fault.offset}, "
            f"{fault.remaining} remain"
        )
    cdef str advice = "; write each element after its 4-byte little-endian length"
    if count > 1:  # A single number in 'binary_data_size' is the size of the whole tensor.
        advice += (
            ", or bare elements one after the other with their sizes in 'binary_data_size', as in "
            "\"9821,12302\""
        )
    return f"{start} ({reason}){advice}"


cdef list _prefixed(object buffer, const ExportedBytes &body, uint64_t count, bint as_views):
    """Return length-prefixed elements, which `bytes_form` has checked."""
    cdef list elements = []
    cdef size_t offset = 0
    cdef size_t length
    cdef uint64_t _
    for _ in range(count):
        length = element_length(body.data + offset)
        offset += PREFIX_BYTES
        elements.append(_element(buffer, body, offset, length, as_views))
        offset += length
    return elements


def signature(buffer: Buffer) -> str | None:
    """Return the image format of the signature at the start ("jpeg", "png", ...), or None."""
    cdef ExportedBytes body
    body.take(buffer)
    cdef const char *found = image_format_name(image_signature(body.data, body.length))
    return None if found == NULL else found.decode("ascii")


cdef list _sized(object buffer, const ExportedBytes &body, tuple sizes, bint is_image, str name):
    """Return bare elements, by their sizes."""
    cdef size_t offset = 0
    cdef list elements = []
    if sum(sizes) != body.length:
        raise ElementsError(
            f"BYTES data of input {_quote(name)}: the {len(sizes)} sizes add up to {sum(sizes)} "
            f"bytes, but there are {body.length}"
        )
    for size in sizes:
        elements.append(_element(buffer, body, offset, size, is_image))
        offset += size
    return elements


def read(
    buffer: Buffer,
    uint64_t count,
    sizes: Sequence[int] | None,
    bint is_image,
    str name not None,
) -> list[bytes | memoryview]:
    """Return the elements of a BYTES tensor, by the rule that REST and gRPC share.

    With `sizes` the elements are bare. Without `sizes`, if `count` length-prefixed elements fill
    the buffer, they are returned. If not, and `count` is 1 and the input takes images, the whole
    buffer is the image.

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
    cdef ExportedBytes body
    cdef ElementFault fault
    cdef BytesForm form
    body.take(buffer)
    if sizes is not None:
        if <uint64_t>len(sizes) != count:
            raise ElementsError(
                f"BYTES data of input {_quote(name)}: 'binary_data_size' lists {len(sizes)} sizes, "
                f"but the shape has {count} elements"
            )
        return _sized(buffer, body, tuple(sizes), is_image, name)
    form = bytes_form(body.data, body.length, count, is_image, &fault)
    if form == BYTES_BARE:
        return [_element(buffer, body, 0, body.length, True)]
    if form == BYTES_PREFIXED:
        return _prefixed(buffer, body, count, is_image)
    raise ElementsError(_explain(&fault, count, name))


cdef object _encoded(object item, Py_ssize_t index):
    """Return an element as an object that exports its bytes."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return (<str>item).encode()
        except UnicodeEncodeError as error:
            raise ElementsError(f"element {index} is a string that has no UTF-8 form") from error
    if type(item) is bytearray:
        return bytes(item)  # a copy, because another thread could resize a bytearray meanwhile
    if type(item) is memoryview:
        if not item.c_contiguous:
            raise ElementsError(f"element {index} is a view with gaps")
        return item
    raise TypeError(
        f"element {index} is a {type(item).__name__}; a BYTES element is bytes, a bytearray, "
        f"a memoryview or a str"
    )


def encode(elements: Iterable[bytes | bytearray | memoryview | str]) -> bytes:
    """Return the elements one after the other, each after its 4-byte little-endian length.

    Args:
        elements: An iterable of bytes, bytearray, memoryview or str (written as UTF-8).

    Raises:
        TypeError: An element is something else.
        ElementsError: A string has no UTF-8 form, or an element is longer than 32 bits can say.
    """
    cdef list parts = []
    cdef Py_ssize_t index = 0
    cdef uint64_t size
    cdef unsigned char prefix[PREFIX_BYTES]
    for item in elements:
        item = _encoded(item, index)
        size = len(item) if type(item) is bytes else memoryview(item).nbytes
        if size > LONGEST_ELEMENT:
            raise ElementsError(
                f"element {index} has {size} bytes; its length must fit into 32 bits"
            )
        write_element_length(prefix, <unsigned int>size)
        parts.append(PyBytes_FromStringAndSize(<char *>prefix, PREFIX_BYTES))
        parts.append(item)
        index += 1
    return b"".join(parts)

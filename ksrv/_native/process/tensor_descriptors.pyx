# Needs the GIL, as shared_blocks.pyx does.
"""Tensors of a message: written once on one side, viewed on the other side.

A descriptor has the block, the offset in it, the datatype and the shape. An array that is already
in one of this side's blocks is referred to and not copied. All other arrays are copied: into the
message if they are small together, else into one block. An array whose axes are a permutation of
contiguous memory (an NHWC batch that the handler sees as NCHW) keeps its memory order, and the
other side sees the same view. BYTES elements are stored one after the other, after a table of their
sizes. A long element may be replaced by a reference to it.

An array or a long element in the large body of a request is not copied: its block is lent.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp.vector cimport vector

cimport numpy as cnp

from ksrv._native.memory.buffer_pool cimport Block, count_copied
from ksrv._native.tensor.datatype cimport (
    DIMENSION_LIMIT, RANK_LIMIT, DT_BYTES,
    DT_COUNT,
    DT_INVALID,
    SIZE_OK,
    Datatype,
    SizeLimits,
    checked_nbytes,
    datatype_of,
    item_size_of,
)
from ksrv._native.tensor.new_array cimport new_array
from ksrv._native.process.shared_blocks cimport (
    ExportedBlocks, ImportedBlocks, Shared,
)

import numpy

from ksrv._native.tensor import datatype as _datatype

if not cython.compiled:
    from collections.abc import Iterable
    from typing import Any

cnp.import_array()

MOST_TENSORS: int = 65536
"""The most tensors in one message."""
ELEMENT_VIEW_BYTES: int = 64 * 1024
"""BYTES elements of at least this size become views. Smaller elements are copied."""


cdef struct Inlined:
    const unsigned char *data
    size_t nbytes


cdef enum:
    INLINE_BYTES = 32 * 1024  # of tensors in a message; for more, a block is cheaper
    # Referred to by one message; more arrays are copied, because file descriptors are few.
    DIRECT_BLOCKS = 64
    RELEASE_GIL_BYTES = 128 * 1024

cdef size_t VIEW_BYTES = ELEMENT_VIEW_BYTES
cdef uint32_t TENSOR_LIMIT = MOST_TENSORS
# Flag in an element's size: a reference replaces the element.
cdef uint64_t REFERRED_TO = <uint64_t>1 << 63

cdef tuple DTYPES = _datatype.DTYPES
cdef tuple NAMES = _datatype.NAMES


cdef struct Head:
    uint32_t count
    uint32_t described  # bytes of all descriptors, which follow this head
    uint32_t inlined    # bytes of small tensors, which follow the descriptors


cdef struct TensorDescriptor:
    uint8_t datatype
    uint8_t rank
    uint8_t permuted
    uint8_t unused[5]
    uint64_t elements
    uint64_t block  # 0 if the tensor is empty, or its bytes are in the message
    uint64_t offset
    uint64_t nbytes


cdef struct Reference:
    uint64_t block  # 0 for none
    uint64_t offset


cdef inline size_t aligned(size_t size) noexcept:
    return (size + 63) & ~(<size_t>63)


def write(tensors: Iterable[Any], ExportedBlocks exported not None) -> tuple[bytes, list[Any]]:
    """Write tensors into a message and into shared blocks.

    Args:
        tensors: At most `MOST_TENSORS` objects with `name`, `datatype`, `shape` and `data`: an
            array of the datatype's dtype, or a list of BYTES elements.

    Returns:
        The head, the descriptors and the bytes in the message, in the form that `read` takes, and
        the blocks that they refer to. The caller must keep the blocks until the message is sent.

    Raises:
        TypeError: An array's dtype does not match its datatype.
        MemoryError: Not enough memory for a block.
        TooLarge: The other side does not accept a message with this many bytes of tensors.
    """
    cdef list places = []
    cdef list blocks = []
    cdef list written = list(tensors)
    cdef Place place
    cdef size_t total = 0
    cdef uint64_t nbytes = 0
    cdef Py_ssize_t i
    for i in range(len(written)):
        place = place_of(written[i])
        places.append(place)
        nbytes += place.descriptor.nbytes
        if place.elements is not None:
            refer_to_lent(place, exported, blocks)
        elif place.descriptor.nbytes and (
            lies_here(place, exported, blocks)
            or is_lent(
                place.array, place.data, exported, blocks,
                &place.descriptor.block, &place.descriptor.offset,
            )
        ):
            continue
        place.is_copied = True
        place.descriptor.offset = total
        total += aligned(place.descriptor.nbytes)
    exported.check_size(nbytes)
    return describe(places, exported, blocks, total), blocks


cdef bytes describe(list places, ExportedBlocks exported, list blocks, size_t total):
    """Copy tensors into the message or into a block, and return the bytes for the message."""
    cdef Place place
    cdef Head head
    cdef Block scratch = None
    cdef uint64_t number = 0
    cdef unsigned char *copies
    cdef char *at
    cdef bytes message
    head.count = <uint32_t>len(places)
    head.inlined = 0 if total > INLINE_BYTES else <uint32_t>total
    head.described = 0
    for place in places:
        head.described += <uint32_t>place.described()
    message = PyBytes_FromStringAndSize(
        NULL, <Py_ssize_t>(sizeof(Head) + head.described + head.inlined)
    )
    at = PyBytes_AS_STRING(message)
    memcpy(at, &head, sizeof(Head))
    at += sizeof(Head)
    if total > INLINE_BYTES:
        scratch = exported.lease(total)
        blocks.append(scratch)
        number = exported.number_of(scratch)
        copies = scratch.block.data
    else:
        copies = <unsigned char *>at + head.described
        memset(copies, 0, head.inlined)
    for place in places:
        if place.is_copied and place.descriptor.nbytes:
            place.descriptor.block = number
            fill(place, copies)
        memcpy(at, &place.descriptor, sizeof(TensorDescriptor))
        at += sizeof(TensorDescriptor)
        memcpy(at, place.shape, place.descriptor.rank * sizeof(int64_t))
        at += place.descriptor.rank * sizeof(int64_t)
        if place.descriptor.permuted:
            memcpy(at, place.order, place.descriptor.rank)
            at += place.descriptor.rank
    return message


cdef class Place:
    """A tensor's descriptor and its bytes: an array in memory order, or a list of elements."""

    cdef TensorDescriptor descriptor
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    cdef object array
    cdef const unsigned char *data  # of the array
    cdef list elements
    cdef vector[Reference] references  # one per element; empty if all elements are copied
    cdef bint is_copied

    cdef size_t described(self) noexcept:
        """Return the size of the descriptor, the shape and the order of the axes."""
        cdef size_t rank = self.descriptor.rank
        return sizeof(TensorDescriptor) + rank * (sizeof(int64_t) + self.descriptor.permuted)


cdef bint lies_here(Place place, ExportedBlocks exported, list blocks) except -1:
    """Whether an array is in a block of this side. If so, refer to the block."""
    cdef Block block = None
    if len(blocks) < DIRECT_BLOCKS:
        block = exported.containing(place.data, place.descriptor.nbytes)
    if block is None:
        return False
    blocks.append(block)
    place.descriptor.block = exported.number_of(block)
    place.descriptor.offset = <uint64_t>(place.data - block.block.data)
    return True


cdef bint is_lent(
    object owner, const unsigned char *data, ExportedBlocks exported, list blocks,
    uint64_t *number, uint64_t *offset,
) except -1:
    """Whether data is in the body of a request. If so, lend its block with the message.

    Args:
        owner: The array or view over the data.
        offset: Receives the offset of the data in the block.
    """
    cdef Block block
    cdef Shared lent = None
    while isinstance(owner, numpy.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, Block):
        return False
    block = owner
    for one in blocks:
        if isinstance(one, Shared) and (<Shared>one).block.block == block.block:
            lent = one
    if lent is None and len(blocks) < DIRECT_BLOCKS:
        lent = exported.lend(block)
        if lent is not None:
            blocks.append(lent)
    if lent is None:
        return False
    number[0] = lent.number
    offset[0] = <uint64_t>(data - block.block.data)
    return True


cdef int refer_to_lent(Place place, ExportedBlocks exported, list blocks) except -1:
    """Refer to long elements of a BYTES tensor that are in the bodies of requests."""
    cdef Reference found
    cdef Py_buffer view
    cdef Py_ssize_t i
    for i in range(len(place.elements)):
        element = place.elements[i]
        if type(element) is not memoryview or <size_t>len(element) < VIEW_BYTES:
            continue
        PyObject_GetBuffer(element, &view, PyBUF_SIMPLE)
        data = <const unsigned char *>view.buf
        PyBuffer_Release(&view)
        if is_lent(element, data, exported, blocks, &found.block, &found.offset):
            place.references.resize(len(place.elements))
            place.references[i] = found
            place.descriptor.nbytes -= <size_t>len(element) - sizeof(Reference)
    return 0


cdef Place place_of(object tensor):
    cdef Place place = Place.__new__(Place)
    cdef bytes kind = tensor.datatype.encode()
    cdef Datatype code = datatype_of(kind, len(kind))
    cdef object data = tensor.data
    cdef object axis
    cdef Py_buffer view
    cdef Py_ssize_t size = 0
    cdef int i
    memset(&place.descriptor, 0, sizeof(TensorDescriptor))
    if code == DT_INVALID:
        raise TypeError(f"tensor {tensor.name!r} has the unknown datatype {tensor.datatype!r}")
    place.descriptor.datatype = <uint8_t>code
    cdef Py_ssize_t rank = len(tensor.shape) if isinstance(data, list) else data.ndim
    if rank > RANK_LIMIT:
        raise TypeError(
            f"tensor {tensor.name!r} has {rank} dimensions, and at most {RANK_LIMIT} are allowed"
        )
    if isinstance(data, list):
        if code != DT_BYTES:
            raise TypeError(f"tensor {tensor.name!r} is {tensor.datatype} and a list of elements")
        place.elements = list(data)  # copy: its owner may append to the list meanwhile
        for element in place.elements:
            size += len(element)
        place.descriptor.rank = <uint8_t>len(tensor.shape)
        for i in range(place.descriptor.rank):
            place.shape[i] = tensor.shape[i]
        place.descriptor.elements = <uint64_t>len(place.elements)
        place.descriptor.nbytes = <uint64_t>(size + 8 * len(place.elements))
        return place
    cdef object dtype = data.dtype
    cdef object wanted = DTYPES[code]
    if dtype is not wanted and (wanted is None or dtype != wanted):
        raise TypeError(
            f"tensor {tensor.name!r} has the datatype {tensor.datatype} and an array of {dtype}"
        )
    if not data.flags.c_contiguous:
        strides = data.strides
        axes = sorted(range(data.ndim), key=lambda axis: -strides[axis])
        if data.transpose(axes).flags.c_contiguous:
            data = data.transpose(axes)
            place.descriptor.permuted = 1
            for i, axis in enumerate(axes):
                place.order[i] = axis
        else:
            data = numpy.ascontiguousarray(data)
    place.array = data
    PyObject_GetBuffer(data, &view, PyBUF_STRIDED_RO)
    try:
        place.descriptor.rank = <uint8_t>view.ndim
        for i in range(view.ndim):
            place.shape[i] = view.shape[i]
        place.descriptor.nbytes = <uint64_t>view.len
        place.data = <const unsigned char *>view.buf
    finally:
        PyBuffer_Release(&view)
    return place


cdef int fill(Place place, unsigned char *copies) except -1:
    """Copy a tensor to its offset in a block or in the message."""
    cdef unsigned char *target = copies + place.descriptor.offset
    cdef size_t nbytes = place.descriptor.nbytes
    cdef Py_buffer view
    cdef uint64_t size, length
    cdef const void *source
    cdef Py_ssize_t i
    if place.array is not None:
        count_copied(nbytes)
        PyObject_GetBuffer(place.array, &view, PyBUF_STRIDED_RO)
        if nbytes >= RELEASE_GIL_BYTES:
            with nogil:
                memcpy(target, view.buf, nbytes)
        else:
            memcpy(target, view.buf, nbytes)
        PyBuffer_Release(&view)
        return 0
    cdef unsigned char *sizes = target
    cdef unsigned char *end = target + nbytes
    cdef size_t copied = 0
    target += 8 * place.descriptor.elements
    for i in range(len(place.elements)):
        PyObject_GetBuffer(place.elements[i], &view, PyBUF_SIMPLE)
        size = length = <uint64_t>view.len
        source = view.buf
        if place.references.size() and place.references[i].block:
            size |= REFERRED_TO
            length = sizeof(Reference)
            source = &place.references[i]
        else:
            copied += <size_t>length
        if length > <uint64_t>(end - target):
            PyBuffer_Release(&view)
            raise ValueError("an element of a BYTES tensor grew while it was copied")
        memcpy(target, source, <size_t>length)
        memcpy(sizes, &size, 8)
        PyBuffer_Release(&view)
        target += length
        sizes += 8
    count_copied(copied)
    return 0


def read(
    bytes payload not None,
    ImportedBlocks imported not None,
) -> tuple[list[tuple[str, tuple[int, ...], Any]], int]:
    """Return views of the tensors that the other side wrote.

    Args:
        payload: The bytes from `write`, which other bytes may follow.

    Returns:
        Datatype, shape and data of each tensor, and the offset of the rest of the payload. Arrays
        and long elements in blocks are views. Data in the message is copied.

    Raises:
        ValueError: A descriptor is inconsistent, or the tensors exceed the limit of `imported`.
        BlockError: A descriptor names bytes that do not exist.
    """
    cdef list tensors = []
    cdef const unsigned char *at = <const unsigned char *>PyBytes_AS_STRING(payload)
    cdef size_t left = <size_t>PyBytes_GET_SIZE(payload)
    cdef size_t rest, tail
    cdef Head head
    cdef Inlined inlined
    cdef uint64_t allowed = imported.most_bytes
    cdef TensorDescriptor descriptor
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    cdef list numbers = []
    if left < sizeof(Head):
        raise ValueError("the message ends before its tensors")
    memcpy(&head, at, sizeof(Head))
    at += sizeof(Head)
    left -= sizeof(Head)
    if head.count > TENSOR_LIMIT:
        raise ValueError(f"{head.count} tensors are too many")
    if head.described > left or head.inlined > left - head.described:
        raise ValueError(
            f"{head.described} bytes of descriptors and {head.inlined} of tensors were announced, "
            f"but {left} bytes arrived"
        )
    rest = sizeof(Head) + head.described + head.inlined
    inlined.data = at + head.described
    inlined.nbytes = head.inlined
    left = head.described
    for _ in range(head.count):
        if left < sizeof(TensorDescriptor):
            raise ValueError("the descriptors end too soon")
        memcpy(&descriptor, at, sizeof(TensorDescriptor))
        at += sizeof(TensorDescriptor)
        left -= sizeof(TensorDescriptor)
        if (descriptor.datatype >= DT_COUNT or descriptor.rank > RANK_LIMIT
                or descriptor.permuted > 1):
            raise ValueError(
                f"a tensor has the datatype number {descriptor.datatype} and rank {descriptor.rank}"
            )
        tail = descriptor.rank * (sizeof(int64_t) + descriptor.permuted)
        if left < tail:
            raise ValueError("the descriptors end too soon")
        memcpy(shape, at, descriptor.rank * sizeof(int64_t))
        memcpy(order, at + descriptor.rank * sizeof(int64_t), descriptor.rank * descriptor.permuted)
        at += tail
        left -= tail
        if descriptor.nbytes > allowed:
            raise ValueError(f"the tensors have more than {imported.most_bytes} bytes together")
        allowed -= descriptor.nbytes
        numbers.append(descriptor.block)
        tensors.append(
            read_one(&descriptor, shape, order, imported, inlined, &allowed, numbers)
        )
    if left:
        raise ValueError(f"{left} bytes follow the last descriptor")
    for number in numbers:
        imported.settle(number)
    return tensors, rest


cdef tuple read_one(
    const TensorDescriptor *descriptor, const int64_t *shape, const uint8_t *order,
    ImportedBlocks imported, Inlined inlined, uint64_t *allowed, list numbers,
):
    """Return a tensor as `read` does.

    Args:
        order: The order of the tensor's axes if they are permuted.
        imported: See `read`.
        allowed: How many bytes may still be referred to. Reduced by the bytes of this tensor.
        numbers: Receives the numbers of the blocks that the tensor refers to.
    """
    cdef SizeLimits limits
    cdef uint64_t elements = 0
    cdef uint64_t nbytes = 0
    cdef size_t where = 0
    cdef size_t width = item_size_of(<Datatype>descriptor.datatype)
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef cnp.ndarray made
    cdef int i
    cdef tuple dimensions = tuple([shape[i] for i in range(descriptor.rank)])
    limits.rank = RANK_LIMIT
    limits.dimension = DIMENSION_LIMIT
    limits.bytes = 1 << 62
    if checked_nbytes(
        shape, descriptor.rank, width if width else 1, limits, &elements, &nbytes, &where
    ) != SIZE_OK:
        raise ValueError(f"a tensor has the shape {list(dimensions)}, which has no size")
    name = NAMES[descriptor.datatype]
    if descriptor.datatype == DT_BYTES:
        if descriptor.elements != elements or descriptor.permuted:
            raise ValueError(
                f"a BYTES tensor of shape {list(dimensions)} has {descriptor.elements} elements"
            )
        return name, dimensions, read_elements(descriptor, imported, inlined, allowed, numbers)
    if nbytes != descriptor.nbytes:
        raise ValueError(
            f"a {name} tensor of shape {list(dimensions)} has {descriptor.nbytes} bytes"
        )
    if nbytes and descriptor.offset % width:
        raise ValueError(
            f"a {name} tensor begins at byte {descriptor.offset}, which is not aligned"
        )
    if nbytes and descriptor.block:
        block = imported.part(descriptor.block, descriptor.offset, nbytes)
        array = numpy.ndarray(dimensions, DTYPES[descriptor.datatype], block, descriptor.offset)
    else:
        for i in range(descriptor.rank):
            sizes[i] = <cnp.npy_intp>shape[i]
        made = new_array(DTYPES[descriptor.datatype], descriptor.rank, sizes)
        if nbytes:
            memcpy(cnp.PyArray_DATA(made), bytes_of(descriptor, inlined), nbytes)
        array = made
    if descriptor.permuted:
        axes = [order[i] for i in range(descriptor.rank)]
        if sorted(axes) != list(range(descriptor.rank)):
            raise ValueError("the order of a tensor's axes is not a permutation")
        array = array.transpose(numpy.argsort(axes))
        dimensions = array.shape
    return name, dimensions, array


cdef const unsigned char *bytes_of(
    const TensorDescriptor *descriptor, Inlined inlined
) except NULL:
    """Return the bytes of a tensor that is in the message."""
    if (descriptor.offset > inlined.nbytes
            or descriptor.nbytes > inlined.nbytes - descriptor.offset):
        raise ValueError(
            f"{descriptor.nbytes} bytes from byte {descriptor.offset} on were named of a message's "
            f"{inlined.nbytes}"
        )
    return inlined.data + descriptor.offset


cdef list read_elements(
    const TensorDescriptor *descriptor, ImportedBlocks imported, Inlined inlined,
    uint64_t *allowed, list numbers,
):
    cdef Reference where
    cdef list found = []
    cdef uint64_t count = descriptor.elements
    cdef uint64_t left = descriptor.nbytes
    cdef uint64_t size = 0
    cdef uint64_t i
    cdef size_t at
    cdef Block block
    cdef const unsigned char *sizes
    cdef object view = None
    if count == 0 and left == 0:
        return found
    if count > left // 8:
        raise ValueError(f"{count} elements have {left} bytes")
    if descriptor.block:
        block = imported.part(descriptor.block, descriptor.offset, descriptor.nbytes)
        sizes = block.block.data + descriptor.offset
        view = memoryview(block)
    else:
        sizes = bytes_of(descriptor, inlined)
    left -= 8 * count
    at = 8 * count
    for i in range(count):
        # Read once, because the other side may change it between the check and a second read.
        memcpy(&size, sizes + 8 * i, 8)
        if size & REFERRED_TO:
            size ^= REFERRED_TO
            if left < sizeof(Reference):
                raise ValueError("the references to elements end too soon")
            memcpy(&where, sizes + at, sizeof(Reference))
            left -= sizeof(Reference)
            at += sizeof(Reference)
            if not VIEW_BYTES <= size <= allowed[0]:
                raise ValueError(
                    f"{size} bytes are referred to, and {VIEW_BYTES} to {allowed[0]} may be"
                )
            allowed[0] -= size
            other = memoryview(imported.part(where.block, where.offset, size))
            found.append(other[where.offset : where.offset + size])
            numbers.append(where.block)
            continue
        if size > left:
            raise ValueError(f"an element has {size} bytes, and {left} are left")
        left -= size
        if size >= VIEW_BYTES and view is not None:
            found.append(view[descriptor.offset + at : descriptor.offset + at + size])
        else:
            found.append((<const char *>sizes)[at : at + size])
        at += size
    if left:
        raise ValueError(f"{left} bytes follow the last element")
    return found

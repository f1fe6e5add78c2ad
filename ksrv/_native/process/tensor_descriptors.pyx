# It relies on the GIL: the books of shared_blocks.
"""Tensors in shared blocks: written once on one side, viewed on the other.

A descriptor names the block, the place in it, the datatype and the shape. An array that already
lies in one of this side's blocks is referred to where it is; all other arrays of a batch are copied
into one block. An array whose axes are a permutation of contiguous memory (an NHWC batch that the
handler sees as NCHW) keeps its memory order, and the other side sees the same view. BYTES elements
lie one after the other behind a table of their sizes; in the place of one that is not copied lies
a reference to it.

An array or a long element in the large body of a request is not copied: its block is lent.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp.string cimport string
from libcpp.vector cimport vector

from ksrv._native.memory.buffer_pool cimport Block, count_copied
from ksrv._native.memory.exported_bytes cimport ExportedBytes
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
from ksrv._native.process.shared_blocks cimport (
    ExportedBlocks, ImportedBlocks, Shared,
)

import numpy

from ksrv._native.tensor import datatype as _datatype


ELEMENT_VIEW_BYTES = 64 * 1024
"""BYTES elements of this size and above are views; smaller ones are copied out."""


cdef enum:
    DIRECT_BLOCKS = 64  # of one message; further ones are copied, because descriptors are few
    RELEASE_GIL_BYTES = 128 * 1024

cdef size_t VIEW_BYTES = ELEMENT_VIEW_BYTES
cdef uint64_t REFERRED_TO = <uint64_t>1 << 63  # in an element's size: a reference is in its place

cdef tuple DTYPES = _datatype.DTYPES
cdef tuple NAMES = _datatype.NAMES


cdef struct TensorDescriptor:
    uint8_t datatype
    uint8_t rank
    uint8_t permuted
    uint8_t unused[5]
    uint64_t elements
    uint64_t block  # 0 where there are no bytes
    uint64_t offset
    uint64_t nbytes


cdef struct Reference:
    uint64_t block  # 0 for none
    uint64_t offset


cdef inline size_t aligned(size_t size) noexcept:
    return (size + 63) & ~(<size_t>63)


def write(tensors, ExportedBlocks exported not None) -> tuple:
    """Put tensors into shared blocks.

    Args:
        tensors: Objects with `name`, `datatype`, `shape` and `data`: an array of the datatype's
            dtype, or a list of BYTES elements.

    Returns:
        The descriptors as bytes, and the blocks that they refer to; the caller keeps the blocks
        until the descriptors are sent.

    Raises:
        TypeError: An array's dtype is not its datatype's.
        MemoryError: There is no memory for a block.
        TooLarge: The other side takes no message with so many bytes of tensors.
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
    cdef Block scratch = None
    if total:
        scratch = exported.lease(total)
        blocks.append(scratch)
    return describe(places, scratch, exported.number_of(scratch) if total else 0), blocks


cdef bytes describe(list places, Block scratch, uint64_t number):
    """Copy what is to be copied into a block with a number, and return all descriptors."""
    cdef Place place
    cdef string descriptors
    for place in places:
        if place.is_copied and place.descriptor.nbytes:
            place.descriptor.block = number
            fill(place, scratch)
        descriptors.append(<char *>&place.descriptor, sizeof(TensorDescriptor))
        descriptors.append(<char *>place.shape, place.descriptor.rank * sizeof(int64_t))
        if place.descriptor.permuted:
            descriptors.append(<char *>place.order, place.descriptor.rank)
    return <bytes>descriptors


cdef class Place:
    """A tensor's descriptor, and where its bytes are: an array in memory order, or elements."""

    cdef TensorDescriptor descriptor
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    cdef object array
    cdef const unsigned char *data  # of the array
    cdef list elements
    cdef vector[Reference] references  # for each element; empty where all are copied
    cdef bint is_copied


cdef bint lies_here(Place place, ExportedBlocks exported, list blocks) except -1:
    """Whether an array lies in a block of this side, which is named then."""
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
    """Whether data lies in the body of a request, whose block is lent with the message then.

    Args:
        owner: The array or the view that holds the data.
        offset: Receives the place of the data in the block.
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
    """Refer to the long elements of a BYTES tensor that lie in the bodies of requests."""
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
    if isinstance(data, list):
        if code != DT_BYTES or len(tensor.shape) > RANK_LIMIT:
            raise TypeError(f"tensor {tensor.name!r} is {tensor.datatype} and a list of elements")
        place.elements = list(data)  # which its owner may make longer meanwhile
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
        if view.ndim > RANK_LIMIT:
            raise TypeError(f"tensor {tensor.name!r} has {view.ndim} dimensions")
        place.descriptor.rank = <uint8_t>view.ndim
        for i in range(view.ndim):
            place.shape[i] = view.shape[i]
        place.descriptor.nbytes = <uint64_t>view.len
        place.data = <const unsigned char *>view.buf
    finally:
        PyBuffer_Release(&view)
    return place


cdef int fill(Place place, Block block) except -1:
    """Copy a tensor to its offset in a block."""
    cdef unsigned char *target = block.block.data + place.descriptor.offset
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


def read(payload, size_t start, size_t length, size_t count,
         ImportedBlocks imported not None) -> list:
    """View tensors that the other side wrote.

    Args:
        payload: Bytes with the descriptors in them.
        start: Where the descriptors begin.
        length: How many bytes they have.

    Returns:
        Datatype, shape and data of each; arrays and long elements are views of the blocks.

    Raises:
        ValueError: A descriptor does not add up, or the tensors are larger than `imported` allows.
        BlockError: A descriptor names bytes that do not exist.
    """
    cdef list tensors = []
    cdef ExportedBytes held
    held.take(payload)
    cdef size_t size = held.length
    if start > size or length > size - start:
        raise ValueError(f"{length} bytes of descriptors were announced, and {size} bytes came")
    cdef const unsigned char *at = held.data + start if size else NULL
    cdef size_t left = length
    cdef size_t tail
    cdef uint64_t allowed = imported.most_bytes
    cdef TensorDescriptor descriptor
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    cdef list numbers = []
    for _ in range(count):
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
        tensors.append(read_one(&descriptor, shape, order, imported, &allowed, numbers))
    if left:
        raise ValueError(f"{left} bytes follow the last descriptor")
    for number in numbers:
        imported.settle(number)
    return tensors


cdef tuple read_one(
    const TensorDescriptor *descriptor, const int64_t *shape, const uint8_t *order,
    ImportedBlocks imported, uint64_t *allowed, list numbers,
):
    """Return a tensor as `read` does.

    Args:
        order: The order of its axes, where they are permuted.
        imported: See `read`.
        allowed: The bytes that may still be referred to; what this tensor refers to is taken off.
        numbers: Receives the numbers of the blocks that are referred to.
    """
    cdef SizeLimits limits
    cdef uint64_t elements = 0
    cdef uint64_t nbytes = 0
    cdef size_t where = 0
    cdef size_t width = item_size_of(<Datatype>descriptor.datatype)
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
        return name, dimensions, read_elements(descriptor, imported, allowed, numbers)
    if nbytes != descriptor.nbytes:
        raise ValueError(
            f"a {name} tensor of shape {list(dimensions)} has {descriptor.nbytes} bytes"
        )
    if nbytes and descriptor.offset % width:
        raise ValueError(
            f"a {name} tensor begins at byte {descriptor.offset}, which is not aligned"
        )
    if nbytes:
        block = imported.part(descriptor.block, descriptor.offset, nbytes)
        array = numpy.ndarray(dimensions, DTYPES[descriptor.datatype], block, descriptor.offset)
    else:
        array = numpy.empty(dimensions, DTYPES[descriptor.datatype])
    if descriptor.permuted:
        axes = [order[i] for i in range(descriptor.rank)]
        if sorted(axes) != list(range(descriptor.rank)):
            raise ValueError("the order of a tensor's axes is not a permutation")
        array = array.transpose(numpy.argsort(axes))
        dimensions = array.shape
    return name, dimensions, array


cdef list read_elements(
    const TensorDescriptor *descriptor, ImportedBlocks imported, uint64_t *allowed, list numbers
):
    cdef Reference where
    cdef list found = []
    cdef uint64_t count = descriptor.elements
    cdef uint64_t left = descriptor.nbytes
    cdef uint64_t size = 0
    cdef uint64_t i
    cdef size_t at
    if count == 0 and left == 0:
        return found
    if count > left // 8:
        raise ValueError(f"{count} elements have {left} bytes")
    cdef Block block = imported.part(descriptor.block, descriptor.offset, descriptor.nbytes)
    cdef const unsigned char *sizes = block.block.data + descriptor.offset
    cdef object view = memoryview(block)
    left -= 8 * count
    at = descriptor.offset + 8 * count
    for i in range(count):
        # Read once: the other side may change it between a check and a second look.
        memcpy(&size, sizes + 8 * i, 8)
        if size & REFERRED_TO:
            size ^= REFERRED_TO
            if left < sizeof(Reference):
                raise ValueError("the references to elements end too soon")
            memcpy(&where, block.block.data + at, sizeof(Reference))
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
        if size >= VIEW_BYTES:
            found.append(view[at : at + size])
        else:
            found.append((<char *>block.block.data)[at : at + size])
        at += size
    if left:
        raise ValueError(f"{left} bytes follow the last element")
    return found

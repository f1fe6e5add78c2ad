# It relies on the GIL: the books of shared_blocks.
"""Tensors in shared blocks: written once on one side, viewed on the other.

A record names the block, the place in it, the datatype and the shape. An array that already lies in
one of this side's blocks is referred to where it is; everything else of a batch is copied into one
block. An array whose axes are a permutation of contiguous memory (an NHWC batch that the handler
sees as NCHW) keeps its memory order, and the other side sees the same view. BYTES elements lie one
after the other behind a table of their sizes.

Reading believes no number: the block must exist, the bytes must lie in it, the shape must have just
that size, the sizes of elements must add up.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp.string cimport string

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
from ksrv._native.ipc.shared_blocks cimport OwnBlocks, PeerBlocks

import numpy

from ksrv._native.tensor import datatype as _datatype

ELEMENT_VIEW_BYTES = 64 * 1024
"""BYTES elements of this size and above are views; smaller ones are copied out."""


cdef enum:
    DIRECT_BLOCKS = 64  # of one message; further ones are copied, because descriptors are few
    RELEASE_GIL_BYTES = 128 * 1024

cdef size_t VIEW_BYTES = ELEMENT_VIEW_BYTES

cdef tuple DTYPES = _datatype.DTYPES
cdef tuple NAMES = _datatype.NAMES


cdef struct Record:
    uint8_t datatype
    uint8_t rank
    uint8_t permuted
    uint8_t unused[5]
    uint64_t elements
    uint64_t block  # 0 where there are no bytes
    uint64_t offset
    uint64_t nbytes


cdef inline size_t aligned(size_t size) noexcept:
    return (size + 63) & ~(<size_t>63)


def write(tensors, OwnBlocks own not None) -> tuple:
    """Put tensors into shared blocks.

    Args:
        tensors: Objects with `name`, `datatype`, `shape` and `data`: an array of the datatype's
            dtype, or a list of BYTES elements.
        own: The blocks of this side.

    Returns:
        The records as bytes, and the blocks that they refer to; whoever sends the records keeps
        those until they are sent.

    Raises:
        TypeError: An array's dtype is not its datatype's.
        MemoryError: There is no memory for a block.
    """
    cdef list places = []
    cdef list blocks = []
    cdef Place place
    cdef size_t total = 0
    for tensor in tensors:
        place = place_of(tensor, own, len(blocks) < DIRECT_BLOCKS)
        places.append(place)
        if place.block is not None:
            blocks.append(place.block)
        else:
            place.record.offset = total
            total += aligned(place.record.nbytes)
    cdef Block scratch = None
    cdef uint64_t number = 0
    if total:
        scratch = own.lease(total)
        number = own.number_of(scratch)
        blocks.append(scratch)
    cdef string records
    for place in places:
        if place.block is not None:
            place.record.block = own.number_of(place.block)
        elif place.record.nbytes:
            place.record.block = number
            fill(place, scratch)
        records.append(<char *>&place.record, sizeof(Record))
        records.append(<char *>place.shape, place.record.rank * sizeof(int64_t))
        if place.record.permuted:
            records.append(<char *>place.order, place.record.rank)
    return <bytes>records, blocks


cdef class Place:
    """A tensor's record, and where its bytes are: an array in memory order, or elements."""

    cdef Record record
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    cdef object array
    cdef list elements
    cdef Block block


cdef Place place_of(object tensor, OwnBlocks own, bint direct):
    cdef Place place = Place.__new__(Place)
    cdef bytes kind = tensor.datatype.encode()
    cdef Datatype code = datatype_of(kind, len(kind))
    cdef object data = tensor.data
    cdef object axis
    cdef Py_buffer view
    cdef Py_ssize_t size = 0
    cdef int i
    memset(&place.record, 0, sizeof(Record))
    if code == DT_INVALID:
        raise TypeError(f"tensor {tensor.name!r} has the unknown datatype {tensor.datatype!r}")
    place.record.datatype = <uint8_t>code
    if isinstance(data, list):
        if code != DT_BYTES or len(tensor.shape) > RANK_LIMIT:
            raise TypeError(f"tensor {tensor.name!r} is {tensor.datatype} and a list of elements")
        for element in data:
            size += len(element)
        place.elements = data
        place.record.rank = <uint8_t>len(tensor.shape)
        for i in range(place.record.rank):
            place.shape[i] = tensor.shape[i]
        place.record.elements = <uint64_t>len(data)
        place.record.nbytes = <uint64_t>(size + 8 * len(data))
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
            place.record.permuted = 1
            for i, axis in enumerate(axes):
                place.order[i] = axis
        else:
            data = numpy.ascontiguousarray(data)
    place.array = data
    PyObject_GetBuffer(data, &view, PyBUF_STRIDED_RO)
    try:
        if view.ndim > RANK_LIMIT:
            raise TypeError(f"tensor {tensor.name!r} has {view.ndim} dimensions")
        place.record.rank = <uint8_t>view.ndim
        for i in range(view.ndim):
            place.shape[i] = view.shape[i]
        place.record.nbytes = <uint64_t>view.len
        if direct and view.len:
            place.block = own.containing(view.buf, <size_t>view.len)
            if place.block is not None:
                place.record.offset = <uint64_t>(
                    <unsigned char *>view.buf - place.block.block.data
                )
    finally:
        PyBuffer_Release(&view)
    return place


cdef int fill(Place place, Block block) except -1:
    """Copy a tensor to its offset in a block."""
    cdef unsigned char *target = block.block.data + place.record.offset
    cdef size_t nbytes = place.record.nbytes
    cdef Py_buffer view
    cdef uint64_t size
    count_copied(nbytes)
    if place.array is not None:
        PyObject_GetBuffer(place.array, &view, PyBUF_STRIDED_RO)
        if nbytes >= RELEASE_GIL_BYTES:
            with nogil:
                memcpy(target, view.buf, nbytes)
        else:
            memcpy(target, view.buf, nbytes)
        PyBuffer_Release(&view)
        return 0
    cdef unsigned char *sizes = target
    target += 8 * place.record.elements
    for element in place.elements:
        PyObject_GetBuffer(element, &view, PyBUF_SIMPLE)
        size = <uint64_t>view.len
        if target + size > block.block.data + place.record.offset + nbytes:
            PyBuffer_Release(&view)
            raise ValueError("an element of a BYTES tensor grew while it was copied")
        memcpy(sizes, &size, 8)
        memcpy(target, view.buf, <size_t>size)
        PyBuffer_Release(&view)
        sizes += 8
        target += size
    return 0


def read(const unsigned char[::1] payload, size_t start, size_t length, size_t count,
         PeerBlocks peer not None) -> list:
    """View tensors that the other side wrote.

    Args:
        payload: Bytes with the records in them.
        start: Where the records begin.
        length: How many bytes they have.
        count: How many there are.
        peer: The blocks of the other side.

    Returns:
        Datatype, shape and data of each; arrays and long elements are views of the blocks.

    Raises:
        ValueError: A record does not add up.
        BlockError: A record names bytes that do not exist.
    """
    cdef list tensors = []
    cdef size_t size = <size_t>payload.shape[0]
    if start > size or length > size - start:
        raise ValueError(f"{length} bytes of records were announced, and {size} bytes came")
    cdef const unsigned char *at = &payload[0] + start if size else NULL
    cdef size_t left = length
    cdef size_t tail
    cdef Record record
    cdef int64_t shape[RANK_LIMIT]
    cdef uint8_t order[RANK_LIMIT]
    for _ in range(count):
        if left < sizeof(Record):
            raise ValueError("the records end too soon")
        memcpy(&record, at, sizeof(Record))
        at += sizeof(Record)
        left -= sizeof(Record)
        if record.datatype >= DT_COUNT or record.rank > RANK_LIMIT or record.permuted > 1:
            raise ValueError(
                f"a tensor has the datatype number {record.datatype} and rank {record.rank}"
            )
        tail = record.rank * (sizeof(int64_t) + record.permuted)
        if left < tail:
            raise ValueError("the records end too soon")
        memcpy(shape, at, record.rank * sizeof(int64_t))
        memcpy(order, at + record.rank * sizeof(int64_t), record.rank * record.permuted)
        at += tail
        left -= tail
        tensors.append(read_one(&record, shape, order, peer))
    if left:
        raise ValueError(f"{left} bytes follow the last record")
    return tensors


cdef tuple read_one(
    const Record *record, const int64_t *shape, const uint8_t *order, PeerBlocks peer
):
    cdef SizeLimits limits
    cdef uint64_t elements = 0
    cdef uint64_t nbytes = 0
    cdef size_t where = 0
    cdef size_t width = item_size_of(<Datatype>record.datatype)
    cdef int i
    cdef tuple dimensions = tuple([shape[i] for i in range(record.rank)])
    limits.rank = RANK_LIMIT
    limits.dimension = DIMENSION_LIMIT
    limits.bytes = 1 << 62
    if checked_nbytes(
        shape, record.rank, width if width else 1, limits, &elements, &nbytes, &where
    ) != SIZE_OK:
        raise ValueError(f"a tensor has the shape {list(dimensions)}, which has no size")
    name = NAMES[record.datatype]
    if record.datatype == DT_BYTES:
        if record.elements != elements or record.permuted:
            raise ValueError(
                f"a BYTES tensor of shape {list(dimensions)} has {record.elements} elements"
            )
        return name, dimensions, read_elements(record, peer)
    if nbytes != record.nbytes:
        raise ValueError(
            f"a {name} tensor of shape {list(dimensions)} has {record.nbytes} bytes"
        )
    if nbytes and record.offset % width:
        raise ValueError(f"a {name} tensor begins at byte {record.offset}, which is not aligned")
    if nbytes:
        block = peer.part(record.block, record.offset, nbytes)
        array = numpy.ndarray(dimensions, DTYPES[record.datatype], block, record.offset)
    else:
        array = numpy.empty(dimensions, DTYPES[record.datatype])
    if record.permuted:
        axes = [order[i] for i in range(record.rank)]
        if sorted(axes) != list(range(record.rank)):
            raise ValueError("the order of a tensor's axes is not a permutation")
        array = array.transpose(numpy.argsort(axes))
        dimensions = array.shape
    return name, dimensions, array


cdef list read_elements(const Record *record, PeerBlocks peer):
    cdef list found = []
    cdef uint64_t count = record.elements
    cdef uint64_t left = record.nbytes
    cdef uint64_t size = 0
    cdef uint64_t i
    cdef size_t at
    if count == 0 and left == 0:
        return found
    if count > left // 8:
        raise ValueError(f"{count} elements have {left} bytes")
    cdef Block block = peer.part(record.block, record.offset, record.nbytes)
    cdef const unsigned char *sizes = block.block.data + record.offset
    cdef object view = memoryview(block)
    left -= 8 * count
    at = record.offset + 8 * count
    for i in range(count):
        # Read once: the other side may change it between a check and a second look.
        memcpy(&size, sizes + 8 * i, 8)
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

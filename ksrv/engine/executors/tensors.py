"""Tensors in shared blocks: written once on one side, viewed on the other.

A record names the block, the place in it, the datatype and the shape. An array that already lies in
one of this side's blocks is referred to where it is; everything else of a batch is copied into one
block. An array whose axes are a permutation of contiguous memory (an NHWC batch that the handler
sees as NCHW) keeps its memory order, and the other side sees the same view. BYTES elements lie one
after the other behind a table of their sizes.

Reading believes no number: the block must exist, the bytes must lie in it, the shape must have just
that size, sizes of elements must add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from ksrv._native import arena, datatype
from ksrv._native.arena import Block
from ksrv.engine.executors.blocks import OwnBlocks, PeerBlocks
from ksrv.request import Array, Element, Tensor

ELEMENT_VIEW_BYTES = 64 * 1024
"""BYTES elements of this size and above are views; smaller ones are copied out."""

_RECORD = Struct("<BBBxxxxxQQQQ")
"""Datatype, rank, permuted, number of elements, block, offset, bytes."""
_NO_BLOCK = 0
_CODES = {name: code for code, name in enumerate(datatype.NAMES)}
_BYTES = _CODES["BYTES"]
_DTYPES = [
    None if name == "BYTES" else np.dtype(datatype.dtype_string(name)) for name in datatype.NAMES
]


@dataclass(slots=True)
class Written:
    """What `write` made.

    Attributes:
        records: One record for each tensor, in their order.
        numbers: The blocks that the records refer to.
        blocks: Those blocks; whoever sends the records keeps them until they are sent.
    """

    records: bytes
    numbers: list[int]
    blocks: list[Block]


@dataclass(slots=True)
class _Place:
    """Where a tensor goes: its array in memory order, and the block it already lies in, if any."""

    code: int
    shape: tuple[int, ...]
    order: Sequence[int]
    array: Array | None
    elements: list[Element]
    block: Block | None
    offset: int
    nbytes: int


def write(tensors: Sequence[Tensor], own: OwnBlocks) -> Written:
    """Put tensors into shared blocks.

    Args:
        tensors: Arrays of their datatype's dtype, or lists of BYTES elements.
        own: The blocks of this side.

    Returns:
        The records to send.

    Raises:
        TypeError: An array's dtype is not its datatype's.
        MemoryError: There is no memory for a block.
    """
    places = []
    numbers: list[int] = []
    blocks: list[Block] = []
    scratch_bytes = 0
    for tensor in tensors:
        place = _place(tensor, own, len(numbers))
        places.append(place)
        if place.block is not None:
            numbers.append(own.number_of(place.block))
            blocks.append(place.block)
        else:
            place.offset = scratch_bytes
            scratch_bytes = (scratch_bytes + place.nbytes + 63) & ~63
    scratch = number = None
    if scratch_bytes:
        scratch = own.lease(scratch_bytes)
        number = own.number_of(scratch)
        numbers.append(number)
        blocks.append(scratch)
    records = []
    for place in places:
        named = _NO_BLOCK
        if place.block is not None:
            named = own.number_of(place.block)
        elif scratch is not None and number is not None and place.nbytes:
            named = number
            _copy(place, scratch)
        records.append(_record(place, named))
    return Written(b"".join(records), numbers, blocks)


def _place(tensor: Tensor, own: OwnBlocks, referred: int) -> _Place:
    code = _CODES[tensor.datatype]
    data = tensor.data
    if not isinstance(data, np.ndarray):
        nbytes = 8 * len(data) + sum(map(len, data))
        return _Place(code, tensor.shape, (), None, data, None, 0, nbytes)
    if data.dtype != _DTYPES[code]:
        raise TypeError(
            f"tensor {tensor.name!r} has the datatype {tensor.datatype} and an array of {data.dtype}"
        )
    order: Sequence[int] = ()
    if not data.flags.c_contiguous:
        strides = data.strides
        axes = sorted(range(data.ndim), key=lambda axis: -strides[axis])
        if data.transpose(axes).flags.c_contiguous:
            order = axes
            data = data.transpose(axes)
        else:
            data = np.ascontiguousarray(data)
    block = own.holding(data) if data.nbytes else None
    offset = 0
    if block is not None and own.may_lend(block, referred):
        offset = block.offset_of(data.__array_interface__["data"][0])
    else:
        block = None
    return _Place(code, data.shape, order, data, [], block, offset, data.nbytes)


def _copy(place: _Place, block: Block) -> None:
    arena.count_copy(place.nbytes)
    if place.array is not None:
        target = arena.array(block, place.array.dtype, place.shape, place.offset)
        np.copyto(target, place.array)
        return
    count = len(place.elements)
    sizes = arena.array(block, "<u8", (count,), place.offset)
    sizes[:] = [len(element) for element in place.elements]
    view = memoryview(block)
    at = place.offset + 8 * count
    for element in place.elements:
        view[at : at + len(element)] = element
        at += len(element)


def _record(place: _Place, number: int) -> bytes:
    rank = len(place.shape)
    head = _RECORD.pack(
        place.code,
        rank,
        bool(place.order),
        len(place.elements),
        number,
        place.offset,
        place.nbytes,
    )
    return head + _dimensions(rank).pack(*place.shape) + bytes(place.order)


def _dimensions(rank: int) -> Struct:
    return Struct(f"<{rank}q")


@dataclass(slots=True)
class Read:
    """A tensor without its name: the name is in the JSON beside the records."""

    datatype: str
    shape: tuple[int, ...]
    data: Array | list[Element]


def read(records: memoryview, count: int, peer: PeerBlocks) -> list[Read]:
    """View tensors that the other side wrote.

    Args:
        records: Exactly the records.
        count: How many there are.
        peer: The blocks of the other side.

    Returns:
        The tensors, as views of the blocks.

    Raises:
        ValueError: A record does not add up.
        BlockError: A record names bytes that do not exist.
        struct.error: The records end too soon.
    """
    tensors = []
    at = 0
    for _ in range(count):
        code, rank, permuted, elements, number, offset, nbytes = _RECORD.unpack_from(records, at)
        at += _RECORD.size
        if code >= len(_DTYPES) or rank > datatype.MAX_RANK or permuted > 1:
            raise ValueError(f"a tensor has the datatype number {code} and rank {rank}")
        shape = _dimensions(rank).unpack_from(records, at)
        at += 8 * rank
        order = bytes(records[at : at + rank * permuted])
        at += rank * permuted
        tensors.append(_read(code, shape, order, elements, number, offset, nbytes, peer))
    if at != len(records):
        raise ValueError(f"{len(records) - at} bytes follow the last record")
    return tensors


def _read(
    code: int,
    shape: tuple[int, ...],
    order: bytes,
    elements: int,
    number: int,
    offset: int,
    nbytes: int,
    peer: PeerBlocks,
) -> Read:
    name = datatype.NAMES[code]
    expected, size = datatype.sizes(name, shape)
    dtype = _DTYPES[code]
    if dtype is None:
        if elements != expected or order:
            raise ValueError(f"a BYTES tensor of shape {list(shape)} has {elements} elements")
        block = peer.part(number, offset, nbytes) if nbytes else None
        return Read(name, shape, _elements(block, elements, offset, nbytes))
    if size != nbytes:
        raise ValueError(f"a {name} tensor of shape {list(shape)} has {nbytes} bytes")
    array: Array
    if number == _NO_BLOCK:
        if nbytes:
            raise ValueError(f"a tensor of {nbytes} bytes names no block")
        array = np.empty(shape, dtype)
    else:
        if offset % dtype.itemsize:
            raise ValueError(f"a {name} tensor begins at byte {offset}, which is not aligned")
        array = arena.array(peer.part(number, offset, nbytes), dtype, shape, offset)
    if order:
        if sorted(order) != list(range(len(shape))):
            raise ValueError("the order of a tensor's axes is not a permutation")
        array = array.transpose(np.argsort(list(order)))
    return Read(name, array.shape, array)


def _elements(block: Block | None, count: int, offset: int, nbytes: int) -> list[Element]:
    if block is None:
        if count:
            raise ValueError(f"{count} elements have no bytes")
        return []
    if 8 * count > nbytes or offset % 8:
        raise ValueError(f"{count} elements have {nbytes} bytes from byte {offset} on")
    sizes: list[int] = arena.array(block, "<u8", (count,), offset).tolist()
    if sum(sizes) != nbytes - 8 * count:
        raise ValueError(
            f"the elements have {sum(sizes)} bytes, and {nbytes - 8 * count} are there"
        )
    view = memoryview(block)
    at = offset + 8 * count
    found: list[Element] = []
    for size in sizes:
        part = view[at : at + size]
        found.append(part if size >= ELEMENT_VIEW_BYTES else bytes(part))
        at += size
    return found

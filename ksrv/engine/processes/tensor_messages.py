"""Writes the tensors of a message, and reads them as views on the other side.

An array in a block that a message can name (a leased slot, or the large body of a request) is not copied. All other
arrays are copied: into the message while their sum is small, otherwise into one block. If the axes of an array are a
permutation of contiguous memory (an NHWC batch that the handler sees as NCHW), the memory order is kept and the other
side sees the same view. The elements of a BYTES tensor are in the message; long elements are treated as arrays.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv.engine.processes.link import INLINE_BYTES, Frame, Link, Part
from ksrv.errors import HandlerFailed
from ksrv.model.datatypes import DTYPES
from ksrv.request import Parameter, Tensor

MOST_TENSORS = 65_536
"""The most tensors in one message."""
ELEMENT_VIEW_BYTES = 64 * 1024
"""BYTES elements of at least this size become views. Smaller elements are copied."""
MOST_DIMENSIONS = 32
DIRECT_BLOCKS = 64
"""The most blocks of arrays that a message names, because file descriptors are scarce. Arrays in further blocks are copied
into one block, which the message names, too."""
_COPIED_BYTES = 4096
"""Arrays up to this size are copied, because naming their block takes longer."""
_ALIGNMENT = 64


Dimension: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Content: TypeAlias = bytes | Part


class TensorMessage(msgspec.Struct, array_like=True):
    """A tensor.

    Attributes:
        shape: The shape in memory order.
        data: The elements in memory order; a BYTES tensor has a list of elements.
        order: For each axis in memory the axis of the tensor; empty if memory has the order of the tensor.
    """

    name: str
    datatype: str
    shape: Annotated[list[Dimension], Meta(max_length=MOST_DIMENSIONS)]
    data: Content | list[Content]
    order: list[int] = []
    parameters: dict[str, Parameter] = {}


class TensorWriter:
    """Writes the tensors of one message.

    Args:
        link: The link that the message is sent on.

    Attributes:
        blocks: The blocks that the tensors refer to.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._left = INLINE_BYTES
        # Arrays for the block that `write` leases, with their offsets in it.
        self._copies: list[tuple[Part, Any]] = []
        self._copied_bytes = 0
        self.nbytes = 0
        self.blocks: list[Block] = []

    def write(self, tensors: Sequence[Tensor]) -> list[TensorMessage]:
        """Return the tensors' form for a message.

        Raises:
            HandlerFailed: There are too many tensors.
            TypeError: An array's dtype does not match its datatype.
            MemoryError: Not enough memory for a block.
            TooLarge: The other side does not accept a message with this many bytes of tensors.
        """
        if len(tensors) > MOST_TENSORS:
            raise HandlerFailed(
                f"{len(tensors)} tensors are too many for a handler process, which exchanges at most "
                f"{MOST_TENSORS} at a time"
            )
        written = [self._written(tensor) for tensor in tensors]
        self._link.check_size(self.nbytes)
        if self._copies:
            # More than INLINE_BYTES, because `lease` returns a block that cannot be sent for less.
            block = self._link.lease(max(self._copied_bytes, INLINE_BYTES + 1))
            number = self._number_of(block, DIRECT_BLOCKS + 1)
            assert number is not None, "a leased block can be sent"
            for part, source in self._copies:
                part.block = number
                target = buffer_pool.array(block, source.dtype, source.shape, part.offset)
                np.copyto(target, source)
        return written

    def _written(self, tensor: Tensor) -> TensorMessage:
        # The handler may use a subclass of str.
        made = TensorMessage(str.__str__(tensor.name), str.__str__(tensor.datatype), [], b"")
        made.parameters = dict(tensor.parameters)
        data = tensor.data
        rank = len(tensor.shape) if isinstance(data, list) else data.ndim
        if rank > MOST_DIMENSIONS:
            raise TypeError(
                f"tensor {tensor.name!r} has {rank} dimensions, and at most {MOST_DIMENSIONS} are allowed"
            )
        if isinstance(data, list):
            made.shape = list(tensor.shape)
            made.data = list(map(self._element, data))
            return made
        dtype = DTYPES.get(made.datatype)
        if dtype is None or data.dtype != dtype:
            raise TypeError(
                f"tensor {tensor.name!r} has the datatype {tensor.datatype} and an array of {data.dtype}"
            )
        if not data.flags.c_contiguous:
            axes = sorted(range(rank), key=data.strides.__getitem__, reverse=True)
            moved = data.transpose(axes)
            if moved.flags.c_contiguous:
                data, made.order = moved, axes
        made.shape = list(data.shape)
        made.data = self._content(data)
        return made

    def _element(self, element: Any) -> Content:
        if len(element) >= ELEMENT_VIEW_BYTES:
            return self._content(np.frombuffer(element, np.uint8))
        self.nbytes += len(element)
        buffer_pool.count_copy(len(element))
        return element if type(element) is bytes else bytes(element)

    def _content(self, array: np.ndarray[Any, Any]) -> Content:
        self.nbytes += array.nbytes
        if array.nbytes > _COPIED_BYTES and array.flags.c_contiguous:
            part = self._in_block(array)
            if part is not None:
                return part
        buffer_pool.count_copy(array.nbytes)
        if array.nbytes <= self._left:
            self._left -= array.nbytes
            return array.tobytes()
        part = Part(0, self._copied_bytes, array.nbytes)
        self._copies.append((part, array))
        self._copied_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return part

    def _in_block(self, array: np.ndarray[Any, Any]) -> Part | None:
        """Return the part of a block that an array views, or None if a message cannot name its memory."""
        block = buffer_pool.block_of(array)
        number = None if block is None else self._number_of(block)
        if block is None or number is None:
            return None
        address = array.__array_interface__["data"][0]
        return Part(number, address - block.address, array.nbytes)

    def _number_of(self, block: Block, most: int = DIRECT_BLOCKS) -> int | None:
        """Return the index of a block in `blocks`, which it is added to; None if the message cannot name it.

        Args:
            most: The most blocks that the message may name.
        """
        for number, known in enumerate(self.blocks):
            if known is block:
                return number
        if len(self.blocks) >= most or not self._link.can_send(block):
            return None
        self.blocks.append(block)
        return len(self.blocks) - 1


def read_tensors(written: Sequence[TensorMessage], frame: Frame) -> list[Tensor]:
    """Return views of the tensors that the other side wrote.

    Arrays and long elements in blocks are views. Data in the message is copied.

    Args:
        frame: The message.

    Raises:
        ValueError: A tensor is inconsistent, or the tensors exceed the limit of the message.
    """
    if len(written) > MOST_TENSORS:
        raise ValueError(f"{len(written)} tensors are too many")
    contents = [
        content
        for message in written
        for content in (message.data if isinstance(message.data, list) else (message.data,))
    ]
    if sum(part.nbytes for part in contents if isinstance(part, Part)) > frame.most_bytes:
        raise ValueError(f"the tensors have more than {frame.most_bytes} bytes together")
    return [_read(message, frame) for message in written]


def _read(message: TensorMessage, frame: Frame) -> Tensor:
    data: Any
    if message.datatype == "BYTES":
        if not isinstance(message.data, list) or math.prod(message.shape) != len(message.data):
            raise ValueError(f"a BYTES tensor of shape {message.shape} has other elements")
        data = [_read_element(content, frame) for content in message.data]
        return Tensor(message.name, "BYTES", tuple(message.shape), data, message.parameters)
    dtype = DTYPES.get(message.datatype)
    if dtype is None or isinstance(message.data, list):
        raise ValueError(f"a tensor has the datatype {message.datatype!a} and {type(message.data)}")
    nbytes = message.data.nbytes if isinstance(message.data, Part) else len(message.data)
    if nbytes != math.prod(message.shape) * dtype.itemsize:
        raise ValueError(f"a {message.datatype} tensor of shape {message.shape} has {nbytes} bytes")
    if isinstance(message.data, bytes):
        data = np.ndarray(message.shape, dtype, message.data).copy()
    elif message.data.offset % dtype.itemsize:
        raise ValueError(
            f"a {message.datatype} tensor begins at byte {message.data.offset}, which is not aligned"
        )
    else:
        frame.memory(message.data)  # raises if the block does not have these bytes
        block = frame.blocks[message.data.block]
        data = buffer_pool.array(block, dtype, message.shape, message.data.offset)
    if message.order:
        if sorted(message.order) != list(range(data.ndim)):
            raise ValueError("the order of a tensor's axes is not a permutation")
        data = data.transpose(np.argsort(message.order))
    return Tensor(message.name, message.datatype, data.shape, data, message.parameters)


def _read_element(content: Content, frame: Frame) -> bytes | memoryview:
    if isinstance(content, bytes):
        return content
    if content.nbytes < ELEMENT_VIEW_BYTES:
        raise ValueError(f"an element of {content.nbytes} bytes is in a block")
    return frame.memory(content)

"""Messages of a handler process about tensors, against readers in Python that are slow and easy to check.

For any bytes, the compiled readers and the Python readers find the same tensors, or both refuse the bytes.
"""

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.process import tensor_descriptors
from ksrv._native.process.channel import Channel, Link
from ksrv._native.process.shared_blocks import BlockError
from ksrv._native.tensor.datatype import DTYPES, NAMES
from ksrv.engine.processes import messages
from ksrv.engine.processes.messages import MessageType
from ksrv.request import BatchOutputs, Tensor
from tests.support.examples import examples

BYTES = NAMES.index("BYTES")
REFERRED_TO, LEAST_REFERRED_TO = 1 << 63, 64 * 1024
MOST_RANK, MOST_DIMENSION = 32, 2**31 - 1
HEAD = struct.Struct("<BBB5xQQQQ")
SIZE = 200_000
ALLOWED = 300_000

LENGTHS = st.sampled_from(
    [0, 1, 2, 3, 7, 8, 16, 24, 40, 64, 65_536, SIZE, 2**31, 2**62, 2**63, 2**64 - 8]
)
NUMBERS = st.one_of(LENGTHS, st.integers(0, 100), st.integers(0, 2**64 - 1))
DIMENSIONS = st.one_of(
    st.integers(0, 4), st.sampled_from([-1, -(2**63), 2**31 - 1, 2**31, 2**62, 2**63 - 1])
)


class Refused(Exception):
    """The plain reader refuses the bytes."""


def sure(condition: bool) -> None:
    if not condition:
        raise Refused


def count_of(shape: tuple[int, ...], width: int) -> int:
    sure(len(shape) <= MOST_RANK and all(0 <= size <= MOST_DIMENSION for size in shape))
    # Strides are computed without the dimensions that are 0, as NumPy computes them.
    sure(math.prod(size or 1 for size in shape) * width < 1 << 63)
    return math.prod(shape)


class Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    def take(self, length: int) -> bytes:
        sure(length <= len(self.left))
        found, self.left = self.left[:length], self.left[length:]
        return found


def plain_read_descriptors(payload: bytes, blocks: dict[int, bytes]) -> Any:
    """Read what `tensor_descriptors.write` writes."""
    message = Bytes(payload)
    count, described, inlined = struct.unpack("<III", message.take(12))
    sure(count <= 65_536)
    reader = Bytes(message.take(described))
    in_message = {0: message.take(inlined)}
    allowed = ALLOWED

    def part(number: int, offset: int, nbytes: int, held: dict[int, bytes] = blocks) -> bytes:
        sure(number in held and offset + nbytes <= len(held[number]))
        return held[number][offset : offset + nbytes]

    found = []
    for _ in range(count):
        code, rank, permuted, elements, block, offset, nbytes = HEAD.unpack(reader.take(40))
        sure(code <= BYTES and rank <= MOST_RANK and permuted <= 1)
        shape = struct.unpack(f"<{rank}q", reader.take(8 * rank))
        order = reader.take(rank * permuted)
        sure(nbytes <= allowed)
        allowed -= nbytes
        width = 1 if code == BYTES else DTYPES[code].itemsize
        size = count_of(shape, width)
        if code == BYTES:
            sure(elements == size and not permuted)
            values = []
            if elements or nbytes:
                sure(elements * 8 <= nbytes)
                content = Bytes(part(block, offset, nbytes, blocks | in_message))
                sizes = struct.unpack(f"<{elements}Q", content.take(8 * elements))
                for length in sizes:
                    if length & REFERRED_TO:
                        length ^= REFERRED_TO
                        number, at = struct.unpack("<QQ", content.take(16))
                        sure(LEAST_REFERRED_TO <= length <= allowed)
                        allowed -= length
                        values.append(part(number, at, length))
                    else:
                        values.append(content.take(length))
                sure(not content.left)
            found.append(("BYTES", shape, values))
            continue
        sure(size * width == nbytes)
        if nbytes:
            sure(offset % width == 0)
        data = part(block, offset, nbytes, blocks | in_message) if nbytes else b""
        array = np.frombuffer(data, DTYPES[code]).reshape(shape)
        if permuted:
            sure(sorted(order) == list(range(rank)))
            array = array.transpose([order.index(axis) for axis in range(rank)])
        found.append((NAMES[code], array.shape, array.tobytes()))
    sure(not reader.left)
    return found, len(payload) - len(message.left)


def lied(data: st.DataObject, text: bytes) -> bytes:
    """Change some bytes, or cut some off, or add some."""
    changed = bytearray(text)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, max(len(text) - 1, 0)), st.integers(0, 255)), max_size=3)
    ):
        if changed:
            changed[at] = value
    end = data.draw(st.sampled_from([0, 0, 0, 0, 1, 7]))
    return bytes(changed[: len(changed) - end]) + data.draw(st.sampled_from([b"", b"", b"", b"1"]))


@pytest.fixture(scope="module")
def imported() -> Iterator[tuple[Any, dict[int, bytes]]]:
    """The only block of a link's other end, and its content."""
    near, far = Channel.pair()
    sender, receiver = Link(near), Link(Channel(far))
    content = np.random.default_rng(0).integers(0, 256, SIZE, "u1")
    for at, sizes in ((0, (1, 2)), (64, (0, 0, 0)), (128, (REFERRED_TO + 65_536, 1)), (256, (8,))):
        some = struct.pack(f"<{len(sizes)}Q", *sizes)
        content[at : at + len(some)] = np.frombuffer(some, "u1")
    content[144:160] = np.frombuffer(struct.pack("<QQ", 1, 4096), "u1")
    outputs = BatchOutputs([Tensor("t", "UINT8", (SIZE,), content)])
    payload, lenient, blocks = messages.pack_answer(outputs, sender.exported)
    sender.send(MessageType.ANSWER, payload, blocks=blocks, lenient=lenient)
    receiver.receive()
    receiver.imported.most_bytes = ALLOWED
    yield receiver.imported, {1: bytes(memoryview(blocks[0]))}
    sender.close()
    receiver.close()


@st.composite
def descriptors(draw: st.DrawFn) -> bytes:
    code = draw(st.integers(0, len(NAMES) - 1))
    if code == BYTES:
        at, count, nbytes = draw(
            st.sampled_from([(0, 2, 19), (64, 3, 24), (128, 2, 33), (256, 1, 16), (0, 0, 0)])
        )
        shape = [count]
    else:
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        width = DTYPES[code].itemsize
        at, count = width * draw(st.integers(0, 1000)), 0
        nbytes = math.prod(shape) * width
    number = draw(st.integers(0, 1))  # in the message, or in the block
    lie = draw(st.integers(0, 12))
    if lie == 0:
        shape = draw(st.lists(DIMENSIONS, max_size=5))
    if lie == 1:
        at = draw(NUMBERS)
    if lie == 2:
        nbytes = draw(NUMBERS)
    if lie == 3:
        number = draw(NUMBERS)
    if lie == 4:
        count = draw(NUMBERS)
    order = bytes(draw(st.permutations(range(len(shape))))) if draw(st.booleans()) else b""
    if lie == 6:
        order = bytes(draw(st.lists(st.integers(0, 255), min_size=len(shape), max_size=len(shape))))
    head = HEAD.pack(code, len(shape), bool(order), count, number, at, nbytes)
    return head + struct.pack(f"<{len(shape)}q", *shape) + order


@examples(3000)
@given(st.data(), st.lists(descriptors(), max_size=4), st.integers(0, 20))
def test_descriptors_of_tensors_in_messages_and_in_blocks(imported, data, written, more):
    blocks, contents = imported
    described = b"".join(written)
    inlined = contents[1][: data.draw(st.sampled_from([0, 400, 3000]))]
    head = struct.pack("<III", len(written) + (more == 0), len(described), len(inlined))
    payload = lied(data, head + described) + inlined
    try:
        expected, end = plain_read_descriptors(payload, contents)
    except Refused:
        with pytest.raises((ValueError, BlockError)):
            tensor_descriptors.read(payload, blocks)
        return
    found, rest = tensor_descriptors.read(payload, blocks)
    assert rest == end
    assert [
        (name, shape, list(map(bytes, held)) if name == "BYTES" else held.tobytes())
        for name, shape, held in found
    ] == expected


@examples(500)
@given(st.lists(st.tuples(st.integers(0, len(NAMES) - 1), st.integers(0, 9_000)), max_size=5))
def test_tensors_round_trip_unchanged(imported, asked):
    sent = [
        Tensor("t", "BYTES", (2,), [b"x" * size, b""])
        if code == BYTES
        else Tensor("t", NAMES[code], (size,), np.arange(size).astype(DTYPES[code]))
        for code, size in asked
    ]
    near, far = Channel.pair()
    sender, receiver = Link(near), Link(Channel(far))
    try:
        payload, lenient, held = messages.pack_answer(BatchOutputs(sent), sender.exported)
        copied = sum(-(-one.nbytes // 64) * 64 for one in sent)
        assert bool(held) is (copied > 32 * 1024)  # small tensors are in the message itself
        sender.send(MessageType.ANSWER, payload, blocks=held, lenient=lenient)
        found = messages.unpack_answer(receiver.receive(), receiver.imported, 1).tensors
        for one, other in zip(sent, found, strict=True):
            assert (other.datatype, tuple(other.shape)) == (one.datatype, one.shape)
            if one.datatype == "BYTES":
                assert list(map(bytes, other.data)) == one.data
            else:
                assert np.array_equal(other.data, one.data)
                assert other.data.flags.writeable
    finally:
        sender.close()
        receiver.close()

"""Tensors in the messages of a handler process, against a reader that is slow and easy to check.

For any message, both readers find the same tensors, or both refuse it.
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.tensor.datatype import DTYPES, NAMES
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import ChannelError, Frame
from ksrv.engine.processes.messages import MessageType
from ksrv.request import ExecutorOutputs, Tensor
from tests.support.examples import examples
from tests.support.native.links import linked

BYTES = NAMES.index("BYTES")
LEAST_REFERRED_TO = 64 * 1024
SIZE = 200_000
ALLOWED = 300_000

NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 8, 64, 65_536, SIZE, 2**31, 2**63 - 1, 2**64 - 8]),
    st.integers(0, 100),
)
DIMENSIONS = st.one_of(st.integers(0, 4), st.sampled_from([-1, 2**31 - 1, 2**31, 2**62]))


class Refused(Exception):
    """The plain reader refuses the message."""


def sure(condition: bool) -> None:
    if not condition:
        raise Refused


def plain_read(written: list, content: memoryview) -> list:
    """Return datatype, shape and bytes of each tensor."""
    allowed = ALLOWED

    def part(where: dict) -> bytes:
        nonlocal allowed
        offset, nbytes = where["offset"], where["nbytes"]
        sure(where["block"] == 0 and offset >= 0 and 0 <= nbytes <= len(content) - offset)
        sure(nbytes <= allowed)
        allowed -= nbytes
        return bytes(content[offset : offset + nbytes])

    found = []
    for _, datatype, shape, data, order, _ in written:
        sure(datatype in NAMES and len(shape) <= 32 and all(0 <= one < 2**31 for one in shape))
        if datatype == "BYTES":
            sure(isinstance(data, list) and len(data) == math.prod(shape))
            for one in data:
                sure(isinstance(one, bytes) or one["nbytes"] >= LEAST_REFERRED_TO)
            elements = [one if isinstance(one, bytes) else part(one) for one in data]
            found.append((datatype, tuple(shape), elements))
            continue
        dtype = DTYPES[NAMES.index(datatype)]
        # Strides are computed without the dimensions that are 0, as NumPy computes them.
        sure(math.prod(size or 1 for size in shape) * dtype.itemsize < 1 << 63)
        sure(not isinstance(data, list))
        if isinstance(data, dict):
            sure(data["offset"] % dtype.itemsize == 0)
        held = data if isinstance(data, bytes) else part(data)
        sure(len(held) == math.prod(shape) * dtype.itemsize)
        array = np.frombuffer(held, dtype).reshape(shape)
        if order:
            sure(sorted(order) == list(range(len(shape))))
            array = array.transpose([order.index(axis) for axis in range(len(shape))])
        found.append((datatype, array.shape, array.tobytes()))
    return found


@pytest.fixture(scope="module")
def received() -> Iterator[tuple[Frame, memoryview]]:
    """A message with one block, and the content of the block: a whole slot of the memory."""
    with linked() as (sender, receiver):
        content = np.random.default_rng(0).integers(0, 256, SIZE, "u1")
        outputs = ExecutorOutputs([Tensor("t", "UINT8", (SIZE,), content)])
        packed = messages.pack_answer(outputs, sender)
        sender.send(MessageType.ANSWER, packed)
        receiver.most_received = ALLOWED
        frame = receiver.receive()
        yield frame, memoryview(frame.blocks[0])


@st.composite
def tensors(draw: st.DrawFn) -> list:
    code = draw(st.integers(0, len(NAMES) - 1))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    lie = draw(st.integers(0, 10))
    if lie == 0:
        shape = draw(st.lists(DIMENSIONS, max_size=4))
    if code == BYTES:
        count = math.prod(shape) if lie else draw(st.integers(0, 4))
        element = st.one_of(
            st.binary(max_size=3),
            st.fixed_dictionaries(
                {"block": st.just(0), "offset": st.integers(0, 99), "nbytes": st.just(65_536)}
            ),
        )
        data = draw(st.lists(element, min_size=min(count, 64), max_size=min(count, 64)))
    else:
        width = DTYPES[code].itemsize
        nbytes = max(min(math.prod(shape) * width, 2**63), -1)
        data = {"block": 0, "offset": width * draw(st.integers(0, 1000)), "nbytes": nbytes}
        if draw(st.booleans()) and 0 <= nbytes <= 4096:
            data = bytes(nbytes)
    if isinstance(data, dict) and lie in (1, 2, 3):
        data[["block", "offset", "nbytes"][lie - 1]] = draw(NUMBERS)
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else []
    if lie == 4:
        order = draw(st.lists(st.integers(-4, 5), min_size=len(shape), max_size=len(shape)))
    return ["t", NAMES[code] if lie != 5 else draw(st.text(max_size=5)), shape, data, order, {}]


@examples(3000)
@given(st.lists(tensors(), max_size=4))
def test_tensors_in_messages_and_in_blocks(received, written):
    frame, content = received
    frame = frame._replace(payload=msgspec.msgpack.encode({"tensors": written}))
    try:
        expected = plain_read(written, content)
    except Refused:
        with pytest.raises(ChannelError):
            messages.unpack_answer(frame)
        return
    found = messages.unpack_answer(frame)[1].tensors
    assert [
        (
            one.datatype,
            one.shape,
            list(map(bytes, one.data)) if one.datatype == "BYTES" else one.data.tobytes(),
        )
        for one in found
    ] == expected


@examples(500)
@given(st.lists(st.tuples(st.integers(0, len(NAMES) - 1), st.integers(0, 9_000)), max_size=5))
def test_tensors_round_trip_unchanged(asked):
    sent = [
        Tensor("t", "BYTES", (2,), [b"x" * size, b""])
        if code == BYTES
        else Tensor("t", NAMES[code], (size,), np.arange(size).astype(DTYPES[code]))
        for code, size in asked
    ]
    with linked() as (sender, receiver):
        packed = messages.pack_answer(ExecutorOutputs(sent), sender)
        sender.send(MessageType.ANSWER, packed)
        found = messages.unpack_answer(receiver.receive())[1].tensors
        for one, other in zip(sent, found, strict=True):
            assert (other.datatype, tuple(other.shape)) == (one.datatype, one.shape)
            if one.datatype == "BYTES":
                assert list(map(bytes, other.data)) == one.data
            else:
                assert np.array_equal(other.data, one.data)
                assert other.data.flags.writeable

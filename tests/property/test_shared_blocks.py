"""Both sides of a link against a simple model: whoever holds a tensor sees the bytes it was sent.

Each batch is sent with a different pattern. Each side keeps what it received, and releases it at
random times. Arrays are sometimes written into leased blocks, sometimes copied. In any order,
kept arrays never change, and memory does not grow with the number of batches.
"""

import os
import socket

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.memory import buffer_pool
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import ChannelError, Link
from ksrv.engine.processes.messages import MessageType
from ksrv.request import ExecutorOutputs, Tensor
from tests.support.examples import examples
from tests.support.native.links import linked

SLOTS = 8
SIZES = st.sampled_from([0, 1, 100, 20_000, 70_000, 200_000])
STEP = st.fixed_dictionaries(
    {
        "there": st.booleans(),  # the direction
        "sizes": st.lists(SIZES, min_size=1, max_size=3),
        "leased": st.booleans(),
        "elements": st.booleans(),
        "keep": st.booleans(),
        "release": st.integers(0, 3),
        "keep_sent": st.booleans(),
    }
)


class Sides:
    """Two links that talk to each other, and the arrays that each side keeps."""

    def __init__(self) -> None:
        self.pair = linked()
        self.links = self.pair.__enter__()
        self.held: list[tuple[object, int]] = []

    def close(self) -> None:
        self.pair.__exit__(None, None, None)

    def send(self, step: dict, pattern: int) -> None:
        sender, receiver = self.links if step["there"] else reversed(self.links)
        tensors = [self.tensor(sender, size, step, pattern) for size in step["sizes"]]
        outputs = ExecutorOutputs(tensors)
        packed = messages.pack_answer(outputs, sender)
        sender.send(MessageType.ANSWER, packed)
        del packed
        received = messages.unpack_answer(receiver.receive())[1]
        self.check([(tensor.data, pattern) for tensor in received.tensors])
        if step["keep"]:
            self.held += [(tensor.data, pattern) for tensor in received.tensors]
        if step["keep_sent"]:
            self.held += [(tensor.data, pattern) for tensor in tensors]

    def tensor(self, link: Link, size: int, step: dict, pattern: int) -> Tensor:
        if step["elements"]:
            return Tensor("t", "BYTES", (2,), [bytes([pattern]) * size, bytes([pattern]) * 3])
        if step["leased"]:
            array = buffer_pool.array(link.lease(size), "u1", (size,))
            array[...] = pattern
        else:
            array = np.full((size,), pattern, "u1")
        return Tensor("t", "UINT8", (size,), array)

    def check(self, held: list[tuple[object, int]]) -> None:
        for data, pattern in held:
            if isinstance(data, np.ndarray):
                assert (data == pattern).all()
            else:
                assert all(set(bytes(element)) <= {pattern} for element in data)


@given(st.lists(STEP, min_size=15, max_size=40))
@examples(25)
def test_kept_arrays_never_change(steps):
    sides = Sides()
    try:
        for pattern, step in enumerate(steps):
            sides.send(step, pattern)
            sides.check(sides.held)
            del sides.held[: step["release"]]
        sides.check(sides.held)
        sides.held.clear()
        for link in sides.links:
            assert not link._mapped
            leased = [link.shared.lease(1) for _ in range(SLOTS)]
            assert None not in leased
    finally:
        sides.close()


MUTATION = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6)


@given(MUTATION, st.integers(0, 300), st.booleans())
@examples(300)
def test_mutated_message_is_read_or_refused(mutations, cut, elements):
    """For any bytes, the answer is a `ChannelError` or tensors that are in their block."""
    sender, tap = Link.pair()
    receiver, forward = Link.pair()
    try:
        data = [b"abc", b"d" * 70_000] if elements else np.arange(200, dtype="u1")
        tensor = (
            Tensor("t", "BYTES", (2,), data) if elements else Tensor("t", "UINT8", (200,), data)
        )
        packed = messages.pack_answer(ExecutorOutputs([tensor]), sender)
        sender.send(MessageType.ANSWER, packed)
        message, descriptors, _, _ = socket.recv_fds(tap, 100_000, 8)
        changed = bytearray(message)
        for place, value in mutations:
            changed[place % len(changed)] = value
        del changed[max(1, len(changed) - cut) :]
        socket.send_fds(forward, [changed], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            answer = messages.unpack_answer(receiver.receive(0))[1]
        except ChannelError:
            return
        except TimeoutError:
            assert len(changed) == 1  # a bell, which is not a message
            return
        for one in answer.tensors:
            if isinstance(one.data, np.ndarray):
                one.data.sum(dtype="f8")
            else:
                assert sum(map(len, one.data)) <= len(message) + sum(map(len, packed.blocks))
    finally:
        for end in (receiver, sender, tap, forward):
            end.close()

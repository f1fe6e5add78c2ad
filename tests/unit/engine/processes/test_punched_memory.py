"""Holes that the other process punches in shared memory are filled again, and the seal prevents more."""

import ctypes
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from ksrv._native.process.batch_ring import WorkerRing
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import Link
from ksrv.engine.processes.messages import MessageType
from ksrv.request import BatchOutputs, Tensor

KEEP_SIZE, PUNCH_HOLE = 1, 2


def punch(descriptor: int) -> int:
    """Punch a hole at the begin of a memfd. Return errno, or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    way, start, size = ctypes.c_int(KEEP_SIZE | PUNCH_HOLE), ctypes.c_long(0), ctypes.c_long(65536)
    return ctypes.get_errno() if libc.fallocate(descriptor, way, start, size) else 0


def pages(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks


@pytest.fixture
def ring() -> Iterator[WorkerRing]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield WorkerRing(left.fileno())


def test_a_sealed_ring_has_its_pages_and_keeps_them(ring):
    whole = pages(ring.fileno())
    assert punch(ring.fileno()) == 0
    assert pages(ring.fileno()) < whole
    assert ring.seal()
    assert pages(ring.fileno()) == whole
    assert punch(ring.fileno()) == errno.EPERM


def test_a_ring_that_the_process_sealed_is_refused(ring):
    fcntl.fcntl(ring.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    assert not ring.seal()


class Sides:
    """A worker and a handler process that answers a message, so that its blocks return."""

    def __init__(self) -> None:
        self.worker, process = Link.pair()
        self.process = Link(process)

    def exchange(self) -> None:
        for sender, receiver in ((self.worker, self.process), (self.process, self.worker)):
            outputs = BatchOutputs([Tensor("t", "UINT8", (200_000,), np.ones(200_000, "u1"))])
            packed = messages.pack_answer(outputs, sender.exported)
            sender.send(MessageType.ANSWER, packed)
            del packed
            found = messages.unpack_answer(receiver.receive(), receiver.imported)[1]
            assert (found.tensors[0].data == 1).all()
            del found  # so that the block returns with the next message

    @property
    def descriptor(self) -> int:
        """A descriptor of the worker's block."""
        found = [
            fd
            for fd in map(int, os.listdir("/proc/self/fd"))
            if os.path.lexists(f"/proc/self/fd/{fd}")
            and os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:ksrv ")
        ]
        return min(found)


@pytest.fixture
def sides() -> Iterator[Sides]:
    made = Sides()
    made.exchange()
    yield made
    made.worker.close()
    made.process.close()


def test_a_block_is_sealed_before_it_is_used_again(sides):
    numbers, whole = sides.worker.exported.numbers(), pages(sides.descriptor)
    assert punch(sides.descriptor) == 0
    sides.exchange()
    assert sides.worker.exported.numbers() == numbers
    assert pages(sides.descriptor) == whole
    assert punch(sides.descriptor) == errno.EPERM


def test_a_block_that_the_process_sealed_is_not_used_again(sides):
    numbers = sides.worker.exported.numbers()
    fcntl.fcntl(sides.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    sides.exchange()
    assert sides.worker.exported.numbers() != numbers

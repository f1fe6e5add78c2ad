"""Holes that the other process punches in shared memory are filled again, and the seal prevents more."""

import ctypes
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

import pytest

from ksrv._native.process.batch_ring import WorkerRing

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

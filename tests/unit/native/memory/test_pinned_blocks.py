"""Which blocks are pinned for a device, for how long, and never twice."""

import ctypes
import os

import pytest

from ksrv._native.memory import buffer_pool

NBYTES = 3 * 4096 + 1
ROUNDED = 4 * 4096


class Device:
    """Counts the memory that it must pin.

    Attributes:
        pinned: Bytes by address.
        refuses: The return value of `pin`.
    """

    def __init__(self):
        self.pinned = {}
        self.refuses = 0
        self.calls = []
        self._pin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(
            self._take
        )
        self._unpin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._give)

    def _take(self, address, nbytes, flags):
        self.calls.append((address, nbytes, flags))
        if not self.refuses:
            assert address not in self.pinned
            self.pinned[address] = nbytes
        return self.refuses

    def _give(self, address):
        del self.pinned[address]
        return 0

    def addresses(self):
        return [ctypes.cast(one, ctypes.c_void_p).value for one in (self._pin, self._unpin)]


@pytest.fixture
def device():
    """A device that the pool pins blocks with."""
    buffer_pool.trim()
    made = Device()
    buffer_pool.use_pinning(*made.addresses())
    yield made
    buffer_pool.trim()
    buffer_pool.use_pinning(0, 0)
    assert made.pinned == {}, "what was pinned is unpinned before it is freed"


def pinned_bytes():
    return buffer_pool.statistics()["pinned_bytes"]


def test_pages_are_pinned_whole_and_once(device):
    block = buffer_pool.lease(NBYTES, pages=True)
    assert (block.address % 4096, block.capacity, block.fd, len(block)) == (0, ROUNDED, -1, NBYTES)
    assert not block.pinned
    assert block.pin() and block.pin() and block.pinned
    assert device.calls == [(block.address, ROUNDED, 1)]
    assert pinned_bytes() == ROUNDED


def test_a_block_stays_pinned_in_the_pool_and_is_counted_once(device):
    block = buffer_pool.lease(NBYTES, pages=True)
    block.pin()
    address = block.address
    del block
    assert device.pinned == {address: ROUNDED}
    assert pinned_bytes() == ROUNDED
    assert buffer_pool.statistics()["pooled_bytes"] == ROUNDED
    again = buffer_pool.lease(NBYTES - 5, pages=True)
    assert again.address == address and again.pinned and again.pin()
    assert len(device.calls) == 1
    del again
    buffer_pool.trim()
    assert (device.pinned, pinned_bytes()) == ({}, 0)


def test_a_view_keeps_a_block_pinned(device):
    block = buffer_pool.lease(NBYTES, pages=True)
    block.pin()
    array = buffer_pool.array(block, "<u1", (NBYTES,))
    array[:] = 7
    del block
    buffer_pool.trim()
    assert device.pinned and array.min() == 7


def test_memory_that_shares_its_pages_is_not_pinned(device):
    block = buffer_pool.lease(1 << 20)
    assert not block.pin() and not block.pinned
    assert device.calls == []


def test_pinning_is_retried_after_a_refusal(device):
    block = buffer_pool.lease(NBYTES, pages=True)
    device.refuses = 2
    assert not block.pin() and not block.pinned
    assert pinned_bytes() == 0
    device.refuses = 0
    assert block.pin() and block.pinned


def test_without_a_device_nothing_is_pinned():
    block = buffer_pool.lease(NBYTES, pages=True)
    assert not block.pin() and not block.pinned


def test_heap_blocks_and_page_blocks_are_pooled_separately(device):
    pages = buffer_pool.lease(NBYTES, pages=True)
    pages.pin()
    address = pages.address
    del pages
    assert buffer_pool.lease(NBYTES).address != address
    assert buffer_pool.lease(NBYTES, memfd=True).address != address
    assert buffer_pool.lease(NBYTES, pages=True).address == address


def test_forked_child_does_not_unpin(device):
    pooled = buffer_pool.lease(NBYTES, pages=True)
    held = buffer_pool.lease(2 * NBYTES, pages=True)
    assert pooled.pin() and held.pin()
    memoryview(held)[:4] = b"1234"
    del pooled
    child = os.fork()
    if child == 0:
        before = len(device.pinned)
        fresh = buffer_pool.lease(NBYTES, pages=True)
        fine = not fresh.pin() and not fresh.pinned and pinned_bytes() == 0
        del held, fresh
        buffer_pool.trim()
        os._exit(0 if fine and len(device.pinned) == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(memoryview(held)[:4]) == b"1234"
    assert len(device.pinned) == 2

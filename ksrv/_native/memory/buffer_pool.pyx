# Safe without the GIL: mutexes guard the pool, counts are atomic, and a Block's pointer is set
# once.
# cython: freethreading_compatible = True
"""Leased blocks for Python: buffers whose memory returns to the pool when the last view is gone.

A `Block` owns one reference to its memory. Everything made from it (memoryviews, arrays, torch
tensors) keeps the `Block` alive. So memory is never reused while a view of it exists, no matter how
long a handler keeps the view. No view exceeds the bytes that were leased.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
cimport cython
from libc.stdint cimport uint64_t, uintptr_t

from native.memory.buffer_pool cimport (
    ADOPT_OK, ADOPT_SEALS, ADOPT_SIZE, AdoptError, BACKEND_HEAP, BACKEND_MEMFD, BACKEND_PAGES,
    BufferPoolStatistics, PinFunction, UnpinFunction, count_copy as count_copied,
    process_pool, take_pages,
)
from native.memory.malloc_tuning cimport (
    keep_freed as c_keep_freed, trim_malloc as c_trim_malloc, tune_malloc as c_tune_malloc,
)

import os

import numpy

if not cython.compiled:
    from collections.abc import Sequence
    from typing import Any

    import numpy as np
    import numpy.typing as npt


# The free bytes that each heap of malloc keeps, as set by tune_malloc or keep_freed; 0 before.
cdef int _kept = 0


cdef Block ksrv_wrap(CBlock *block):
    cdef Block wrapped = Block.__new__(Block)
    wrapped.block = block
    return wrapped


cdef class Block:
    """Leased memory, 64-byte aligned. Exports a writable buffer of the bytes that were leased.

    Made only by `lease` and `adopt_fd`.
    """

    def __dealloc__(self):
        if self.block != NULL:
            process_pool().release(self.block)

    def __len__(self):
        return self._leased().size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef CBlock *block = self._leased()
        PyBuffer_FillInfo(buffer, self, block.data, <Py_ssize_t>block.size, 0, flags)

    @property
    def fd(self) -> int:
        """The memfd of the block, to send to another process; -1 for heap memory."""
        return self._leased().fd

    @property
    def capacity(self) -> int:
        """Bytes that the block occupies, at least `len(block)`."""
        return self._leased().capacity

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return <uintptr_t>self._leased().data

    @property
    def pinned(self) -> bool:
        """Whether the block is pinned, so that a device accesses it without an extra copy."""
        return self._leased().pinned.load()

    def pin(self) -> bool:
        """Pin the block for the device of `use_pinning`. It stays pinned until it is freed.

        Returns:
            Whether it is pinned. False for heap memory, without a device, and if the device
            refuses.
        """
        cdef CBlock *block = self._leased()
        cdef bint pinned = block.pinned.load()
        if not pinned:
            with nogil:
                pinned = process_pool().pin(block)
        return pinned

    def lend(self) -> bool:
        """Let another process map this block, read-only. False if that is impossible."""
        return process_pool().lend(self._leased())

    def close_fd(self) -> None:
        """Close the descriptor. The memory stays mapped."""
        cdef CBlock *block = self._leased()
        os.close(block.fd)
        block.fd = -1

    cdef CBlock *_leased(self) except NULL:
        if self.block == NULL:
            raise TypeError("a Block is made by lease() or adopt_fd(), not by its class")
        return self.block


def lease(nbytes: int, *, bint memfd=False, bint pages=False) -> Block:
    """Take a block of at least `nbytes` from the pool, or allocate a block.

    Args:
        nbytes: The size of the views of the block; 0 is allowed.
        memfd: Whether another process must be able to map the block (see `Block.fd`).
        pages: Whether the block shares its pages with nothing else, so that it can be pinned.

    Returns:
        The block. Its contents are undefined until the caller writes them.

    Raises:
        ValueError: `nbytes` is negative.
        MemoryError: Not enough memory.
    """
    if nbytes < 0:
        raise ValueError(f"a block has 0 bytes or more, not {nbytes}")
    cdef CBlock *block = NULL
    cdef size_t size
    cdef int backend = BACKEND_MEMFD if memfd else BACKEND_PAGES if pages else BACKEND_HEAP
    if nbytes < 2**60:
        size = nbytes
        with nogil:
            block = process_pool().lease(size, backend, False)  # False: may be reused memory
    if block == NULL:
        raise MemoryError(f"not enough memory for a block of {nbytes} bytes")
    return ksrv_wrap(block)


def lease_body(nbytes: int) -> Block:
    """Take a block for the body of a request. A large block can be lent to a handler process.

    Args:
        nbytes: The size of the views of the block; 0 is allowed.

    Returns:
        The block. Its contents are undefined until the caller writes them.

    Raises:
        MemoryError: Not enough memory.
    """
    cdef CBlock *block = NULL
    cdef size_t size = nbytes
    with nogil:
        block = process_pool().lease_body(size, False)  # False: may be reused memory
    if block == NULL:
        raise MemoryError(f"not enough memory for a block of {nbytes} bytes")
    return ksrv_wrap(block)


def block_under(object buffer not None) -> tuple[Any, int]:
    """Return the block under a memoryview, to be the base of arrays over the view's bytes.

    If the memoryview were the base, the arrays would look like any other view of the same bytes.

    Returns:
        The block and the view's offset in it. For any other buffer, and for a read-only view, the
        buffer itself and 0.
    """
    cdef Py_buffer bytes_of
    cdef size_t start
    if type(buffer) is not memoryview or type(buffer.obj) is not Block or buffer.readonly:
        return buffer, 0
    cdef Block block = buffer.obj
    PyObject_GetBuffer(buffer, &bytes_of, PyBUF_SIMPLE)
    start = <size_t>(<unsigned char *>bytes_of.buf - block.block.data)
    PyBuffer_Release(&bytes_of)
    return block, start


def block_of(object array: np.ndarray[Any, Any]) -> Block | None:
    """Return the block that an array is a view of; None for other memory."""
    while isinstance(array, numpy.ndarray):
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return array if isinstance(array, Block) else None


def adopt_fd(int fd, size_t nbytes) -> Block:
    """Map a memfd that another process sent, and take ownership of its descriptor.

    Writes to the block stay invisible to the other process.

    Args:
        fd: The descriptor. It is closed with the block, but stays open if this raises.
        nbytes: The size of the views of the block; at least 1.

    Returns:
        The block. When its last view is gone it is unmapped, not pooled.

    Raises:
        ValueError: The memfd is not sealed against shrinking, has huge pages, or is too short.
        OSError: `fd` is not a descriptor, or cannot be mapped.
    """
    cdef AdoptError error = ADOPT_OK
    cdef CBlock *block
    with nogil:
        block = process_pool().adopt(fd, nbytes, &error)
    if block != NULL:
        return ksrv_wrap(block)
    if error == ADOPT_SIZE:
        raise ValueError(f"the shared block is empty or shorter than the {nbytes} bytes announced")
    if error == ADOPT_SEALS:
        raise ValueError(
            "a shared block must be a memfd of ordinary pages, sealed against shrinking"
        )
    raise OSError(f"descriptor {fd} cannot be mapped as a shared block")


def share(size_t nbytes) -> Block:
    """Return a new block of `nbytes` that can be lent to another process, with all its pages.

    Raises:
        MemoryError: Not enough memory, or no descriptor is left.
    """
    cdef CBlock *block
    cdef bint has_pages = False
    with nogil:
        block = process_pool().lease(nbytes, BACKEND_MEMFD, True)  # True: never used before
        if block != NULL:
            # The pages are allocated now: if memory is short, this fails. A later write to a page
            # that does not exist would end the process by SIGBUS.
            has_pages = take_pages(block.fd, nbytes)
            if not has_pages:
                process_pool().release(block)
    if not has_pages:
        raise MemoryError(f"not enough memory for a block of {nbytes} bytes")
    return ksrv_wrap(block)


def use_pinning(uintptr_t pin, uintptr_t unpin) -> None:
    """Set the functions that pin blocks for `Block.pin`, and unpin them when they are freed.

    Args:
        pin: The address of a C function such as `cudaHostRegister`, called with an address, a
            number of bytes and the flag 1. It returns 0 on success. 0 for no function.
        unpin: The address of a function such as `cudaHostUnregister`, called with the address; 0
            for none. It is called on any thread, also on threads without Python.
    """
    process_pool().use_pinning(<PinFunction>pin, <UnpinFunction>unpin)


def array(
    Block block not None,
    dtype: str | np.dtype[Any],
    shape: Sequence[int],
    Py_ssize_t offset=0,
) -> npt.NDArray[Any]:
    """View part of a block as a C-ordered, writable array.

    Args:
        block: The block. It is the base of the array, and stays alive while a view of the array
            exists.
        dtype: A numpy dtype or its string, such as "<f4".
        offset: The offset of the array in the block, in bytes.

    Returns:
        The array. Writing to the array writes to the block.

    Raises:
        TypeError: The array exceeds the block.
        ValueError: The shape or the offset is negative.
    """
    if offset < 0:
        raise ValueError(f"an array begins at offset 0 or later, not {offset}")
    for entry in shape:
        if entry < 0:  # numpy would take -1 as "the rest"
            raise ValueError(f"a dimension is 0 or more, not {entry}")
    return numpy.ndarray(shape, dtype, block, offset)


def count_copy(size_t nbytes) -> None:
    """Count copied tensor bytes. Tests check with the count that a path copies nothing."""
    count_copied(nbytes)


def copied_bytes() -> int:
    """Return how many tensor bytes the process has copied so far."""
    return process_pool().copied_bytes.load()


def statistics() -> dict[str, int]:
    """Return the pool's counters.

    Returns:
        `leased` and `pooled` (blocks), `leased_bytes` and `pooled_bytes` (capacities), `cap` (the
        most pooled bytes), `hits` and `misses` (leases served from the pool or not), `pinned_bytes`
        (leased and pooled blocks), `copied_bytes`.
    """
    cdef BufferPoolStatistics s = process_pool().statistics()
    return {
        "leased": s.leased_blocks,
        "leased_bytes": s.leased_bytes,
        "pooled": s.pooled_blocks,
        "pooled_bytes": s.pooled_bytes,
        "cap": s.cap_bytes,
        "hits": s.hits,
        "misses": s.misses,
        "pinned_bytes": s.pinned_bytes,
        "copied_bytes": process_pool().copied_bytes.load(),
    }


def configure(
    *,
    cap_bytes: int | None = None,
    idle_seconds: float | None = None,
    lendable_above: int | None = None,
) -> None:
    """Set limits of the pool. None leaves a limit unchanged.

    Args:
        cap_bytes: The most bytes in the pool (default 256 MiB). 0 turns pooling off.
        idle_seconds: How long a block stays in the pool; checked when a block returns (default 30).
        lendable_above: Bodies above this size get a block that can be lent. Without handler
            processes no block can be lent.

    Raises:
        ValueError: A limit is negative.
    """
    for bound in (cap_bytes, idle_seconds, lendable_above):
        if bound is not None and bound < 0:
            raise ValueError(f"a bound of the buffer pool is 0 or more, not {bound}")
    if cap_bytes is not None:
        process_pool().cap_bytes.store(cap_bytes)
        if process_pool().statistics().pooled_bytes > cap_bytes:
            process_pool().trim(0)
    if idle_seconds is not None:
        process_pool().idle_nanoseconds.store(<uint64_t>(idle_seconds * 1e9))
    if lendable_above is not None:
        process_pool().lendable_above.store(lendable_above)


def trim(double idle_seconds=0.0) -> int:
    """Free pooled blocks that were not used for a while. For an idle engine.

    Args:
        idle_seconds: How long a block must have waited; 0 frees every pooled block.

    Returns:
        The number of bytes freed.
    """
    cdef uint64_t idle = <uint64_t>(idle_seconds * 1e9) if idle_seconds > 0 else 0
    cdef uint64_t freed
    with nogil:
        freed = process_pool().trim(idle)
    return freed


def tune_malloc(*, int kept_bytes=48 << 20, bint no_mmap=False) -> bool:
    """Keep glibc from returning every image-sized buffer to the kernel.

    A decoded image is an allocation of a megabyte or more, and so is the result of each layer of a
    network. By default glibc maps such memory anew each time, and the page faults can cost as much
    as decoding. This raises malloc's mmap threshold to 32 MiB, the largest value that glibc
    accepts. It also limits the number of heaps (by default eight for each core), because memory
    freed in one heap is not available to threads of another. A process that ksrv owns calls this
    once, at start and before it has threads. Libraries must not call it.

    Args:
        kept_bytes: The free bytes that each heap keeps at its end. From 64 MiB on, the largest heap
            of a thread, heaps of threads keep all free memory, including the pieces of large gRPC
            messages.
        no_mmap: Never map single allocations. This also helps buffers above 32 MiB (images of more
            than 11 megapixels), but the process never returns freed memory.

    Returns:
        Whether the C library accepted the settings; always False for other libraries than glibc.
    """
    global _kept
    _kept = kept_bytes
    return c_tune_malloc(kept_bytes, no_mmap, max(2, len(os.sched_getaffinity(0)) // 2))


def keep_freed(int kept_bytes) -> bool:
    """Raise the free bytes that heaps keep. Does nothing if `tune_malloc` was not called.

    Args:
        kept_bytes: See `tune_malloc`.

    Returns:
        Whether it was raised.
    """
    global _kept
    if not 0 < _kept < kept_bytes:
        return False
    _kept = kept_bytes
    return c_keep_freed(kept_bytes)


def trim_malloc() -> bool:
    """Return the free memory of all heaps to the system.

    Returns:
        Whether there was any; always False for other C libraries than glibc.
    """
    cdef bint done
    with nogil:
        done = c_trim_malloc()
    return done

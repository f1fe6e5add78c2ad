# One pool behind mutexes, counts that are atomic; a Block's pointer is set once.
# cython: freethreading_compatible = True
"""Leased blocks as Python sees them: buffers whose memory returns to the pool with the last view.

A `Block` owns one reference to its memory. Everything made from it (memoryviews, arrays, torch
tensors) keeps the `Block` alive, so memory is never recycled under a view, however long a handler
holds on to it; and no view reaches beyond the bytes that were asked for.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uint64_t, uintptr_t

import os

import numpy

if not cython.compiled:
    from collections.abc import Sequence
    from typing import Any

    import numpy as np
    import numpy.typing as npt


cdef extern from "memory/malloc_tuning.hpp" namespace "ksrv" nogil:
    bint c_tune_malloc "ksrv::tune_malloc"(int keep, bint no_mmap, int heaps) noexcept
    bint c_keep_freed "ksrv::keep_freed"(int keep) noexcept
    bint c_trim_malloc "ksrv::trim_malloc"() noexcept

cdef int _kept = 0            # as tune_malloc and keep_freed set it


cdef Block ksrv_wrap(CBlock *block):
    cdef Block wrapped = Block.__new__(Block)
    wrapped.block = block
    return wrapped


cdef class Block:
    """A leased piece of memory, 64-byte aligned; exports a writable buffer of the bytes asked for.

    Made by `lease` and `adopt_fd` only.
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
        """The memfd behind the block, for sending to another process; -1 for heap memory."""
        return self._leased().fd

    @property
    def capacity(self) -> int:
        """Bytes that the block occupies; at least `len(block)`."""
        return self._leased().capacity

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return <uintptr_t>self._leased().data

    @property
    def pinned(self) -> bool:
        """Whether a device reads and writes the block without the system's copy."""
        return self._leased().pinned.load()

    def pin(self) -> bool:
        """Pin the block for the device that `use_pinning` named; it stays pinned until it is freed.

        Returns:
            Whether it is pinned; False for heap memory, without a device, and where that refuses.
        """
        cdef CBlock *block = self._leased()
        cdef bint pinned = block.pinned.load()
        if not pinned:
            with nogil:
                pinned = process_pool().pin(block)
        return pinned

    @property
    def holders(self) -> int:
        """How many references to the memory there are: this object's, and those of native code."""
        return holders_of(self._leased())

    cdef CBlock *_leased(self) except NULL:
        if self.block == NULL:
            raise TypeError("a Block is made by lease() or adopt_fd(), not by its class")
        return self.block


def lease(nbytes: int, *, bint memfd=False, bint pages=False, bint fresh=False) -> Block:
    """Take a block of at least `nbytes` from the pool, or a new one.

    Args:
        nbytes: How many bytes views of the block shall cover; 0 is allowed.
        memfd: Whether another process must be able to map the block (see `Block.fd`).
        pages: Whether the block has its pages to itself, so that it can be pinned.
        fresh: Whether to take a new one, whose memory the system gives as it is written.

    Returns:
        The block. Its contents are undefined until the caller writes them.

    Raises:
        ValueError: `nbytes` is negative.
        MemoryError: There is no memory of that size.
    """
    if nbytes < 0:
        raise ValueError(f"a block has 0 bytes or more, not {nbytes}")
    cdef CBlock *block = NULL
    cdef size_t size
    cdef int backend = BACKEND_MEMFD if memfd else BACKEND_PAGES if pages else BACKEND_HEAP
    if nbytes < 2**60:
        size = nbytes
        with nogil:
            block = process_pool().lease(size, backend, fresh)
    if block == NULL:
        raise MemoryError(f"there is no memory for a block of {nbytes} bytes")
    return ksrv_wrap(block)


def lease_body(nbytes: int, *, bint fresh=False) -> Block:
    """Take a block for the body of a request; a large one can be lent to a handler process.

    Args:
        nbytes: How many bytes views of the block shall cover; 0 is allowed.
        fresh: See `lease`.

    Returns:
        The block. Its contents are undefined until the caller writes them.

    Raises:
        MemoryError: There is no memory of that size.
    """
    cdef CBlock *block = NULL
    cdef size_t size = nbytes
    with nogil:
        block = process_pool().lease_body(size, fresh)
    if block == NULL:
        raise MemoryError(f"there is no memory for a block of {nbytes} bytes")
    return ksrv_wrap(block)


def block_under(object buffer not None) -> tuple[Any, int]:
    """Return the block that a memoryview is one of, as the owner of arrays over the view's bytes.

    An array over the memoryview itself could not be told from other views of the same bytes.

    Returns:
        The block and where in it the view begins; for any other buffer, and for a view that must
        not be written through, the buffer itself and 0.
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


def give_back(view not None: memoryview, size_t begin, size_t end) -> None:
    """Give memory of a received body back to the system before its block goes.

    Args:
        view: A memoryview of a block, whose bytes are not read again.
        begin: The first byte of the view that is not needed any more.

    Raises:
        TypeError: The view is not one of a block.
    """
    cdef Block block = <Block?>view.obj
    cdef Py_buffer bytes_of
    PyObject_GetBuffer(view, &bytes_of, PyBUF_SIMPLE)
    cdef size_t start = <size_t>(<unsigned char *>bytes_of.buf - block.block.data)
    end = min(end, <size_t>bytes_of.len)
    PyBuffer_Release(&bytes_of)
    block.block.unwritten = True  # its next holder would find no memory there
    if begin < end:
        give_back_pages(block.block, start + begin, start + end)


def adopt_fd(int fd, size_t nbytes, *, bint borrowed=False) -> Block:
    """Map a memfd that another process sent, and take over its descriptor.

    Args:
        fd: The descriptor; closed with the block. It stays the caller's when this raises.
        nbytes: How many bytes views of the block shall cover; at least 1.
        borrowed: Whether the other process shall not see what is written to the block here.

    Returns:
        The block; when its last view dies it is unmapped, not pooled.

    Raises:
        ValueError: The descriptor is no memfd of ordinary pages sealed against shrinking, or is too
            short.
        OSError: It is not a descriptor, or cannot be mapped.
    """
    cdef AdoptError error = ADOPT_OK
    cdef CBlock *block
    with nogil:
        block = process_pool().adopt(
            fd, nbytes, BACKEND_BORROWED if borrowed else BACKEND_ADOPTED, &error
        )
    if block != NULL:
        return ksrv_wrap(block)
    if error == ADOPT_SIZE:
        raise ValueError(f"the shared block is empty or shorter than the {nbytes} bytes announced")
    if error == ADOPT_SEALS:
        raise ValueError("the shared block is no memfd of ordinary pages sealed against shrinking")
    raise OSError(f"descriptor {fd} cannot be mapped as a shared block")


def use_pinning(uintptr_t pin, uintptr_t unpin) -> None:
    """Name the functions that pin blocks for `Block.pin`, and unpin them when they are freed.

    Args:
        pin: The address of a C function such as `cudaHostRegister`: it is called with an address, a
            number of bytes and the flag 1, and returns 0 when it is done; 0 for none.
        unpin: The address of one such as `cudaHostUnregister`, called with the address; 0 for none.
            Any thread calls it, also one without Python.
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
        block: The block; it is the array's base and lives as long as any view of the array.
        dtype: A numpy dtype or its string, such as "<f4".
        offset: Where in the block the array begins, in bytes.

    Returns:
        The array. Writing to it writes to the block.

    Raises:
        TypeError: The array does not fit into the block.
        ValueError: The shape or the offset is negative.
    """
    if offset < 0:
        raise ValueError(f"an array begins at offset 0 or later, not {offset}")
    for entry in shape:
        if entry < 0:  # numpy would take -1 as "the rest"
            raise ValueError(f"a dimension is 0 or more, not {entry}")
    return numpy.ndarray(shape, dtype, block, offset)


def count_copy(size_t nbytes) -> None:
    """Note that tensor bytes were copied; tests hold the ways that promise not to."""
    count_copied(nbytes)


def copied_bytes() -> int:
    """Return the tensor bytes that the process has copied so far."""
    return process_pool().copied_bytes.load()


def statistics() -> dict[str, int]:
    """Return the pool's counters.

    Returns:
        `leased` and `pooled` (blocks), `leased_bytes` and `pooled_bytes` (their capacities), `cap`
        (the most bytes that are pooled), `hits` and `misses` (leases served from the pool or not),
        `pinned_bytes` (of leased and pooled blocks), `copied_bytes`.
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
    """Set the pool's bounds; None leaves one as it is.

    Args:
        cap_bytes: The most bytes that wait in the pool (256 MiB unless set); 0 turns pooling off.
        idle_seconds: How long a block waits before the next one to come back frees it (30 unless
            set).
        lendable_above: Bytes above which the block of a body can be lent; without handler processes
            no block can.

    Raises:
        ValueError: A bound is negative.
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
    """Free pooled blocks that were not used for a while; for an engine that has nothing to do.

    Args:
        idle_seconds: How long a block must have waited; 0 frees every pooled block.

    Returns:
        The bytes that were freed.
    """
    cdef uint64_t idle = <uint64_t>(idle_seconds * 1e9) if idle_seconds > 0 else 0
    cdef uint64_t freed
    with nogil:
        freed = process_pool().trim(idle)
    return freed


def tune_malloc(*, int keep=48 << 20, bint no_mmap=False) -> bool:
    """Stop glibc from giving every image-sized buffer back to the kernel.

    A decoded image is a fresh allocation of a megabyte or more, and so is what each layer of a
    network returns. By default glibc maps such memory anew each time, and the page faults cost up
    to as much as decoding. This raises the size from which malloc maps to 32 MiB, the greatest that
    it takes. It also bounds the heaps, of which glibc makes eight for each core: what is freed in
    one is no use to the threads of another. A process that ksrv owns calls it once, when it starts
    and before it has threads; nothing else should.

    Args:
        keep: The free bytes that a heap keeps at its end, for the whole process. From 64 MiB on,
            which is all that the heap of a thread may have, those keep everything, also the pieces
            of which large gRPC messages are made.
        no_mmap: Never map single allocations, which also helps buffers above 32 MiB (images of more
            than 11 megapixels) but keeps freed memory in the process for good.

    Returns:
        Whether the C library took the settings; False for any but glibc.
    """
    global _kept
    _kept = keep
    return c_tune_malloc(keep, no_mmap, max(2, len(os.sched_getaffinity(0)) // 2))


def keep_freed(int keep) -> bool:
    """Raise what a heap keeps at its end, where `tune_malloc` was called; elsewhere do nothing.

    Args:
        keep: See `tune_malloc`.

    Returns:
        Whether it was raised.
    """
    global _kept
    if not 0 < _kept < keep:
        return False
    _kept = keep
    return c_keep_freed(keep)


def trim_malloc() -> bool:
    """Give the free memory in all heaps of the C library back to the system.

    Returns:
        Whether there was any; always False where the C library is not glibc.
    """
    cdef bint done
    with nogil:
        done = c_trim_malloc()
    return done

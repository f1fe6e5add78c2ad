# Needs the GIL: the lists of named and returned blocks are written when arrays are deleted.
"""Blocks of memory that two processes share, and which process may write to them when.

Each side makes the blocks that it writes (`ExportedBlocks`) and maps the blocks of the other side
(`ImportedBlocks`). A block's descriptor is sent once, with the first message that refers to the
block. Later messages use a number that is never reused. A block is leased again only after nothing
refers to it here and the other side has reported that nothing refers to it there. So a handler may
keep its inputs for ever and a client may read its answer slowly, and neither sees another request's
bytes.

Whether a block is referred to is read from its reference counts: every array and memoryview over a
block holds a reference to the object, and native code that reads the block without the GIL holds a
reference to the memory. A block that the other side does not return is disowned: this side unmaps
it, and the memory lives for as long as it is used there.

The body of a large request is not copied into such a block. Instead the block that received the
body is lent for one message. The other side cannot write to it, keeps it mapped while anything
there refers to it, and returns nothing. This side continues to use the block as if it had not been
lent.
"""

import os
import threading

from cpython.ref cimport PyObject
from libc.stdint cimport UINT64_MAX, uint64_t

from ksrv._native.memory.buffer_pool cimport Block, holders_of, process_pool

from ksrv._native.memory import buffer_pool


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *object)


cdef extern from "memory/buffer_pool.hpp" namespace "ksrv" nogil:
    int make_memfd(const char *name, size_t nbytes, size_t taken, int seals) noexcept
    bint keep_pages(int fd, size_t nbytes) noexcept


cdef extern from "<fcntl.h>":
    cdef enum:
        F_SEAL_SHRINK
        F_SEAL_GROW


cdef size_t SMALLEST = 64 * 1024
cdef size_t NAMED_BLOCKS = 16
cdef size_t IDLE_BLOCKS = 8
cdef size_t IDLE_BYTES = 128 * 1024 * 1024
cdef size_t PEER_BLOCKS = 1024


class BlockError(Exception):
    """The other side named a block, or part of a block, that does not exist."""


class TooLarge(Exception):
    """A message of this side exceeds the size that the other side accepts."""


cdef class Shared:
    """A block and its number. If unused, it holds the only reference to the block."""

    def __cinit__(self, uint64_t number, Block block not None):
        self.number = number
        self.block = block


cdef inline bint unreferenced(Shared shared) noexcept:
    return Py_REFCNT(<PyObject *>shared.block) == 1 and holders_of(shared.block.block) == 1


cdef size_t rounded(size_t nbytes) noexcept:
    """Return the block size for `nbytes`: whole pages, at most an eighth larger."""
    cdef size_t step = 4096
    if nbytes <= SMALLEST:
        return SMALLEST
    while step * 16 < nbytes:
        step *= 2
    return (nbytes + step - 1) // step * step


cdef Block make(size_t nbytes):
    """Return a new block with a separate memfd.

    It is not leased from the buffer pool, because the pool would reuse the memory while a handler
    process still has it mapped.
    """
    cdef int descriptor
    with nogil:
        descriptor = make_memfd(b"ksrv", nbytes, nbytes, F_SEAL_SHRINK | F_SEAL_GROW)
    if descriptor < 0:
        raise OSError("a memfd of this size cannot be made")
    try:
        return buffer_pool.adopt_fd(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


cdef bint keeps_its_memory(Shared shared) noexcept:
    """Whether a block that the other side has mapped has all its pages, and cannot lose them."""
    if not shared.sealed:
        with nogil:
            shared.sealed = keep_pages(shared.block.block.fd, shared.block.block.size)
    return shared.sealed


cdef class ExportedBlocks:
    """The blocks that this side makes and writes. Thread-safe.

    Attributes:
        most_bytes: The most bytes in the tensors of a message, or in its payload, that the other
            side accepts.
        most_kept: The most bytes in all blocks of this side together that the other side accepts.
    """

    def __cinit__(self):
        self.most_bytes = UINT64_MAX
        self.most_kept = UINT64_MAX
        self._lock = threading.Lock()
        self._shared = []  # in the order of their last use in a message
        self._retired = []
        self._next = 1

    cpdef Block lease(self, size_t nbytes):
        """Return a block of at least `nbytes` that nothing else refers to.

        Raises:
            MemoryError: Not enough memory.
        """
        with self._lock:
            return self._leased(nbytes)

    cdef int check_size(self, uint64_t nbytes) except -1:
        """Raise `TooLarge` if the other side does not accept a message of this size."""
        if nbytes > self.most_bytes:
            raise TooLarge(f"{nbytes} bytes; a message has at most {self.most_bytes}")
        return 0

    cdef Block _leased(self, size_t nbytes):
        cdef Shared shared
        cdef size_t size
        cdef uint64_t kept = 0
        for shared in list(self._shared):
            size = shared.block.block.size
            if (
                not shared.named
                and nbytes <= size
                and size // 4 <= nbytes + SMALLEST
                and unreferenced(shared)
            ):
                if not shared.announced or keeps_its_memory(shared):
                    return shared.block
                self._disown(shared)
        self._trim(0)
        for shared in self._shared:
            kept += shared.block.block.size
        if kept + rounded(nbytes) > self.most_kept:
            raise MemoryError(
                f"not enough memory for a block of {nbytes} bytes: the blocks in use "
                f"have {kept} bytes of at most {self.most_kept}"
            )
        try:
            block = make(rounded(nbytes))
        except OSError as error:
            raise MemoryError(f"not enough memory for a block of {nbytes} bytes") from error
        self._shared.append(Shared(self._next, block))
        self._next += 1
        return block

    def number_of(self, Block block not None) -> int:
        """Return the number of a block that `lease` returned.

        Raises:
            KeyError: The block is unknown, or was disowned.
        """
        with self._lock:
            return self.shared_of(block).number

    def numbers(self) -> list[int]:
        """Return the numbers of the blocks that are kept."""
        cdef Shared shared
        with self._lock:
            return [shared.number for shared in self._shared]

    def clear(self) -> None:
        """Disown every block, because the other side is gone. Existing views stay valid."""
        with self._lock:
            self._shared.clear()
            self._retired.clear()

    cdef Block containing(self, const void *data, size_t nbytes):
        """Return the block that contains the bytes, or None."""
        cdef Shared shared
        cdef const unsigned char *first = <const unsigned char *>data
        with self._lock:
            for shared in self._shared:
                if (
                    first >= shared.block.block.data
                    and first + nbytes <= shared.block.block.data + shared.block.block.size
                ):
                    return shared.block
        return None

    cdef Shared lend(self, Block block):
        """Return a body's block with a number for one message, or None if it cannot be lent."""
        cdef Shared lent
        if not process_pool().lend(block.block):
            return None
        with self._lock:
            lent = Shared(self._next, block)
            lent.lent = True
            self._next += 1
        return lent

    cdef Shared shared_of(self, Block block):
        cdef Shared shared
        for shared in self._shared:
            if shared.block is block:
                return shared
        raise KeyError("unknown block")

    cdef list note_named(self, list blocks):
        """Mark blocks as used by the next message. Return the blocks that it must announce."""
        cdef Shared shared
        cdef list unknown = []
        with self._lock:
            for block in blocks:
                if isinstance(block, Shared):  # lent
                    unknown.append(block)
                    continue
                shared = self.shared_of(block)
                if self._shared[len(self._shared) - 1] is not shared:
                    self._shared.remove(shared)
                    self._shared.append(shared)
                shared.named = True
                if not shared.announced:
                    shared.announced = True
                    unknown.append(shared)
        return unknown

    cdef int returned(self, uint64_t number) except -1:
        """Mark a block as no longer used by the other side."""
        cdef Shared shared
        if not 0 < number < self._next:
            raise BlockError(f"block {number} was given back, but was never announced")
        with self._lock:
            for shared in self._shared:
                if shared.number == number:
                    shared.named = False
        return 0  # unknown: it was disowned while the message was on its way

    cdef list retired(self):
        """Disown idle blocks and blocks that are used too long. Return their numbers."""
        cdef list numbers
        cdef list named
        cdef Shared shared
        with self._lock:
            if len(self._shared) > <Py_ssize_t>IDLE_BLOCKS:
                named = [shared for shared in self._shared if shared.named]
                for shared in named[: max(0, len(named) - <Py_ssize_t>NAMED_BLOCKS)]:
                    # A message that is still being made refers to its blocks, too.
                    if unreferenced(shared):
                        self._disown(shared)
                self._trim(IDLE_BLOCKS)
            numbers = self._retired
            self._retired = []
        return numbers

    cdef int _trim(self, size_t spared) except -1:
        """Disown idle blocks beyond the limits, the longest idle first."""
        cdef Shared shared
        cdef size_t size = 0
        cdef Py_ssize_t surplus = -<Py_ssize_t>IDLE_BLOCKS
        cdef list idle = [shared for shared in self._shared if not shared.named]
        for shared in idle:
            size += shared.block.block.size
            surplus += 1
        for shared in idle:
            if surplus <= 0 and size <= IDLE_BYTES:
                break
            if unreferenced(shared):
                surplus -= 1
                size -= shared.block.block.size
                self._disown(shared)
        return 0

    cdef int _disown(self, Shared shared) except -1:
        self._shared.remove(shared)
        if shared.announced:
            self._retired.append(shared.number)
        return 0


cdef Block mapped(dict known, uint64_t number, uint64_t nbytes, int descriptor, bint borrowed):
    """Map an announced block that is not known yet, and close its descriptor."""
    cdef Block block
    if number in known or len(known) >= <Py_ssize_t>PEER_BLOCKS or number == 0:
        raise BlockError(f"block {number} was announced twice, or is one too many")
    try:
        block = buffer_pool.adopt_fd(descriptor, nbytes, borrowed=borrowed)
    except (ValueError, OSError) as error:
        raise BlockError(str(error)) from error
    # A mapping does not need its descriptor, and this process has few descriptors.
    os.close(block.block.fd)
    block.block.fd = -1
    return block


cdef class ImportedBlocks:
    """The blocks of the other side that are mapped here. Used by one thread at a time.

    Attributes:
        most_bytes: The most bytes in the tensors of a message, or in its payload. The sizes of
            blocks do not limit them, because a block may have pages that were never written, and
            may be named many times.
        most_kept: The most bytes in all mapped blocks together.
        borrows: Whether the other side may lend blocks. Only a worker may lend to its handler
            process: the handler's user code must not keep memory of the worker alive.
    """

    def __cinit__(self, *, bint borrows=False):
        self.borrows = borrows
        self.most_bytes = UINT64_MAX
        self.most_kept = UINT64_MAX
        self._by_number = {}
        self._held = []
        self._arrived = {}  # lent blocks of messages whose tensors have not been read yet

    def numbers(self) -> list[int]:
        """Return the numbers of the mapped blocks."""
        return list(self._by_number)

    def held(self) -> list[int]:
        """Return the numbers of the blocks that messages named and that were not returned."""
        cdef Shared shared
        return [shared.number for shared in self._held]

    def clear(self) -> None:
        """Release every block. Existing views stay valid."""
        self._by_number.clear()
        self._held.clear()
        self._arrived.clear()

    cdef int adopt(self, uint64_t number, uint64_t nbytes, int descriptor) except -1:
        """Map an announced block. If that fails, the caller keeps the descriptor."""
        cdef Shared shared
        cdef uint64_t kept = 0
        for shared in self._by_number.values():
            kept += shared.block.block.size
        if nbytes > self.most_kept or kept > self.most_kept - nbytes:
            raise BlockError(
                f"a block of {nbytes} bytes was announced beside {kept} bytes; all of them have at "
                f"most {self.most_kept}"
            )
        block = mapped(self._by_number, number, nbytes, descriptor, False)
        self._by_number[number] = Shared(number, block)
        return 0

    cdef int borrow(self, uint64_t number, uint64_t nbytes, int descriptor) except -1:
        """As `adopt`, for a block that a message lends. Call `settle` after reading its tensors."""
        if not self.borrows:
            raise BlockError(f"block {number} was lent, and nothing may be lent here")
        block = mapped(self._arrived, number, nbytes, descriptor, True)
        self._arrived[number] = block
        return 0

    cdef int settle(self, uint64_t number) except -1:
        """From now on a borrowed block lives only as long as its views."""
        self._arrived.pop(number, None)
        return 0

    cdef Block part(self, uint64_t number, uint64_t offset, uint64_t nbytes):
        """Return block `number`. A message names `nbytes` bytes of it, at `offset`."""
        cdef Shared shared = self._by_number.get(number)
        cdef Block block = self._arrived.get(number) if shared is None else shared.block
        if block is None:
            raise BlockError(f"block {number} was named, and is not known")
        if offset > block.block.size or nbytes > block.block.size - offset:
            raise BlockError(
                f"{nbytes} bytes from byte {offset} on of block {number} were named, which has"
                f" {block.block.size}"
            )
        if shared is not None and not shared.named:  # already marked as used here, and not returned
            shared.named = True
            self._held.append(shared)
        return block

    cdef int forget(self, uint64_t number) except -1:
        """Release a block that the other side has disowned. It is unmapped with its last view."""
        cdef Shared shared = self._by_number.pop(number, None)
        if shared is not None and shared.named:
            self._held.remove(shared)
        return 0

    cdef list unused(self):
        """Return the numbers of blocks to return: named by a message, and no longer referred to."""
        cdef Shared shared
        cdef list numbers = []
        for shared in self._held:
            if unreferenced(shared):
                shared.named = False
                numbers.append(shared.number)
        if numbers:
            self._held = [shared for shared in self._held if shared.named]
        return numbers

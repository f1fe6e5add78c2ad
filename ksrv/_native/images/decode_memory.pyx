# Safe without the GIL: a mutex guards the counts.
# cython: freethreading_compatible = True
"""Reserves memory for the pictures that a process decodes."""

from libc.stdint cimport uint64_t

TAKEN: int = <int>DecodeRoom.taken
WAIT: int = <int>DecodeRoom.wait
NO_ROOM: int = <int>DecodeRoom.none
TOO_LARGE: int = <int>DecodeRoom.too_large


cdef class DecodeMemory:
    """The bytes reserved for pictures that are being decoded.

    Args:
        of_process: Whether to use the process-wide counts, which decoders without the GIL also use.
    """

    cdef CDecodeMemory *memory

    def __cinit__(self, bint of_process=False):
        self.memory = &process_decode_memory() if of_process else new CDecodeMemory()

    def __dealloc__(self):
        if self.memory != &process_decode_memory():
            del self.memory

    @property
    def waiting(self) -> int:
        """How many threads are waiting for memory."""
        return self.memory.waiting()

    def take(self, uint64_t nbytes) -> int:
        """Reserve bytes, or wait briefly until there may be enough.

        Returns:
            TAKEN; WAIT if other pictures are being decoded, so that a retry may succeed; NO_ROOM or
            TOO_LARGE if a retry cannot succeed.
        """
        cdef DecodeRoom room
        with nogil:
            room = self.memory.take(nbytes)
        return <int>room

    def give_back(self, uint64_t nbytes) -> None:
        """Give back what `take` reserved."""
        self.memory.give_back(nbytes)

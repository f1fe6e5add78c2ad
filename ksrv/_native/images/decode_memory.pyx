# The memory is behind a mutex.
# cython: freethreading_compatible = True
"""The bytes of the pictures that a process is decoding, as Python takes and gives them."""

from libc.stdint cimport uint64_t

TAKEN: int = <int>DecodeRoom.taken
WAIT: int = <int>DecodeRoom.wait
NO_ROOM: int = <int>DecodeRoom.none
TOO_LARGE: int = <int>DecodeRoom.too_large


cdef class DecodeMemory:
    """The bytes of the pictures that are being decoded.

    Args:
        of_process: Whether it is the process's, which decoders without the GIL use as well.
    """

    cdef CDecodeMemory *memory

    def __cinit__(self, bint of_process=False):
        self.memory = &process_decode_memory() if of_process else new CDecodeMemory()

    def __dealloc__(self):
        if self.memory != &process_decode_memory():
            del self.memory

    @property
    def waiting(self) -> int:
        """How many threads wait for room."""
        return self.memory.waiting()

    def take(self, uint64_t nbytes) -> int:
        """Reserve bytes, or wait for a moment until there may be room.

        Returns:
            TAKEN; WAIT where others are still being decoded; NO_ROOM, or TOO_LARGE, where waiting
            does not help.
        """
        cdef DecodeRoom room
        with nogil:
            room = self.memory.take(nbytes)
        return <int>room

    def give_back(self, uint64_t nbytes) -> None:
        """Give back what `take` reserved."""
        self.memory.give_back(nbytes)

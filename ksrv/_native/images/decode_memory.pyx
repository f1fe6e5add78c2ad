# Safe without the GIL: a mutex guards the counts.
# cython: freethreading_compatible = True
"""Reserves memory for the pictures that the process decodes."""

from libc.stdint cimport uint64_t

from native.images.decode.memory cimport DecodeRoom, process_decode_memory

TAKEN: int = <int>DecodeRoom.taken
WAIT: int = <int>DecodeRoom.wait
NO_ROOM: int = <int>DecodeRoom.none
TOO_LARGE: int = <int>DecodeRoom.too_large


def waiting() -> int:
    """Return how many threads are waiting for memory."""
    return process_decode_memory().waiting()


def take(uint64_t nbytes) -> int:
    """Reserve bytes, or wait briefly until there may be enough.

    Returns:
        TAKEN; WAIT if other pictures are being decoded, so that a retry may succeed; NO_ROOM or
        TOO_LARGE if a retry cannot succeed.
    """
    cdef DecodeRoom room
    with nogil:
        room = process_decode_memory().take(nbytes)
    return <int>room


def give_back(uint64_t nbytes) -> None:
    """Give back what `take` reserved."""
    process_decode_memory().give_back(nbytes)

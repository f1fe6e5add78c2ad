# Its state is the thread's; the redirection is behind a mutex.
# cython: freethreading_compatible = True
"""Keeps the lines that image codecs print about damaged files; `codec_stderr.hpp` says how."""

cdef extern from "images/codec_stderr.hpp" namespace "ksrv" nogil:
    cdef enum:
        NOISE_BYTES

    cdef cppclass Noise:
        size_t length
        char text[NOISE_BYTES]

    void begin_noise()
    const Noise &end_noise()


def begin() -> None:
    """Keep what this thread writes to the C library's standard error stream until `end`.

    Calls do not nest, and each is followed by one of `end` on the same thread. Python's own
    `sys.stderr`, descriptor 2 and other threads are not concerned.
    """
    begin_noise()


def end() -> bytes:
    """Stop keeping it.

    Returns:
        The first 200 bytes of what was written; empty where nothing was.
    """
    cdef const Noise *noise = &end_noise()
    return noise.text[:noise.length] if noise.length else b""

# Safe without the GIL: the state is thread-local, and a mutex guards the redirection.
# cython: freethreading_compatible = True
"""Captures the lines that image codecs print about damaged files. See codec_stderr.hpp."""

from native.images.codec_stderr cimport Noise, begin_noise, end_noise


def begin() -> None:
    """Capture what this thread writes to the C library's stderr stream until `end`.

    Calls do not nest. Each must be followed by `end` on the same thread. Python's `sys.stderr`,
    file descriptor 2 and other threads are not affected.
    """
    begin_noise()


def end() -> bytes:
    """Stop capturing.

    Returns:
        The first 200 bytes that were written, or b"".
    """
    cdef const Noise *noise = &end_noise()
    return noise.text[:noise.length] if noise.length else b""

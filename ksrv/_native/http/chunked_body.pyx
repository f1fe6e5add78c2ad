# What was found is written by the call that finds it.
# cython: freethreading_compatible = True
"""The look at chunked bodies, as the tests see it."""

from libc.stddef cimport size_t


cdef extern from "http/chunked_body.hpp" namespace "ksrv" nogil:
    cdef enum class Chunks(unsigned char):
        incomplete
        whole
        gunicorn

    cdef cppclass ChunkedBody:
        size_t at
        size_t decoded
        size_t chunks

    Chunks look_at_chunks(
        const unsigned char *data, size_t filled, size_t most_chunks, size_t most_bytes,
        ChunkedBody *seen
    ) noexcept
    void copy_chunks(const unsigned char *data, unsigned char *to) noexcept

FOUND = ("incomplete", "whole", "gunicorn")


def read_chunks(
    const unsigned char[::1] data not None, pieces=(), *, size_t most_chunks=65536,
    size_t most_bytes=1048576
):
    """Look at a chunked body as it comes, and decode it where it is whole.

    Args:
        data: The bytes behind the head.
        pieces: Sizes of earlier reads: the body is looked at behind each of them.
        most_chunks: Chunks that it may have.
        most_bytes: Bytes that its chunks may hold together.

    Returns:
        "incomplete", "whole" or "gunicorn"; where the body ends, if it is whole; its contents.
    """
    cdef ChunkedBody seen
    cdef Chunks found = Chunks.incomplete
    cdef size_t filled = 0, total = data.shape[0]
    cdef unsigned char[::1] into
    cdef const unsigned char *start = &data[0] if total else NULL
    seen.at = seen.decoded = seen.chunks = 0
    for piece in (*pieces, total):
        filled = min(total, filled + <size_t>piece)
        found = look_at_chunks(start, filled, most_chunks, most_bytes, &seen)
        if found != Chunks.incomplete:
            break
    if found != Chunks.whole:
        return FOUND[<Py_ssize_t>found], 0, b""
    contents = bytearray(seen.decoded)
    if seen.decoded:
        into = contents
        copy_chunks(start, &into[0])
    return "whole", seen.at, bytes(contents)

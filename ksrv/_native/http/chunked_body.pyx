# Safe without the GIL: each call writes only objects that it created.
# cython: freethreading_compatible = True
"""The decoder of chunked bodies, for tests."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from native.http.chunked_body cimport ChunkDecoder, ChunkFault

if not cython.compiled:
    from collections.abc import Iterable

FAULTS = ("none", "size", "size bits", "end", "count", "length", "trailer")


def read_chunks(
    bytes data not None,
    pieces: Iterable[int] = (),
    *,
    size_t most_chunks=65536,
    uint64_t most_bytes=1048576,
) -> tuple[str, int, bytes]:
    """Decode a chunked body that arrives in pieces.

    Args:
        data: The bytes that follow the head.
        pieces: Sizes of earlier reads. The decoder runs after each of them, on the bytes received
            so far.
        most_chunks: The most chunks that the body may have.
        most_bytes: The most bytes that all chunks together may announce.

    Returns:
        "incomplete", "whole" or one of `FAULTS`; the number of bytes read; the contents.
    """
    cdef ChunkDecoder decoder
    cdef size_t filled = 0, at = 0, total = len(data), run
    cdef const unsigned char *start = data
    contents = bytearray()
    decoder.begin(most_chunks)
    decoder.most_bytes = most_bytes
    for piece in (*pieces, total):
        filled = min(total, filled + <size_t>piece)
        while at < filled and not decoder.ended() and decoder.fault() == ChunkFault.none:
            at += decoder.read(start + at, filled - at)
            run = min(<uint64_t>(filled - at), decoder.run())
            if run:
                contents += data[at:at + run]
                decoder.take(run)
                at += run
    if decoder.fault() != ChunkFault.none:
        return FAULTS[<Py_ssize_t>decoder.fault()], at, bytes(contents)
    return ("whole" if decoder.ended() else "incomplete"), at, bytes(contents)

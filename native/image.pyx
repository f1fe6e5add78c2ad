"""Image headers and the threads that decode: what stands before and beside cv2.

The header reader is plain C++ and runs before any decoder; `DecodePool` splits a batch over a few
threads, of which the caller is one. The decoding itself is cv2's and is called from
`ksrv.engine.images`; this module does not import cv2.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t

from typing import NamedTuple


cdef extern from "image.hpp" namespace "ksrv" nogil:
    cdef enum HeaderError:
        HEADER_OK
        HEADER_UNKNOWN
        HEADER_TRUNCATED
        HEADER_DAMAGED
        HEADER_CHUNK
        HEADER_TEXTS

    const int COMPRESSED_TEXTS

    cdef cppclass ImageHeader:
        int format
        uint32_t width
        uint32_t height
        int channels
        int bit_depth
        int orientation
        int components
        uint32_t scans
        int pixel_bytes
        size_t chunk
        size_t announced
        size_t left

    HeaderError read_image_header(const unsigned char *data, size_t size, ImageHeader *header)


cdef extern from "decode_pool.hpp" namespace "ksrv" nogil:
    ctypedef void (*ChunkFunction)(void *context, size_t chunk) noexcept nogil

    cdef cppclass CDecodePool "ksrv::DecodePool":
        CDecodePool(size_t threads)
        size_t threads()
        void run(size_t chunks, ChunkFunction function, void *context) noexcept


FORMATS = ("jpeg", "png", "webp", "bmp", "tiff", "gif")


class ImageError(ValueError):
    """Bytes whose header does not say what picture follows."""


class Header(NamedTuple):
    """What a picture's header says.

    Attributes:
        format: One of `FORMATS`.
        channels: As cv2 decodes unchanged; 0 where the header does not tell.
        bit_depth: Bits of a decoded sample, 8 or 16.
        orientation: EXIF's, from 1 to 8; 1 is upright.
        components: Of a JPEG; 0 for other formats.
        scans: Of a JPEG, each of which is a pass over its pixels; 1 where the first holds them all.
        pixel_bytes: What the decoder holds for one pixel at its peak.
    """

    format: str
    width: int
    height: int
    channels: int
    bit_depth: int
    orientation: int
    components: int
    scans: int
    pixel_bytes: int


# From here on the walk may take long enough for other threads to want the GIL.
cdef enum:
    LONG = 1 << 20

cdef tuple _NAMES = ("unknown", *FORMATS)


def probe(data) -> Header:
    """Read the header of an encoded picture; no pixel memory is allocated.

    Args:
        data: The whole file, as any contiguous buffer.

    Returns:
        The header.

    Raises:
        ImageError: There is nothing, no known format, no header that can be followed, or a part
            that announces more than the file holds.
    """
    cdef Py_buffer view
    cdef ImageHeader header
    cdef HeaderError error
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < LONG:
            error = read_image_header(<const unsigned char *>view.buf, <size_t>view.len, &header)
        else:
            with nogil:
                error = read_image_header(
                    <const unsigned char *>view.buf, <size_t>view.len, &header
                )
        if view.len == 0:
            raise ImageError("there are no bytes")
    finally:
        PyBuffer_Release(&view)
    if error == HEADER_UNKNOWN:
        raise ImageError("the first bytes are of no known image format")
    name = _NAMES[header.format]
    if error == HEADER_TRUNCATED:
        raise ImageError(f"the {name.upper()} ends before its dimensions")
    if error == HEADER_DAMAGED:
        raise ImageError(f"the {name.upper()} header is damaged")
    if error == HEADER_CHUNK:
        raise ImageError(
            f"the {name.upper()}'s chunk at byte {header.chunk} announces {header.announced} bytes"
            f" and 4 of checksum, and {header.left} are left"
        )
    if error == HEADER_TEXTS:
        raise ImageError(
            f"the {name.upper()} has more than {COMPRESSED_TEXTS} compressed texts"
        )
    return Header(
        name, header.width, header.height, header.channels, header.bit_depth, header.orientation,
        header.components, header.scans, header.pixel_bytes,
    )


cdef struct Share:
    PyObject *work
    PyObject *failure
    size_t count
    size_t chunks


cdef void _run_chunk(void *context, size_t chunk) noexcept nogil:
    cdef Share *share = <Share *>context
    # The first chunks are one longer when the count does not divide evenly.
    cdef size_t start = share.count * chunk // share.chunks
    cdef size_t stop = share.count * (chunk + 1) // share.chunks
    with gil:
        try:
            (<object>share.work)(start, stop)
        except BaseException as error:
            (<list>share.failure).append(error)


cdef class DecodePool:
    """Threads that decode batches, the caller's among them.

    Args:
        threads: How many threads work on one batch, the caller included; 1 or more.

    Raises:
        ValueError: There is no thread.
    """

    cdef CDecodePool *pool

    def __cinit__(self, Py_ssize_t threads):
        if threads < 1:
            raise ValueError(f"a pool has 1 thread or more, not {threads}")
        self.pool = new CDecodePool(<size_t>threads)

    def __dealloc__(self):
        # Helpers that wait for the GIL must get it before they can be joined.
        cdef CDecodePool *pool = self.pool
        if pool != NULL:
            with nogil:
                del pool

    @property
    def threads(self):
        """How many threads work on one batch."""
        return self.pool.threads()

    def run(self, work, Py_ssize_t count, Py_ssize_t chunks) -> None:
        """Call `work(start, stop)` until the ranges have covered `count` items.

        Args:
            work: Called on several threads at once, with the GIL; it pays when it releases it.
            count: The number of items.
            chunks: How many ranges to make of them; with 1, everything runs on this thread.

        Raises:
            ValueError: A negative count.
            BaseException: What `work` raised first; the other ranges have run all the same.
        """
        cdef Share share
        cdef list failures = []
        if count < 0:
            raise ValueError(f"there are 0 items or more, not {count}")
        if count == 0:
            return
        share.work = <PyObject *>work
        share.failure = <PyObject *>failures
        share.count = <size_t>count
        share.chunks = <size_t>max(1, min(chunks, count))
        with nogil:
            self.pool.run(share.chunks, _run_chunk, &share)
        if failures:
            raise failures[0]

# Every call works on its own job; the decompressor is the thread's.
# cython: freethreading_compatible = True
"""JPEGs by libjpeg-turbo: whole, or resized and converted row by row while they are decoded.

The functions release the GIL while they work. They tell by False that they leave a file to another
decoder; see native/image/jpeg_decoder.hpp.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

from ksrv._native.image.convert_pixels cimport (
    Coefficients, Conversion, PIXEL_U8, PIXEL_U16, PixelTarget, Plane,
)


cdef extern from "image/jpeg_decoder.hpp" namespace "ksrv" nogil:
    cdef enum class PixelOrder(int):
        grey
        bgr
        rgb

    cdef enum class Decoded(int):
        whole
        elsewhere
        no_memory

    cdef cppclass JpegJob:
        const unsigned char *data
        size_t size
        PixelOrder order
        unsigned int reduction
        uint32_t height
        uint32_t width

    cdef cppclass RowReceiver:
        void take(uint32_t row, const uint8_t *pixels) noexcept

    cdef cppclass WholePicture(RowReceiver):
        WholePicture(uint8_t *pixels, Py_ssize_t row_bytes)

    bint has_jpeg_decoder() noexcept
    const char *jpeg_decoder_version() noexcept
    Decoded decode_jpeg(const JpegJob &job, RowReceiver &receiver) noexcept


cdef extern from "image/resize_linear.hpp" namespace "ksrv" nogil:
    cdef cppclass LinearJob:
        size_t height
        size_t width
        size_t channels
        size_t full_height
        size_t full_width
        size_t top
        size_t left
        size_t out_height
        size_t out_width

    cdef cppclass LinearResize(RowReceiver):
        LinearResize(
            const LinearJob &job, int sample, const PixelTarget &target,
            const Coefficients &coefficients
        )
        bint prepare() noexcept


VERSION = jpeg_decoder_version().decode() if has_jpeg_decoder() else ""
"""libjpeg-turbo's version; "" where ksrv was built without it."""

ORDERS = {"GRAY": <int>PixelOrder.grey, "BGR": <int>PixelOrder.bgr, "RGB": <int>PixelOrder.rgb}


cdef int _fill_job(
    JpegJob *job, const Py_buffer *file, str order, int reduction, Py_ssize_t height,
    Py_ssize_t width
) except -1:
    if reduction not in (1, 2, 4, 8):
        raise ValueError(f"a JPEG is reduced by 1, 2, 4 or 8, not {reduction}")
    job.data = <const unsigned char *>file.buf
    job.size = <size_t>file.len
    job.order = <PixelOrder><int>ORDERS[order]
    job.reduction = <unsigned int>reduction
    job.height, job.width = <uint32_t>height, <uint32_t>width
    return 0


cdef bint _is_whole(Decoded result) except -1:
    if result == Decoded.no_memory:
        raise MemoryError("there is no memory to decode the picture")
    return result == Decoded.whole


def decode_jpeg_into(file, picture, str order, int reduction=1):
    """Decode a JPEG into memory.

    Args:
        file: The whole file.
        picture: uint8 [height, width, channels], writable, of the file's size divided by
            `reduction` and rounded up.
        order: "GRAY" for one channel, "BGR" or "RGB" for three.
        reduction: By what the decoder scales down: 1, 2, 4 or 8.

    Returns:
        Whether the picture was decoded. If not, it holds anything, and another decoder must look:
        the file is damaged, or not in grey or YCbCr with 8 bits a sample.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
        MemoryError: There is no memory for the decoder.
        BufferError: `picture` is read-only.
    """
    cdef Plane plane = Plane(picture, "picture", True)
    cdef JpegJob job
    cdef Py_buffer view
    cdef WholePicture *receiver
    cdef Decoded result
    if plane.format != "B" or plane.channels != (1 if order == "GRAY" else 3):
        raise ValueError(f"a picture in {order} has {plane.channels} channels of {plane.format!r}")
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        _fill_job(&job, &view, order, reduction, plane.height, plane.width)
        receiver = new WholePicture(<uint8_t *>plane.view.buf, plane.row_bytes)
        try:
            with nogil:
                result = decode_jpeg(job, receiver[0])
        finally:
            del receiver
    finally:
        PyBuffer_Release(&view)
    return _is_whole(result)


cdef int _fill_linear(
    LinearJob *job, Py_ssize_t height, Py_ssize_t width, Py_ssize_t channels, full, offset,
    Plane slot
) except -1:
    full_height, full_width = full
    top, left = offset
    if not (0 <= top <= full_height - slot.height and 0 <= left <= full_width - slot.width):
        raise ValueError(
            f"a window of {slot.width}x{slot.height} at {left},{top} lies outside of"
            f" {full_width}x{full_height}"
        )
    if 0 in (height, width, slot.height, slot.width):
        raise ValueError("a picture without pixels cannot be resized")
    job.height, job.width, job.channels = <size_t>height, <size_t>width, <size_t>channels
    job.full_height, job.full_width = full_height, full_width
    job.top, job.left = top, left
    job.out_height, job.out_width = <size_t>slot.height, <size_t>slot.width
    return 0


def decode_jpeg_linear(
    file, size, target, Conversion conversion not None, full, offset=(0, 0), *, str order,
    int reduction=1, bint bfloat16=False
):
    """Decode a JPEG, resize it linearly as floats, and convert it, without keeping a whole picture.

    Args:
        file: The whole file.
        size: The file's height and width, divided by `reduction` and rounded up.
        target: [height, width, channels], as for `Conversion`: a window of the resized picture.
        conversion: From the resized floats to the numbers of `target`.
        full: Height and width of the whole resized picture.
        offset: Top and left of the window in it.
        order: As for `decode_jpeg_into`.
        reduction: As for `decode_jpeg_into`.
        bfloat16: Whether a uint16 `target` holds the bit patterns of BF16.

    Returns:
        As `decode_jpeg_into`.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
        MemoryError: There is no memory for the decoder or its rows.
        BufferError: `target` is read-only.
    """
    cdef Plane slot = Plane(target, "target", True)
    cdef Py_ssize_t channels = 1 if order == "GRAY" else 3
    cdef PixelTarget to
    cdef LinearJob linear
    cdef LinearResize *receiver
    cdef JpegJob job
    cdef Py_buffer view
    cdef Decoded result = Decoded.no_memory
    height, width = size
    conversion.aim(slot, channels, False, bfloat16, &to)
    _fill_linear(&linear, height, width, channels, full, offset, slot)
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        _fill_job(&job, &view, order, reduction, height, width)
        receiver = new LinearResize(linear, PIXEL_U8, to, conversion.coefficients)
        try:
            with nogil:
                if receiver.prepare():
                    result = decode_jpeg(job, receiver[0])
        finally:
            del receiver
    finally:
        PyBuffer_Release(&view)
    return _is_whole(result)


def resize_linear(
    source, target, Conversion conversion not None, full, offset=(0, 0), *, bint bfloat16=False
):
    """Resize a picture linearly as floats and convert it, as `decode_jpeg_linear` does.

    Args:
        source: uint8 or uint16 [height, width, channels].
        target: [height, width, channels]: a window of the resized picture.
        conversion: From the resized floats to the numbers of `target`.
        full: Height and width of the whole resized picture.
        offset: Top and left of the window in it.
        bfloat16: Whether a uint16 `target` holds the bit patterns of BF16.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
        MemoryError: There is no memory for two rows.
        BufferError: `target` is read-only.
    """
    cdef Plane picture = Plane(source, "source")
    cdef Plane slot = Plane(target, "target", True)
    cdef PixelTarget to
    cdef LinearJob linear
    cdef LinearResize *receiver
    cdef Py_ssize_t row
    cdef bint prepared
    if picture.format not in ("B", "H"):
        raise ValueError(f"pixels of format {picture.format!r} are not resized like this")
    conversion.aim(slot, picture.channels, False, bfloat16, &to)
    _fill_linear(&linear, picture.height, picture.width, picture.channels, full, offset, slot)
    receiver = new LinearResize(
        linear, PIXEL_U8 if picture.format == "B" else PIXEL_U16, to, conversion.coefficients
    )
    try:
        with nogil:
            prepared = receiver.prepare()
            if prepared:
                for row in range(picture.height):
                    receiver.take(
                        <uint32_t>row, <const uint8_t *>picture.view.buf + row * picture.row_bytes
                    )
    finally:
        del receiver
    if not prepared:
        raise MemoryError("there is no memory to resize the picture")

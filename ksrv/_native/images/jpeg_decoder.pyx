# Every call works on its own job; the rows are the thread's.
# cython: freethreading_compatible = True
"""JPEGs by libjpeg-turbo, as whole pictures; native/images/resize resizes them by rows.

The GIL is released while a picture is decoded. False says that a file is left to another decoder;
see native/images/decode/jpeg_decoder.hpp.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t

from ksrv._native.images.convert_pixels cimport Plane
from ksrv._native.memory.exported_bytes cimport ExportedBytes

if not cython.compiled:
    from ksrv.request import Array, Element


VERSION: str = jpeg_decoder_version().decode() if has_jpeg_decoder() else ""
"""libjpeg-turbo's version; "" where ksrv was built without it."""

READS_CODES: bool = library_tells_mcus()
"""Whether ksrv reads the Huffman codes of baseline files itself."""

ORDERS: dict[str, int] = {
    "GRAY": <int>PixelOrder.grey, "BGR": <int>PixelOrder.bgr, "RGB": <int>PixelOrder.rgb,
}


cdef int fill_job(
    JpegJob *job, const ExportedBytes &file, str order, int reduction, Py_ssize_t height,
    Py_ssize_t width
) except -1:
    if reduction not in (1, 2, 4, 8):
        raise ValueError(f"a JPEG is reduced by 1, 2, 4 or 8, not {reduction}")
    job.data, job.size = file.data, file.length
    job.order = <PixelOrder><int>ORDERS[order]
    job.reduction = <unsigned int>reduction
    job.height, job.width = <uint32_t>height, <uint32_t>width
    return 0


cdef bint is_whole(Decoded result) except -1:
    if result == Decoded.no_memory:
        raise MemoryError("there is no memory to decode the picture")
    return result == Decoded.whole


def decode_jpeg_into(
    file: Element,
    picture: Array,
    str order,
    int reduction=1,
    *,
    bint codes_by_library=False,
) -> bool:
    """Decode a JPEG into memory.

    Args:
        picture: uint8 [height, width, channels], writable, of the file's size divided by
            `reduction` and rounded up.
        order: "GRAY" for one channel, "BGR" or "RGB" for three.
        reduction: By what the decoder scales down: 1, 2, 4 or 8.
        codes_by_library: Leaves Huffman codes to the library, to compare the two.

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
    cdef ExportedBytes held
    cdef WholePicture *receiver
    cdef Decoded result
    if plane.format != "B" or plane.channels != (1 if order == "GRAY" else 3):
        raise ValueError(f"a picture in {order} has {plane.channels} channels of {plane.format!r}")
    held.take(file)
    fill_job(&job, held, order, reduction, plane.height, plane.width)
    job.codes_by_library = codes_by_library
    receiver = new WholePicture(<uint8_t *>plane.view.buf, plane.row_bytes)
    try:
        with nogil:
            result = decode_jpeg(job, receiver[0])
    finally:
        del receiver
    return is_whole(result)

# Safe without the GIL: each call has a separate job, and the row memory is thread-local.
# cython: freethreading_compatible = True
"""Decodes whole JPEGs with libjpeg-turbo (native/images/decode/jpeg_decoder.hpp), without the GIL.

`row_plan` decodes a JPEG row by row instead, if it is also resized.
"""

cimport cython
from libc.stdint cimport uint32_t, uint8_t

from native.images.decode.jpeg_decoder cimport (
    Decoded, JpegJob, PixelOrder, WholePicture, decode_jpeg, jpeg_decoder_version,
)

from ksrv._native.images.convert_pixels cimport Plane
from ksrv._native.memory.exported_bytes cimport ExportedBytes

if not cython.compiled:
    from ksrv.request import Array, Element


VERSION: str = jpeg_decoder_version().decode()
"""libjpeg-turbo's version. "" if ksrv was built without it."""

ORDERS: dict[str, int] = {
    "GRAY": <int>PixelOrder.grey, "BGR": <int>PixelOrder.bgr, "RGB": <int>PixelOrder.rgb,
}


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
        file: The bytes of the JPEG.
        picture: uint8 [height, width, channels], writable. Height and width are the file's, divided
            by `reduction` and rounded up.
        order: "GRAY" for one channel, "BGR" or "RGB" for three.
        reduction: The factor by which the decoder scales down: 1, 2, 4 or 8.
        codes_by_library: Let the library decode Huffman codes, to compare both implementations.

    Returns:
        Whether the picture was decoded. If not, its contents are undefined and another decoder must
        read the file: it is damaged, or not 8-bit grey or YCbCr.

    Raises:
        ValueError: Sizes, channels or types that do not fit.
        MemoryError: Not enough memory for the decoder.
        BufferError: `picture` is read-only.
    """
    cdef Plane plane = Plane(picture, "picture", True)
    cdef JpegJob job
    cdef ExportedBytes held
    cdef WholePicture *receiver
    cdef Decoded result
    if plane.format != "B" or plane.channels != (1 if order == "GRAY" else 3):
        raise ValueError(f"a picture in {order} has {plane.channels} channels of {plane.format!r}")
    if reduction not in (1, 2, 4, 8):
        raise ValueError(f"a JPEG is reduced by 1, 2, 4 or 8, not {reduction}")
    held.take(file)
    job.data, job.size = held.data, held.length
    job.order = <PixelOrder><int>ORDERS[order]
    job.reduction = <unsigned int>reduction
    job.height, job.width = <uint32_t>plane.height, <uint32_t>plane.width
    job.codes_by_library = codes_by_library
    receiver = new WholePicture(<uint8_t *>plane.view.buf, plane.row_bytes)
    try:
        with nogil:
            result = decode_jpeg(job, receiver[0])
    finally:
        del receiver
    if result == Decoded.no_memory:
        raise MemoryError("not enough memory to decode the picture")
    return result == Decoded.whole

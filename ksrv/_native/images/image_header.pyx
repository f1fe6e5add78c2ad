# Safe without the GIL: functions use only local variables.
# cython: freethreading_compatible = True
"""Reads the headers of encoded images, before a decoder sees the file."""

from typing import NamedTuple

cimport cython

from native.images.decode.cost cimport (
    SLOW_DECODE_NS as NATIVE_SLOW_DECODE_NS, decode_ns, row_decoder_bytes,
)
from native.images.image_header cimport (
    MOST_COMPRESSED_TEXTS, ImageFault, ImageHeader, read_image_header,
)
from native.tensor.image_signature cimport (
    IMAGE_JPEG2000 as FIRST_NOT_DECODED, ImageFormat, image_format_name,
)

from ksrv._native.memory.exported_bytes cimport ExportedBytes

if not cython.compiled:
    from typing_extensions import Buffer

SLOW_DECODE_NS: int = NATIVE_SLOW_DECODE_NS
"""From this decode time on, the pictures of a request are decoded on a separate thread."""


FORMATS: tuple[str, ...] = tuple(
    image_format_name(<ImageFormat>code).decode("ascii")
    for code in range(1, <int>FIRST_NOT_DECODED)
)
"""The formats that are decoded. The codes of other formats, which are only recognized, follow."""


class ImageError(ValueError):
    """The header does not describe a picture. The message lacks a subject, which callers add."""


class UnknownFormat(ImageError):
    """The bytes are not in a supported image format."""


class Header(NamedTuple):
    """The properties of a picture, as its header states them.

    Attributes:
        format: One of `FORMATS`.
        channels: As cv2 decodes with IMREAD_UNCHANGED; 0 if the header does not say.
        bit_depth: Bits of a decoded sample, 8 or 16.
        orientation: EXIF orientation of the decoded picture, from 1 (upright) to 8. The decoder
            already turns a TIFF, so its width and height are of the turned picture.
        components: Number of components of a JPEG; 0 for other formats.
        scans: Number of scans of a JPEG; each is a pass over all pixels. 1 if the first scan has
            all components.
        pixel_bytes: Bytes per pixel that the decoder needs at its peak.
        stored_bits: Bits of a sample in a JPEG or TIFF. The decoder may not support the value.
        coding: The frame marker of a JPEG, or the Compression tag of a TIFF; 0 for other formats.
        separate: Whether a TIFF stores each channel in a separate plane.
        decode_ns: About how many nanoseconds one thread takes to decode the picture.
        row_decoder_bytes: The peak memory, in bytes, of decoding a JPEG row by row.
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
    stored_bits: int
    coding: int
    separate: bool
    decode_ns: int
    row_decoder_bytes: int


cdef enum:
    # From this size on, reading a header may take so long that other threads need the GIL: a TIFF
    # or PNG can have many parts in front of the picture.
    LONG_FILE_BYTES = 1 << 20


def probe(data: Buffer) -> Header:
    """Read the header of an encoded picture. Allocates no memory for pixels.

    Args:
        data: The whole file, as any contiguous buffer.

    Raises:
        ImageError: The file is empty, its format is unknown, its header is damaged, or a part
            announces more bytes than the file has.
    """
    cdef ExportedBytes file
    cdef ImageHeader header
    cdef ImageFault error
    file.take(data)
    if file.length == 0:
        raise ImageError("cannot be read: the file is empty")
    if file.length < LONG_FILE_BYTES:
        error = read_image_header(file.data, file.length, &header)
    else:
        with nogil:
            error = read_image_header(file.data, file.length, &header)
    cdef const char *named = image_format_name(<ImageFormat>header.format)
    if named == NULL:
        raise UnknownFormat("cannot be read: the first bytes match no known image format")
    name = named.decode("ascii")
    if error == ImageFault.unknown_format:
        raise UnknownFormat(f"is {name}, which is not decoded")
    if error != ImageFault.none:
        raise ImageError(f"cannot be read: the {name.upper()}{_fault(error, header)}")
    return Header(
        name, header.width, header.height, header.channels, header.bit_depth, header.orientation,
        header.components, header.scans, header.pixel_bytes, header.stored_bits, header.coding,
        header.separate, decode_ns(header), row_decoder_bytes(header),
    )


cdef str _fault(ImageFault error, const ImageHeader &header):
    if error == ImageFault.truncated:
        return " ends before its dimensions"
    if error == ImageFault.damaged:
        return " header is damaged"
    if error == ImageFault.texts:
        return f" has more than {MOST_COMPRESSED_TEXTS} compressed texts"
    return (
        f"'s chunk at byte {header.chunk} announces {header.announced} bytes and 4 of checksum,"
        f" and {header.left} are left"
    )

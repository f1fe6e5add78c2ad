# Locals.
# cython: freethreading_compatible = True
"""Headers of encoded images, read before any decoder sees the file."""

from typing import NamedTuple

cimport cython
from ksrv._native.memory.exported_bytes cimport ExportedBytes
from ksrv._native.tensor.bytes_tensor cimport ImageFormat, image_format_name

if not cython.compiled:
    from typing_extensions import Buffer

DECODED_APART_NS: int = DECODED_APART
"""From here on a request's pictures are decoded apart from those of other requests."""


FORMATS = ("jpeg", "png", "webp", "bmp", "tiff", "gif")


class ImageError(ValueError):
    """Bytes whose header does not say what picture follows; the text follows a name for them."""


class UnknownFormat(ImageError):
    """Bytes of no format that is decoded."""


class Header(NamedTuple):
    """What a picture's header says.

    Attributes:
        format: One of `FORMATS`.
        channels: As cv2 decodes unchanged; 0 where the header does not tell.
        bit_depth: Bits of a decoded sample, 8 or 16.
        orientation: How EXIF turns the decoded picture, from 1 to 8; 1 is upright. A TIFF is turned
            by its decoder, and its width and height are those it has then.
        components: Of a JPEG; 0 for other formats.
        scans: Of a JPEG, each of which is a pass over its pixels; 1 where the first holds them all.
        pixel_bytes: What the decoder holds for one pixel at its peak.
        stored_bits: Bits of a sample in a JPEG or TIFF, which may be of no variant that is decoded.
        coding: Of a JPEG the marker of its frame, of a TIFF its Compression; 0 for other formats.
        separate: Whether a TIFF stores each channel apart.
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


# From here on the walk may take long enough for other threads to want the GIL.
cdef enum:
    LONG_FILE_BYTES = 1 << 20


def probe(data: Buffer) -> Header:
    """Read the header of an encoded picture; no pixel memory is allocated.

    Args:
        data: The whole file, as any contiguous buffer.

    Raises:
        ImageError: There is nothing, no known format, no header that can be followed, or a part
            that announces more than the file holds.
    """
    cdef ExportedBytes file
    cdef ImageHeader header
    cdef ImageFault error
    file.take(data)
    if file.length == 0:
        raise ImageError("cannot be read: there are no bytes")
    if file.length < LONG_FILE_BYTES:
        error = read_image_header(file.data, file.length, &header)
    else:
        with nogil:
            error = read_image_header(file.data, file.length, &header)
    cdef const char *named = image_format_name(<ImageFormat>header.format)
    if named == NULL:
        raise UnknownFormat("cannot be read: the first bytes are of no known image format")
    name = named.decode("ascii")
    if error == ImageFault.unknown_format:
        raise UnknownFormat(f"is {name}, which is not decoded")
    if error != ImageFault.none:
        raise ImageError(f"cannot be read: the {name.upper()}{_fault(error, header)}")
    return Header(
        name, header.width, header.height, header.channels, header.bit_depth, header.orientation,
        header.components, header.scans, header.pixel_bytes, header.stored_bits, header.coding,
        header.separate,
    )


cdef str _fault(ImageFault error, const ImageHeader &header):
    if error == ImageFault.truncated:
        return " ends before its dimensions"
    if error == ImageFault.damaged:
        return " header is damaged"
    if error == ImageFault.texts:
        return f" has more than {COMPRESSED_TEXTS} compressed texts"
    return (
        f"'s chunk at byte {header.chunk} announces {header.announced} bytes and 4 of checksum,"
        f" and {header.left} are left"
    )


cdef ImageHeader known_header(header) except *:
    cdef ImageHeader known
    known.width, known.height = header.width, header.height
    known.channels, known.components = header.channels, header.components
    known.scans, known.pixel_bytes = header.scans, header.pixel_bytes
    known.orientation = header.orientation
    return known


def decode_ns(header: Header) -> int:
    """Return about how many nanoseconds one thread takes to decode a picture.

    Args:
        header: Its `Header`.
    """
    return c_decode_ns(known_header(header))


def row_decoder_bytes(header: Header) -> int:
    """Return the bytes that a JPEG's decoder holds at its peak where no whole picture is kept.

    Args:
        header: Its `Header`.
    """
    return c_row_decoder_bytes(known_header(header))

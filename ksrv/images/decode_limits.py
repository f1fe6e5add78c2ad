"""The header of an encoded image, checked against the limits before the image is decoded.

Everything that decodes an image for a client asks here first: the rows of a batch in the worker, and
handlers in separate processes.
"""

from collections.abc import Collection

from ksrv._native.images.image_header import FORMATS, Header, ImageError, UnknownFormat, probe
from ksrv.limits import Limits, show_limit
from ksrv.request import Element

SCANS_PER_COMPONENT = 10
"""Scans of a JPEG that each of its components adds to the limit: what progressive files really have."""


TIFF_CODINGS = {
    6: "old-style JPEG",
    34661: "JBIG",
    34887: "LERC",
    34925: "LZMA",
    50000: "Zstandard",
    50001: "WebP",
}
"""Compressions of TIFF that libtiff knows and cv2's is built without."""


class ImageRefused(ValueError):
    """An image that is not decoded; the text goes behind a name for it: "is gif, and ..."."""


class LimitPassed(ImageRefused):
    """An image that may be sound and asks for more than a limit allows."""


class _Process:
    """The limits of this process, for functions that handlers call without any settings."""

    limits = Limits()


_process = _Process()


def set_process_limits(limits: Limits) -> None:
    """Set the limits of this process; a handler's process gets the server's limits."""
    _process.limits = limits


def process_limits() -> Limits:
    """Return the limits for images that a handler decodes in this process."""
    return _process.limits


def checked_header(element: Element, limits: Limits, formats: Collection[str] = FORMATS) -> Header:
    """Return the header of an image that may be decoded.

    Raises:
        ImageRefused: No header that can be read, a part that announces more bytes than the file has,
            a format that is not accepted, no pixels.
        LimitPassed: Too many pixels or scans.
    """
    accepted = ", ".join(formats)
    try:
        header = probe(element)
    except UnknownFormat as error:
        raise ImageRefused(f"{error}; the accepted formats are {accepted}") from None
    except ImageError as error:
        raise ImageRefused(f"{error}; expected a whole, undamaged file") from None
    if header.format not in formats:
        raise ImageRefused(f"is {header.format}, and the accepted formats are {accepted}")
    if header.width == 0 or header.height == 0:
        raise ImageRefused(f"has no pixels: it is {header.width}x{header.height}")
    if header.width * header.height > limits.image_pixels:
        raise LimitPassed(
            f"has {header.width}x{header.height} pixels, above the"
            f" {show_limit('image_pixels', limits.image_pixels)}"
        )
    most = limits.image_scans + SCANS_PER_COMPONENT * header.components
    if header.scans > most:
        raise LimitPassed(
            f"has {header.scans} scans, above the {most} of a JPEG of {header.components}"
            f" components under the {show_limit('image_scans', limits.image_scans)}"
        )
    return header


def not_decoded(header: Header) -> str:
    """Return why the decoder refuses a file whose header is accepted."""
    bits = f"{header.stored_bits} bits a sample"
    match header.format, header.coding:
        case "jpeg", 0xF7:
            return "is a JPEG-LS file, which is not decoded; save it as a usual JPEG or a PNG"
        case "jpeg", 0xC3 | 0xCB:
            return f"is a lossless JPEG of {bits}, which is not decoded; save it as a PNG"
        case "tiff", coding if name := TIFF_CODINGS.get(coding):
            return f"is a TIFF compressed with {name}, which is not decoded; save it with LZW or Deflate"
        case (("jpeg" | "tiff"), _) if header.stored_bits not in (1, 8, 16):
            return (
                f"is a {header.format.upper()} of {bits}, which is not decoded; save it with 8 bits"
            )
    variant = ", or of a variant that is not decoded" * (header.format in ("bmp", "tiff"))
    return (
        f"is not a whole {header.format.upper()}: it cannot be decoded; the file is cut off or"
        f" damaged{variant}"
    )


def decoder_bytes(header: Header) -> int:
    """Return the bytes that the decoder holds at its peak: its pixels, and its work on them."""
    return header.width * header.height * header.pixel_bytes

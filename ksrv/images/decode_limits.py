"""The header of an encoded image, checked against the limits before the image is decoded.

Call `checked_header` before decoding an image of a client. The worker does so for the rows of a batch; handlers in
separate processes do so with the limits that `set_process_limits` gave the process. A small file can announce a huge
picture, so the limits apply to the header.
"""

from collections.abc import Collection

from ksrv._native.images.image_header import FORMATS, Header, ImageError, UnknownFormat, probe
from ksrv.limits import Limits, show_limit
from ksrv.request import Element

SCANS_PER_COMPONENT = 10
"""Scans that each component of a JPEG adds to the limit `image_scans`: progressive files have about as many."""

TIFF_CODINGS = {
    6: "old-style JPEG",
    34661: "JBIG",
    34887: "LERC",
    34925: "LZMA",
    50000: "Zstandard",
    50001: "WebP",
}
"""The compressions of TIFF that cv2's build of libtiff lacks, by their numbers in the file."""


class ImageRefused(ValueError):
    """An image is not decoded. The text is the predicate of a sentence about the image: "is gif, and ..."."""


class LimitPassed(ImageRefused):
    """An image that exceeds a limit, although the file may be undamaged."""


class _Process:
    """The limits of this process, for decoding functions that handlers call without settings."""

    limits = Limits()


_process = _Process()


def set_process_limits(limits: Limits) -> None:
    """Set the limits of this process. A handler process sets the server's limits when it starts."""
    _process.limits = limits


def process_limits() -> Limits:
    """Return the limits for images that a handler decodes in this process."""
    return _process.limits


def checked_header(element: Element, limits: Limits, formats: Collection[str] = FORMATS) -> Header:
    """Return the header of an image that may be decoded.

    Raises:
        ImageRefused: The header cannot be read, a part announces more bytes than the file has, the format is not
            accepted, or the image has no pixels.
        LimitPassed: The image has too many pixels or scans.
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
    # The coding is the SOF marker of a JPEG, or the compression of a TIFF.
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
    """Return the most bytes that the decoder needs at a time, for the pixels and its working memory."""
    return header.width * header.height * header.pixel_bytes

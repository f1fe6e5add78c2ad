"""The header of an encoded image, checked against the limits before the image is decoded.

Everything that decodes an image for a client asks here first: the rows of a batch in the worker, and
handlers in processes of their own.
"""

from collections.abc import Collection

from ksrv._native.images.image_header import FORMATS, Header, ImageError, UnknownFormat, probe
from ksrv.limits import Limits, show_limit
from ksrv.request import Element

SCANS_PER_COMPONENT = 10
"""Scans of a JPEG that each of its components adds to the limit: what progressive files really have."""


UNBOUNDED_BRANDS = {
    b"ftypavif": "avif",
    b"ftypavis": "avif",
    b"ftypheic": "heic",
    b"ftypheix": "heic",
    b"ftypmif1": "heif",
}
"""What files begin with, behind 4 bytes, whose decoders follow the coded picture and not the header: one that says
16x16 makes cv2 and Pillow decode 36 megapixels, and neither can be given a limit."""


class ImageRefused(ValueError):
    """An image that is not decoded; the text goes behind a name for it: "is gif, and ..."."""


class LimitPassed(ImageRefused):
    """An image that may be sound and asks for more than a limit allows."""


class _Process:
    """The limits of this process, for functions that handlers call without any settings."""

    limits = Limits()


_process = _Process()


def set_process_limits(limits: Limits) -> None:
    """Set the limits of this process; a handler's process gets those of the server."""
    _process.limits = limits


def process_limits() -> Limits:
    """Return the limits for images that a handler decodes in this process."""
    return _process.limits


def checked_header(element: Element, limits: Limits, formats: Collection[str] = FORMATS) -> Header:
    """Return the header of an image that may be decoded.

    Raises:
        ImageRefused: No header that can be followed, a part that announces more than the file holds,
            a format that is not accepted, no pixels.
        LimitPassed: Too many pixels or scans.
    """
    accepted = ", ".join(formats)
    try:
        header = probe(element)
    except ImageError as error:
        unbounded = UNBOUNDED_BRANDS.get(bytes(element[4:12]))
        if unbounded is not None:
            raise ImageRefused(
                f"is {unbounded}, which is not decoded because its decoders take no limit on pixels;"
                f" the accepted formats are {accepted}"
            ) from None
        remedy = (
            f"the accepted formats are {accepted}"
            if isinstance(error, UnknownFormat)
            else "expected a whole, undamaged file"
        )
        raise ImageRefused(f"cannot be read: {error}; {remedy}") from None
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


def decoder_bytes(header: Header) -> int:
    """Return the bytes that the decoder holds at its peak: its pixels, and its work on them."""
    return header.width * header.height * header.pixel_bytes

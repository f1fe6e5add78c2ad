"""Which decoder decodes JPEGs: libjpeg-turbo itself, or cv2's.

Both decode by libjpeg-turbo with the same settings, so they give the same pixels. ksrv's decoder, "libjpeg-turbo",
resizes rows while it decodes them. It leaves damaged and unusual files to cv2, so that only cv2 decides about them. A
worker takes the decoder that the setting `jpeg_decoder` names; `auto` is libjpeg-turbo if ksrv was built with it.
"""

from typing import Literal, TypeAlias

from ksrv._native.images import jpeg_decoder as native
from ksrv._native.images.image_header import Header

Decoder: TypeAlias = Literal["libjpeg-turbo", "cv2"]


class _Process:
    """The decoder of this process; None until it is chosen or first needed."""

    decoder: Decoder | None = None


_process = _Process()


def present_decoders() -> list[Decoder]:
    """Return the decoders that this installation has, the best one first."""
    return ["libjpeg-turbo", "cv2"] if native.VERSION else ["cv2"]


def choose(wanted: Decoder | Literal["auto"]) -> None:
    """Set the decoder of this process.

    Args:
        wanted: Its name; "auto" for the first that is there.

    Raises:
        ValueError: This installation does not have it.
    """
    present = present_decoders()
    if wanted == "auto":
        wanted = present[0]
    if wanted not in present:
        raise ValueError(
            f"the JPEG decoder {wanted} is not there; this installation has {', '.join(present)}"
        )
    _process.decoder = wanted


def decoder() -> Decoder:
    """Return the decoder that this process uses."""
    if _process.decoder is None:
        _process.decoder = present_decoders()[0]
    return _process.decoder


def decodes(header: Header) -> bool:
    """Tell whether libjpeg-turbo tries a picture before cv2 does."""
    if header.format != "jpeg" or header.components not in (1, 3) or header.bit_depth != 8:
        return False
    return decoder() == "libjpeg-turbo"

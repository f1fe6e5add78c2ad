"""Which decoder JPEGs go to: libjpeg-turbo itself, the one of the `simplejpeg` wheel, or cv2's.

All three are libjpeg-turbo with the same settings and give the same pixels. The first two leave what is
damaged or unusual to cv2, so that there is one opinion about every file; the first also resizes rows
while it decodes them. A worker takes the decoder that the setting `jpeg_decoder` names; `auto` is the first
that is there.
"""

from typing import Literal, TypeAlias

from ksrv._native.image import jpeg_decoder as native
from ksrv._native.image.image_header import Header
from ksrv.request import Array, Element

Decoder: TypeAlias = Literal["libjpeg-turbo", "simplejpeg", "cv2"]


class _Process:
    """The decoder of this process, once it was chosen or first asked for."""

    decoder: Decoder | None = None


_process = _Process()


def present_decoders() -> list[Decoder]:
    """Return the decoders that this installation has, the best one first."""
    present: list[Decoder] = ["cv2"]
    if _has_simplejpeg():
        present.insert(0, "simplejpeg")
    if native.VERSION:
        present.insert(0, "libjpeg-turbo")
    return present


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


def _has_simplejpeg() -> bool:
    try:
        import simplejpeg  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def decodes(header: Header) -> bool:
    """Tell whether another decoder than cv2 tries a picture first.

    Args:
        header: The picture's header.
    """
    if header.format != "jpeg" or header.components not in (1, 3) or header.bit_depth != 8:
        return False
    # What scans leave out each version of the library makes up in its own way, and simplejpeg does not tell.
    return decoder() == "libjpeg-turbo" or (decoder() == "simplejpeg" and header.scans == 1)


def decode_into(file: Element, picture: Array, order: str, reduction: int = 1) -> bool:
    """Decode a JPEG into memory; see `ksrv._native.image.jpeg_decoder.decode_jpeg_into`."""
    if decoder() == "libjpeg-turbo":
        return native.decode_jpeg_into(file, picture, order, reduction)
    return _decode_by_simplejpeg(file, picture, order, reduction)


def _decode_by_simplejpeg(file: Element, picture: Array, order: str, reduction: int) -> bool:
    import simplejpeg  # type: ignore[import-not-found,unused-ignore]

    if reduction != 1:  # it chooses reductions by the size, and not as cv2 does
        return False
    try:
        simplejpeg.decode_jpeg(file, order, buffer=picture, strict=True)
    except ValueError:
        return False
    return True

"""Which decoder JPEGs go to: libjpeg-turbo itself, the one of the `simplejpeg` wheel, or cv2's.

All three are libjpeg-turbo with the same settings and give the same pixels. The first two leave what is
damaged or unusual to cv2, so that there is one opinion about every file; the first also resizes rows
while it decodes them. KSRV_JPEG_DECODER names one of them; without it the first that is there is used.
"""

import functools
import os
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ksrv._native.image import jpeg_decoder as native
from ksrv._native.image.convert_pixels import Conversion
from ksrv._native.image.image_header import Header
from ksrv.request import Array, Element

Decoder: TypeAlias = Literal["libjpeg-turbo", "simplejpeg", "cv2"]

VARIABLE = "KSRV_JPEG_DECODER"


@functools.cache
def decoder() -> Decoder:
    """Return the decoder that this process uses.

    Raises:
        ValueError: The variable names a decoder that there is not.
    """
    present: list[Decoder] = ["cv2"]
    if _has_simplejpeg():
        present.insert(0, "simplejpeg")
    if native.VERSION:
        present.insert(0, "libjpeg-turbo")
    wanted = os.environ.get(VARIABLE, "") or present[0]
    if wanted not in present:
        raise ValueError(f"{VARIABLE} is {wanted!r}; this installation has {', '.join(present)}")
    return wanted


def _has_simplejpeg() -> bool:
    try:
        import simplejpeg  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def decodes(header: Header) -> bool:
    """Tell whether a picture is one that a decoder other than cv2 is asked for first.

    Args:
        header: The picture's header.
    """
    return (
        header.format == "jpeg"
        and header.components in (1, 3)
        and header.bit_depth == 8
        and decoder() != "cv2"
    )


def decode_into(file: Element, picture: Array, order: str, reduction: int = 1) -> bool:
    """Decode a JPEG into memory; see `ksrv._native.image.jpeg_decoder.decode_jpeg_into`."""
    if decoder() == "libjpeg-turbo":
        return native.decode_jpeg_into(file, picture, order, reduction)
    return _decode_by_simplejpeg(file, picture, order, reduction)


def decode_linear(
    file: Element,
    size: Sequence[int],
    target: Array,
    conversion: Conversion,
    full: Sequence[int],
    offset: Sequence[int],
    *,
    order: str,
    reduction: int,
    bfloat16: bool,
) -> bool:
    """Decode and resize a JPEG row by row; see `ksrv._native.image.jpeg_decoder`."""
    if decoder() != "libjpeg-turbo":
        return False
    return native.decode_jpeg_linear(
        file, size, target, conversion, full, offset,
        order=order, reduction=reduction, bfloat16=bfloat16,
    )  # fmt: skip


def _decode_by_simplejpeg(file: Element, picture: Array, order: str, reduction: int) -> bool:
    import simplejpeg  # type: ignore[import-not-found,unused-ignore]

    if reduction != 1:  # it chooses reductions by the size, and not as cv2 does
        return False
    try:
        simplejpeg.decode_jpeg(file, order, buffer=picture, strict=True)
    except ValueError:
        return False
    return True

"""The rules of an input's images: which inputs take them, and which keys of `image:` fit each other.

Settings files and the tensor types of handlers are checked by the same rules.
"""

from collections.abc import Iterator
from typing import Any

from ksrv.datatypes import FLOATING
from ksrv.spec import Dimension, ImageSpec

DATATYPES = ("FP32", "FP16", "FP64", "BF16", "UINT8", "INT8", "UINT16", "INT16", "INT32")


def default_image(datatype: str, shape: tuple[Dimension, ...]) -> ImageSpec | None:
    """Return how an input without an `image:` section takes images, or None where it takes none.

    Returns:
        OpenVINO Model Server's meaning for a 4-D NHWC batch of 1 or 3 channels.
    """
    if datatype in DATATYPES and len(shape) == 4 and shape[3] in (1, 3):
        return ImageSpec()
    return None


def problems(
    given: dict[str, Any], datatype: str, shape: tuple[Dimension, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the keys that do not fit, "" for the section itself, with the fault."""
    _, height, width, channels = shape
    side = given.get("shorter_side")
    if side is not None:
        if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 1:
            yield "shorter_side", "the centre crop needs a height and a width that are numbers"
        elif side < max(height, width):
            yield "shorter_side", f"{side} is smaller than the crop of {height} x {width}"
    color = given.get("color")
    if color == "GRAY" and channels not in (1, -1):
        yield "color", f"GRAY images have 1 channel; the shape says {channels}"
    if color not in (None, "GRAY") and channels == 1:
        yield "color", f"{color} images have 3 channels; the shape says 1"
    if channels not in (1, 3, 4, -1):
        yield "", f"an image has 1, 3 or 4 channels; the shape says {channels}"
    for key in ("mean", "std"):
        count = len(given.get(key, ()))
        if isinstance(channels, int) and channels > 0 and count not in (0, 1, channels):
            yield key, f"has {count} numbers for {channels} channels"
    if any(number <= 0 for number in given.get("std", ())):
        yield "std", "must be above 0"
    if datatype not in FLOATING:
        for key in ("scale", "mean", "std"):
            if key in given:
                yield key, f"needs a floating-point datatype, not {datatype}"
    resize = given.get("resize")
    if side is not None and resize in ("letterbox", "none"):
        yield "shorter_side", f"has no meaning beside resize: {resize}"

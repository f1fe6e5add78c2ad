"""The `image:` sections of inputs and outputs: their defaults, and which keys may stand together."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ksrv.datatypes import FLOATING
from ksrv.repository.model_keys import ImageSection, OutputImageSection
from ksrv.repository.yaml_document import Document, KeyPath
from ksrv.spec import Dimension, ImageSpec, OutputImageSpec

OUTPUT_DATATYPES = ("UINT8", "UINT16", "BOOL")

DATATYPES = ("FP32", "FP16", "FP64", "BF16", "UINT8", "INT8", "UINT16", "INT16", "INT32")


def default_image(datatype: str, shape: tuple[Dimension, ...]) -> ImageSpec | None:
    """Return how an input without an `image:` section takes images, or None where it takes none.

    Args:
        datatype: The input's datatype.
        shape: The input's shape.

    Returns:
        OpenVINO Model Server's meaning for a 4-D NHWC batch of 1 or 3 channels.
    """
    if datatype in DATATYPES and len(shape) == 4 and shape[3] in (1, 3):
        return ImageSpec()
    return None


def read_image(
    document: Document,
    path: KeyPath,
    section: ImageSection,
    datatype: str,
    shape: tuple[Dimension, ...],
) -> ImageSpec:
    """Return a checked `image:` section.

    Args:
        document: The file.
        path: Where the section stands.
        section: The section.
        datatype: The input's datatype.
        shape: The input's shape.

    Raises:
        ConfigError: A key does not fit the input or another key.
    """
    if len(shape) != 4:
        document.fail(
            path, f"an image input has the shape [-1, H, W, C], not {len(shape)} dimensions"
        )
    if datatype not in DATATYPES:
        document.fail(path, f"images become {', '.join(DATATYPES)}, not {datatype}")
    given = {
        key: value for key, value in msgspec.structs.asdict(section).items() if value is not None
    }
    for key, problem in _problems(given, datatype, shape):
        document.fail((*path, key) if key else path, problem)
    return ImageSpec(**{key: _plain(value) for key, value in given.items()})


def read_output_image(
    document: Document,
    path: KeyPath,
    section: OutputImageSection,
    datatype: str,
    shape: tuple[Dimension, ...],
) -> OutputImageSpec:
    """Return a checked `image:` section of an output.

    Args:
        document: The file.
        path: Where the section stands.
        section: The section.
        datatype: The output's datatype.
        shape: The output's shape.

    Raises:
        ConfigError: The output holds no pictures, or none of a format.
    """
    if len(shape) not in (3, 4) or shape[0] != -1:
        document.fail(path, "an output of images has the shape [-1, H, W] or [-1, H, W, C]")
    if datatype not in OUTPUT_DATATYPES:
        document.fail(path, f"images are made of {', '.join(OUTPUT_DATATYPES)}, not {datatype}")
    channels = shape[3] if len(shape) == 4 else 1
    if channels not in (1, 3, 4, -1):
        document.fail(path, f"an image has 1, 3 or 4 channels; the shape says {channels}")
    given = {
        key: value for key, value in msgspec.structs.asdict(section).items() if value is not None
    }
    jpeg = datatype != "UINT16" and channels != 4
    spec = OutputImageSpec(**{"formats": ("png", "jpeg") if jpeg else ("png",)} | {
        key: _plain(value) for key, value in given.items()
    })  # fmt: skip
    if "jpeg" in spec.formats and not jpeg:
        document.fail((*path, "formats"), "a JPEG has 8 bits and no alpha")
    return spec


def _plain(value: Any) -> Any:
    """The value without the class that read it, as `ImageSpec` and JSON know it."""
    if isinstance(value, (list, tuple)):
        return tuple(dict.fromkeys(value)) if isinstance(value, list) else tuple(value)
    return next((kind(value) for kind in (str, float) if isinstance(value, kind)), value)


def _problems(
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

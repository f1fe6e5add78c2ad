"""The `image:` section of an input: its keys, their defaults, and what may stand together."""

from ksrv.repository.yaml_document import Fields
from ksrv.spec import Dimension, ImageSpec

DATATYPES = ("FP32", "FP16", "FP64", "BF16", "UINT8", "INT8", "UINT16", "INT16", "INT32")
FLOATING = ("FP32", "FP16", "FP64", "BF16")
FORMATS = ("jpeg", "png")  # what an input takes unless it says otherwise
KNOWN_FORMATS = (*FORMATS, "webp", "bmp", "tiff", "gif")


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


def read_image(fields: Fields, datatype: str, shape: tuple[Dimension, ...]) -> ImageSpec:
    """Return a checked `image:` section.

    Args:
        fields: The section.
        datatype: The input's datatype.
        shape: The input's shape.

    Returns:
        The settings.

    Raises:
        ConfigError: A key is unknown, has a wrong value, or does not fit the input.
    """
    fields.only(*ImageSpec.__slots__)
    if len(shape) != 4:
        fields.document.fail(
            fields.path, f"an image input has the shape [-1, H, W, C], not {len(shape)} dimensions."
        )
    if datatype not in DATATYPES:
        fields.document.fail(fields.path, f"images become {', '.join(DATATYPES)}, not {datatype}.")
    image = ImageSpec(
        color=fields.choice("color", "BGR", ("RGB", "BGR", "GRAY")),
        channels=fields.choice("channels", "strict", ("strict", "convert")),
        exif=fields.choice("exif", "ignore", ("ignore", "apply")),
        resize=fields.choice("resize", "linear", ("linear", "area", "pillow", "letterbox", "none")),
        shorter_side=_shorter_side(fields, shape),
        scale=fields.number("scale", 1.0, 1e-12, 1e12),
        mean=fields.numbers("mean"),
        std=fields.numbers("std"),
        arithmetic=fields.choice("arithmetic", "fast", ("fast", "exact")),
        reduced=fields.choice("reduced", "off", ("off", "auto")),
        formats=_formats(fields),
        model_layout=fields.choice("model_layout", "NHWC", ("NHWC", "NCHW")),
    )
    _check_channels(fields, image, shape[3])
    _check_numbers(fields, image, datatype, shape[3])
    if image.shorter_side is not None and image.resize in ("letterbox", "none"):
        fields.fail("shorter_side", f"has no meaning beside resize: {image.resize}.")
    return image


def _shorter_side(fields: Fields, shape: tuple[Dimension, ...]) -> int | None:
    if "shorter_side" not in fields:
        return None
    side = fields.integer("shorter_side", 1, 1, 65_535)
    height, width = shape[1], shape[2]
    if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 1:
        fields.fail("shorter_side", "the centre crop needs a height and a width that are numbers.")
    if side < max(height, width):
        fields.fail("shorter_side", f"{side} is smaller than the crop of {height} x {width}.")
    return side


def _formats(fields: Fields) -> tuple[str, ...]:
    if "formats" not in fields:
        return FORMATS
    formats = fields.texts("formats")
    if not formats or not set(formats) <= set(KNOWN_FORMATS):
        fields.fail("formats", f"expected a list out of {', '.join(KNOWN_FORMATS)}.")
    return tuple(dict.fromkeys(formats))


def _check_channels(fields: Fields, image: ImageSpec, channels: Dimension) -> None:
    if image.color == "GRAY" and channels not in (1, -1):
        fields.fail("color", f"GRAY images have 1 channel; the shape says {channels}.")
    if "color" in fields and image.color != "GRAY" and channels == 1:
        fields.fail("color", f"{image.color} images have 3 channels; the shape says 1.")
    if channels not in (1, 3, 4, -1):
        fields.document.fail(
            fields.path, f"an image has 1, 3 or 4 channels; the shape says {channels}."
        )


def _check_numbers(fields: Fields, image: ImageSpec, datatype: str, channels: Dimension) -> None:
    for key, numbers in (("mean", image.mean), ("std", image.std)):
        if isinstance(channels, int) and channels > 0 and len(numbers) not in (0, 1, channels):
            fields.fail(key, f"has {len(numbers)} numbers for {channels} channels.")
    if any(number <= 0 for number in image.std):
        fields.fail("std", "must be above 0.")
    if datatype not in FLOATING:
        for key in ("scale", "mean", "std"):
            if key in fields:
                fields.fail(key, f"needs a floating-point datatype, not {datatype}.")

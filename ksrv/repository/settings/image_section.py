"""The `image:` sections of inputs and outputs, checked by the rules of `ksrv.model.input_rules`."""

from typing import Any

import msgspec

from ksrv.model.input_rules import DATATYPES, problems
from ksrv.model.spec import Dimension, ImageSpec, OutputImageSpec
from ksrv.repository.settings.keys import ImageSection, OutputImageSection
from ksrv.repository.yaml_document import Fault, KeyPath

OUTPUT_DATATYPES = ("UINT8", "UINT16", "BOOL")


def read_image(
    path: KeyPath,
    section: ImageSection,
    datatype: str,
    shape: tuple[Dimension, ...],
) -> ImageSpec:
    """Return a checked `image:` section.

    Args:
        path: The path of the section.

    Raises:
        Fault: A key does not fit the input or another key.
    """
    if len(shape) != 4:
        raise Fault(
            path, f"an image input has the shape [-1, H, W, C], not {len(shape)} dimensions"
        )
    if datatype not in DATATYPES:
        raise Fault(path, f"images become {', '.join(DATATYPES)}, not {datatype}")
    given = {
        key: value for key, value in msgspec.structs.asdict(section).items() if value is not None
    }
    for key, problem in problems(given, datatype, shape):
        raise Fault((*path, key) if key else path, problem)
    return ImageSpec(**{key: _plain(value) for key, value in given.items()})


def read_output_image(
    path: KeyPath,
    section: OutputImageSection,
    datatype: str,
    shape: tuple[Dimension, ...],
) -> OutputImageSpec:
    """Return a checked `image:` section of an output.

    Args:
        path: The path of the section.

    Raises:
        Fault: The output is no output of pictures, or the section names no format.
    """
    if len(shape) not in (3, 4) or shape[0] != -1:
        raise Fault(path, "an output of images has the shape [-1, H, W] or [-1, H, W, C]")
    if datatype not in OUTPUT_DATATYPES:
        raise Fault(path, f"images are made of {', '.join(OUTPUT_DATATYPES)}, not {datatype}")
    channels = shape[3] if len(shape) == 4 else 1
    if channels not in (1, 3, 4, -1):
        raise Fault(path, f"an image has 1, 3 or 4 channels; the shape says {channels}")
    given = {
        key: value for key, value in msgspec.structs.asdict(section).items() if value is not None
    }
    jpeg = datatype != "UINT16" and channels != 4
    spec = OutputImageSpec(**{"formats": ("png", "jpeg") if jpeg else ("png",)} | {
        key: _plain(value) for key, value in given.items()
    })  # fmt: skip
    if "jpeg" in spec.formats and not jpeg:
        raise Fault((*path, "formats"), "a JPEG has 8 bits and no alpha")
    return spec


def _plain(value: Any) -> Any:
    """The value without the class that read it, as `ImageSpec` and JSON know it."""
    if isinstance(value, (list, tuple)):
        return tuple(dict.fromkeys(value)) if isinstance(value, list) else tuple(value)
    return next((kind(value) for kind in (str, float) if isinstance(value, kind)), value)

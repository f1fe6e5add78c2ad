"""The `image:` sections of inputs and outputs, checked by the rules of `ksrv.model.input_rules`."""

from ksrv.model.fault import Fault, KeyPath
from ksrv.model.input_rules import problems
from ksrv.model.spec import Dimension, ImageSpec, OutputImageSpec
from ksrv.repository.settings.keys import Section
from ksrv.repository.settings.keys import given as given_keys

OUTPUT_DATATYPES = ("UINT8", "UINT16", "BOOL")


def read_image(
    path: KeyPath, section: Section, datatype: str, shape: tuple[Dimension, ...]
) -> ImageSpec:
    """Return a checked `image:` section.

    Args:
        path: The path of the section.

    Raises:
        Fault: A key does not fit the input or another key.
    """
    given = given_keys(section, ImageSpec)
    for key, problem in problems(given, datatype, shape):
        raise Fault((*path, key) if key else path, problem)
    return ImageSpec(**given)


def read_output_image(
    path: KeyPath, section: Section, datatype: str, shape: tuple[Dimension, ...]
) -> OutputImageSpec:
    """Return a checked `image:` section of an output.

    Args:
        path: The path of the section.

    Raises:
        Fault: The output cannot hold images, or a format does not fit it.
    """
    if len(shape) not in (3, 4) or shape[0] != -1:
        raise Fault(path, "an output of images has the shape [-1, H, W] or [-1, H, W, C]")
    if datatype not in OUTPUT_DATATYPES:
        raise Fault(path, f"images are made of {', '.join(OUTPUT_DATATYPES)}, not {datatype}")
    channels = shape[3] if len(shape) == 4 else 1
    if channels not in (1, 3, 4, -1):
        raise Fault(path, f"an image has 1, 3 or 4 channels; the shape says {channels}")
    given = given_keys(section, OutputImageSpec)
    jpeg = datatype != "UINT16" and channels != 4
    spec = OutputImageSpec(**({"formats": ("png", "jpeg") if jpeg else ("png",)} | given))
    if "jpeg" in spec.formats and not jpeg:
        raise Fault((*path, "formats"), "a JPEG has 8 bits and no alpha")
    return spec

"""Encodes the rows of an output as images, if a client asks for images.

A requested output with the parameter `image` (`png` or `jpeg`; `quality` for a JPEG) is answered as BYTES of
the shape [N], one file for each row. cv2 encodes them, by libpng and libjpeg-turbo and without the GIL, on
the threads that decode images.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ksrv.errors import HandlerFailed, InvalidRequest, quote
from ksrv.images import opencv
from ksrv.images.preparer import decode_pool
from ksrv.model.spec import TensorSpec
from ksrv.request import Array, Element, Parameter, Tensor

PARAMETER = "image"
QUALITY = "quality"


class Encoding(NamedTuple):
    """The image format that a client wants for an output.

    Attributes:
        format: "png" or "jpeg".
        quality: The quality of a JPEG, from 1 to 100.
    """

    format: str
    quality: int


def wanted_encoding(
    name: str, spec: TensorSpec | None, parameters: Mapping[str, Parameter]
) -> Encoding | None:
    """Return how an output is to be encoded; None if it is answered as numbers.

    Raises:
        InvalidRequest: The output is not declared as images, or not in this format.
    """
    if PARAMETER not in parameters:
        return None
    wanted = parameters[PARAMETER]
    subject = f"the output {quote(name)} with the parameter {quote(PARAMETER)}"
    if spec is None or spec.output_image is None:
        raise InvalidRequest(f"{subject}: the model does not declare it as images")
    formats = spec.output_image.formats
    if wanted not in formats:
        raise InvalidRequest(f"{subject}: expected {' or '.join(formats)}, not {quote(wanted)}")
    quality = parameters.get(QUALITY, spec.output_image.quality)
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise InvalidRequest(
            f"{subject}: {quote(QUALITY)} is a whole number from 1 to 100, not {quote(quality)}"
        )
    return Encoding(str(wanted), quality)


def encode(tensor: Tensor, spec: TensorSpec, encoding: Encoding) -> Tensor:
    """Encode each row of an output.

    Args:
        tensor: UINT8, UINT16 or BOOL of [N, H, W] or [N, H, W, C]; true becomes 255.

    Returns:
        BYTES of [N].

    Raises:
        HandlerFailed: The handler's rows cannot be encoded in the wanted format.
    """
    data = tensor.data
    shown = f"the output {quote(tensor.name)}, {tensor.datatype} of {list(tensor.shape)},"
    if not isinstance(data, np.ndarray) or data.ndim not in (3, 4):
        raise HandlerFailed(f"{shown} holds no images")
    if data.dtype == np.bool_:
        data = data.astype(np.uint8) * np.uint8(255)
    deep = data.dtype == np.uint16 and encoding.format == "png"
    channels = data.shape[3] if data.ndim == 4 else 1
    is_picture = (data.dtype == np.uint8 or deep) and 0 not in data.shape[1:3]
    if not is_picture or channels not in ((1, 3) if encoding.format == "jpeg" else (1, 3, 4)):
        raise HandlerFailed(f"{shown} cannot become {encoding.format.upper()}s")
    assert spec.output_image is not None  # the request was refused otherwise
    rgb = spec.output_image.color == "RGB"
    rows = data  # mypy knows, inside `run`, that `rows` is an array
    elements: list[Element] = [b""] * len(rows)

    def run(start: int, stop: int) -> None:
        for row in range(start, stop):
            elements[row] = _encoded(rows[row], rgb, encoding)

    pool = decode_pool()
    try:
        # Two chunks for each thread, because pictures differ in how long they take.
        pool.run(run, len(data), 2 * pool.threads)
    except opencv.load().error as error:
        raise HandlerFailed(f"{shown} cannot be encoded: {error.err}") from error
    return Tensor(tensor.name, "BYTES", (len(data),), elements, tensor.parameters)


def _encoded(picture: Array, rgb: bool, encoding: Encoding) -> bytes:
    cv2 = opencv.load()
    if rgb and picture.ndim == 3 and picture.shape[2] >= 3:
        flag = cv2.COLOR_RGB2BGR if picture.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        picture = cv2.cvtColor(picture, flag)
    if encoding.format == "jpeg":
        _, file = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, encoding.quality])
    else:
        _, file = cv2.imencode(".png", picture)
    return bytes(file)

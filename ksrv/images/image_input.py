"""The checks of encoded images for one input of a model, and the sentences that refuse an image."""

import functools

import numpy as np

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.image_header import FORMATS, Header
from ksrv.errors import InvalidRequest
from ksrv.images.decode_limits import ImageRefused, checked_header
from ksrv.images.geometry import Geometry, Size
from ksrv.limits import Limits, show_limit
from ksrv.model.datatypes import DTYPES
from ksrv.model.input_rules import LINEAR_DATATYPES, problems
from ksrv.model.spec import ImageSpec, TensorSpec, changed_keys
from ksrv.request import Array, Element


class ImageInput:
    """The `image:` section of one input, with everything that can be computed before the first image.

    Args:
        spec: The input; 4 dimensions, in NHWC order.
        name: The input's name in error texts; by default the spec's.

    Attributes:
        image: The section; its defaults if the input has none.
        height: The declared height.
        width: The declared width.
        channels: The declared number of channels.
        resizable: Whether images of other sizes are resized.
        geometry: The sizes and crops of the section.
        linear: The dtype in which `resize: linear` works; None for the file's dtype, or another kind of resize.
        bfloat16: Whether the input's uint16 are the bit patterns of BF16.
        finish: The conversions of pixels to the input's values, by two keys: whether BGR must become RGB at the same
            time, and the number of channels.
        swap: The conversions that only make RGB of BGR, by the number of channels.

    Raises:
        ValueError: The input cannot hold images, or its keys contradict each other.
    """

    def __init__(self, spec: TensorSpec, limits: Limits, name: str = "") -> None:
        image = spec.image or ImageSpec()
        for key, problem in problems(changed_keys(image), spec.datatype, spec.shape):
            raise ValueError(f"{key}: {problem}" if key else problem)
        unknown = set(image.formats) - set(FORMATS)
        if unknown:
            raise ValueError(f"unknown image format {sorted(unknown)[0]!r}")
        self.spec = spec
        self.image = image
        self.limits = limits
        self.name = name or spec.name
        self.height, self.width, self.channels = spec.shape[1:]
        self.geometry = Geometry(image, (self.height, self.width))
        side = image.shorter_side or image.min_side or 0
        if side * side > limits.image_pixels:
            raise ValueError(
                f"{'shorter_side' if image.shorter_side else 'min_side'} is {side}, so that every image has "
                f"{side * side} pixels at least, above the {show_limit('image_pixels', limits.image_pixels)}"
            )
        self.resizable = image.resize != "none"
        linear = LINEAR_DATATYPES[spec.datatype] if image.resize == "linear" else None
        self.linear = None if linear is None else DTYPES[linear]
        self.bfloat16 = spec.datatype == "BF16"
        arithmetic = functools.partial(
            Conversion,
            scale=image.scale,
            mean=image.mean,
            std=image.std,
            exact=image.arithmetic == "exact",
        )
        self.finish = {(False, count): arithmetic() for count in (1, 3, 4)}
        self.swap: dict[int, Conversion] = {}
        for order in ((2, 1, 0), (2, 1, 0, 3)):  # BGR and BGRA to RGB and RGBA
            # `mean` and `std` have a number for each channel, one for all, or none. With 3 numbers, images of 4
            # channels have no conversion.
            if len(image.mean) in (0, 1, len(order)) and len(image.std) in (0, 1, len(order)):
                self.finish[True, len(order)] = arithmetic(channels=order)
            self.swap[len(order)] = Conversion(channels=order)

    def header(self, element: Element, index: int) -> Header:
        """Read and check the header of one image.

        Args:
            index: The image's number in its request.

        Raises:
            InvalidRequest: The image is not accepted.
        """
        try:
            return checked_header(element, self.limits, self.image.formats)
        except ImageRefused as error:
            raise self.refusal(index, str(error)) from None

    def size(self, header: Header) -> Size:
        """Return height and width of an image as it appears in the batch."""
        if self.image.exif == "apply" and header.orientation >= 5:
            return header.width, header.height
        return header.height, header.width

    def check_channels(self, found: int, wanted: int, index: int) -> None:
        """Raise if an image has another number of channels than the input takes.

        Args:
            found: The image's channels; 0 if its header does not state them.
            index: The image's number in its request.
        """
        if self.image.channels == "strict" and found not in (0, wanted):
            raise self.refusal(
                index,
                f"has {found} channels, and {wanted} are expected; 'channels: convert' in the input's "
                "'image:' section converts them",
            )

    def check_size(self, size: Size, target: Size, index: int) -> None:
        """Raise if an image has another size and is not resized, or would be resized to too many pixels.

        Args:
            index: The image's number in its request.
        """
        shown = f"is {size[1]}x{size[0]}"
        if not self.resizable and size != target:
            raise self.refusal(
                index,
                f"{shown}, and {target[1]}x{target[0]} is expected, since the images of this input are not resized",
            )
        if self.geometry.passes(size, target, self.limits.image_pixels):
            height, width = self.geometry.intermediate(size, target)
            raise self.refusal(
                index,
                f"{shown} and is resized to {width}x{height}, above the"
                f" {show_limit('image_pixels', self.limits.image_pixels)}; crop the image before you send it, so that"
                " its sides differ less",
            )
        row = self.geometry.row(size)
        if self.geometry.follows and not self.geometry.boxed and row != target:
            raise self.refusal(
                index,
                f"{shown} and becomes {row[1]}x{row[0]}, and the first image of the request becomes"
                f" {target[1]}x{target[0]}; send it in another request, or write 'resize: letterbox' in the input's"
                " 'image:' section",
            )

    def border(self, channels: int, samples: np.dtype[np.generic]) -> Array:
        """Return the pixel of a letterbox's border, converted to the input's values.

        Args:
            samples: The type of the picture's samples; `pad` counts in 8 bits.
        """
        pixel = np.empty((1, 1, channels), DTYPES[self.spec.datatype])
        pad = np.array(self.image.pad, np.float32) * (257 if samples == np.uint16 else 1)
        source = np.ascontiguousarray(np.broadcast_to(pad, pixel.shape))
        self.finish[False, channels](source, pixel, bfloat16=self.bfloat16)
        found: Array = pixel[0, 0]
        return found

    def refusal(self, index: int, problem: str) -> InvalidRequest:
        """Return the error of an image; see `about`."""
        return InvalidRequest(self.about(index, problem))

    def about(self, index: int, problem: str) -> str:
        """Return a sentence about an image.

        Args:
            index: The image's number in its request.
        """
        return f"image {index} of the input '{self.name}' {problem}"

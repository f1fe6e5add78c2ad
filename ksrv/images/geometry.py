"""The geometry of the `image:` section: sizes, crops and methods of resizing.

A picture is resized to its intermediate size as a whole, and a window of that is copied into the target, the row of
the batch. The window is all of it, unless `shorter_side` crops. A letterbox fills only a part of the target.

The arithmetic on sizes follows the libraries that models were trained with: torchvision's Resize and
CenterCrop for `shorter_side`, and the detectors' letterbox.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.row_resize import resize_rows
from ksrv._native.memory import buffer_pool
from ksrv.images import opencv
from ksrv.model.spec import Dimension, ImageSpec
from ksrv.request import Array

Size: TypeAlias = tuple[int, int]
"""Height and width."""

LETTERBOX_GREY = 114
"""The 8-bit value of the border around a picture in a letterbox, as the YOLO detectors have it."""
REDUCTIONS = (8, 4, 2)
"""The factors by which libjpeg can scale a picture down while it decodes."""
_KEEP = Conversion()  # changes no value


def scratch(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """Lease an uninitialised array that lives for one picture.

    Returns:
        The array. Its block returns to the buffer pool when the array is freed.
    """
    nbytes = dtype.itemsize
    for side in shape:
        nbytes *= side
    return buffer_pool.array(buffer_pool.lease(nbytes), dtype, shape)


def bounded(size: int, dimension: Dimension) -> int:
    """Return the size that a declared dimension gives to a picture's side.

    Args:
        dimension: A number, -1 for any, or a range to which the side is clamped.
    """
    if isinstance(dimension, tuple):
        return min(max(size, dimension[0]), dimension[1])
    return size if dimension == -1 else dimension


def shorter_side_size(size: Size, shorter: int) -> Size:
    """Return the size at which the shorter side has `shorter` pixels; the longer one is cut off."""
    height, width = size
    if height <= width:
        return shorter, int(shorter * width / height)
    return int(shorter * height / width), shorter


def center_offset(size: Size, crop: Size) -> tuple[int, int]:
    """Return top and left of a crop from the middle; halves are rounded to the even number, as torchvision does.

    Args:
        crop: The crop's height and width, not larger.
    """
    return round((size[0] - crop[0]) / 2.0), round((size[1] - crop[1]) / 2.0)


def letterbox_window(size: Size, target: Size) -> tuple[Size, tuple[int, int]]:
    """Return the largest size with the picture's proportions that fits into `target`, and its position there.

    Returns:
        Height and width of the picture in the box, and its top and left.
    """
    ratio = min(target[0] / size[0], target[1] / size[1])
    height = min(max(round(size[0] * ratio), 1), target[0])
    width = min(max(round(size[1] * ratio), 1), target[1])
    # The detectors subtract 0.1, so that an odd border has its larger half at the bottom and on the right.
    top = max(round((target[0] - height) / 2 - 0.1), 0)
    left = max(round((target[1] - width) / 2 - 0.1), 0)
    return (height, width), (top, left)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How pictures of any size become rows of one size.

    Attributes:
        spec: The `image:` section.
    """

    spec: ImageSpec

    def intermediate(self, size: Size, target: Size) -> Size:
        """Return the size that the whole picture is resized to, before cropping or padding."""
        if self.spec.shorter_side is not None:
            return shorter_side_size(size, self.spec.shorter_side)
        if self.spec.resize == "letterbox":
            return letterbox_window(size, target)[0]
        return target

    def whole_pixels(self, size: Size, target: Size) -> int:
        """Return the pixels of the intermediate picture that `place` allocates; 0 if it allocates none."""
        whole = self.intermediate(size, target)
        if (
            self.spec.shorter_side is None
            or self.spec.resize == "pillow"
            or whole in (size, target)
        ):
            return 0
        return whole[0] * whole[1]

    def passes(self, size: Size, target: Size, most_pixels: int) -> bool:
        """Tell whether `shorter_side` resizes a picture to more than `most_pixels` pixels before it is cropped."""
        height, width = self.intermediate(size, target)
        return self.spec.shorter_side is not None and height * width > most_pixels

    def reduction(self, size: Size, target: Size) -> int:
        """Return the factor by which the JPEG decoder may scale the picture down: 1, 2, 4 or 8."""
        if self.spec.reduced != "auto" or self.spec.resize == "none":
            return 1
        height, width = self.intermediate(size, target)
        ratio = min(size[0] / height, size[1] / width)
        return next((k for k in REDUCTIONS if ratio >= k), 1)

    def place(self, picture: Array, target: Array) -> None:
        """Resize, crop or pad a picture into `target`.

        Args:
            picture: [height, width, channels].
            target: [height, width, channels] of the same type and channels.
        """
        size: Size = (picture.shape[0], picture.shape[1])
        wanted: Size = (target.shape[0], target.shape[1])
        whole, offset, (top, left, height, width) = self.inside(size, wanted)
        if self.spec.resize == "letterbox":
            target[...] = LETTERBOX_GREY * 257 if picture.dtype == np.uint16 else LETTERBOX_GREY
        self._resized(picture, whole, offset, target[top : top + height, left : left + width])

    def inside(
        self, size: Size, target: Size
    ) -> tuple[Size, tuple[int, int], tuple[int, int, int, int]]:
        """Return how a picture is resized, and into which part of the target.

        Returns:
            The intermediate size of the whole picture; top and left of the window that is used of it; top, left, height
            and width of the part of the target that receives the window, without the border of a letterbox.
        """
        if self.spec.resize == "letterbox":
            inner, corner = letterbox_window(size, target)
            return inner, (0, 0), (*corner, *inner)
        whole = self.intermediate(size, target)
        offset = (0, 0) if self.spec.shorter_side is None else center_offset(whole, target)
        return whole, offset, (0, 0, *target)

    def _resized(self, picture: Array, whole: Size, offset: tuple[int, int], target: Array) -> None:
        """Resize a picture to `whole`, and copy the window at `offset` into `target`, whose size is the window's."""
        height, width, channels = target.shape
        rows = slice(offset[0], offset[0] + height)
        columns = slice(offset[1], offset[1] + width)
        if picture.shape[:2] == whole:
            target[...] = picture[rows, columns]
            return
        if self.spec.resize == "pillow":
            resize_rows(picture, target, _KEEP, whole, offset, kind="pillow")
            return
        cv2 = opencv.load()
        interpolation = cv2.INTER_AREA if self.spec.resize == "area" else cv2.INTER_LINEAR
        if whole == (height, width):
            opencv.resize_into(picture, target, interpolation)
            return
        resized = scratch(picture.dtype, (*whole, channels))
        opencv.resize_into(picture, resized, interpolation)
        target[...] = resized[rows, columns]

"""The geometry of the `image:` section: sizes, crops and methods of resizing.

A picture is resized to its intermediate size as a whole, and a window of that is copied into the target, the row of
the batch. The window is all of it, unless `shorter_side` or `resize_to` crops. A letterbox fills only a part of the
target.

If the height or the width is open (-1 or a range), the size of the row follows the picture's proportions, except that
a range without other keys clamps each side.

The arithmetic on sizes follows the libraries that models were trained with: torchvision's Resize and
CenterCrop for `shorter_side`, the detectors' letterbox, and PaddleOCR for open sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.row_resize import resize_rows
from ksrv._native.memory import buffer_pool
from ksrv.images import opencv
from ksrv.model.spec import Dimension, ImageSpec, TensorSpec
from ksrv.request import Array, ImagePlacement

Size: TypeAlias = tuple[int, int]
"""Height and width."""

REDUCTIONS = (8, 4, 2)
"""The factors by which libjpeg can scale a picture down while it decodes."""
_KEEP = Conversion()  # changes no value
_ROUND: dict[str, Callable[[float], int]] = {"nearest": round, "down": math.floor, "up": math.ceil}


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


@dataclass(frozen=True, slots=True)
class Geometry:
    """How pictures of any size become rows.

    Attributes:
        spec: The `image:` section.
        sides: The declared height and width.
    """

    spec: ImageSpec
    sides: tuple[Dimension, Dimension]

    @property
    def boxed(self) -> bool:
        """Whether a picture may fill only a part of its row."""
        return self.spec.resize == "letterbox"

    @property
    def crops(self) -> bool:
        """Whether pictures are resized to another size than the row's, and then cropped."""
        both_known = all(map(_is_number, self.sides))
        return both_known and (self.spec.shorter_side or self.spec.resize_to) is not None

    @property
    def follows(self) -> bool:
        """Whether the size of a row follows the proportions of its picture."""
        spec = self.spec
        if spec.resize == "none" or all(map(_is_number, self.sides)):
            return False
        keys = (spec.shorter_side, spec.min_side, spec.max_side)
        return -1 in self.sides or self.boxed or any(keys) or spec.multiple > 1

    def row(self, size: Size) -> Size:
        """Return the size of the row that a picture needs if it is alone in its request."""
        if not self.follows:
            return bounded(size[0], self.sides[0]), bounded(size[1], self.sides[1])
        step = self.spec.multiple
        # A letterbox has room for the whole picture. Without a border, the picture is resized to the nearest multiple.
        steps = math.ceil if self.boxed else round
        height, width = (max(steps(side / step), 1) * step for side in self._proportional(size))
        return bounded(height, self.sides[0]), bounded(width, self.sides[1])

    def intermediate(self, size: Size, target: Size) -> Size:
        """Return the size that the whole picture is resized to, before cropping or padding."""
        if self.boxed:
            height, width = self._proportional(size)
            return min(height, target[0]), min(width, target[1])
        if not self.crops:
            return target
        return self.spec.resize_to or shorter_side_size(size, self.spec.shorter_side or 1)

    def whole_pixels(self, size: Size, target: Size) -> int:
        """Return the pixels of the intermediate picture that `resize` allocates; 0 if it allocates none."""
        whole = self.intermediate(size, target)
        if not self.crops or self.spec.resize == "pillow" or whole in (size, target):
            return 0
        return whole[0] * whole[1]

    def passes(self, size: Size, target: Size, most_pixels: int) -> bool:
        """Tell whether a picture is resized to more than `most_pixels` pixels, although its row may have fewer."""
        height, width = self.intermediate(size, target)
        return (self.crops or self.follows) and height * width > most_pixels

    def reduction(self, size: Size, target: Size) -> int:
        """Return the factor by which the JPEG decoder may scale the picture down: 1, 2, 4 or 8."""
        if self.spec.reduced != "auto" or self.spec.resize == "none":
            return 1
        height, width = self.intermediate(size, target)
        ratio = min(size[0] / height, size[1] / width)
        return next((k for k in REDUCTIONS if ratio >= k), 1)

    def inside(
        self, size: Size, target: Size
    ) -> tuple[Size, tuple[int, int], tuple[int, int, int, int]]:
        """Return how a picture is resized, and into which part of the target.

        Returns:
            The intermediate size of the whole picture; top and left of the window that is used of it; top, left, height
            and width of the part of the target that receives the window, without the border of a letterbox.
        """
        whole = self.intermediate(size, target)
        if not self.boxed:
            return whole, center_offset(whole, target) if self.crops else (0, 0), (0, 0, *target)
        if self.spec.align == "start":
            return whole, (0, 0), (0, 0, *whole)
        # The detectors subtract 0.1, so that an odd border has its larger half at the bottom and on the right.
        top = max(round((target[0] - whole[0]) / 2 - 0.1), 0)
        left = max(round((target[1] - whole[1]) / 2 - 0.1), 0)
        return whole, (0, 0), (top, left, *whole)

    def placement(self, size: Size, target: Size) -> ImagePlacement:
        """Return where a picture is in its row."""
        whole, offset, (top, left, _, _) = self.inside(size, target)
        down, across = whole[0] / size[0], whole[1] / size[1]
        if self.boxed:  # as the detectors compute it, without the rounding of the picture's size
            down = across = self._ratio(size)
        moved = float(left - offset[1]), float(top - offset[0])
        return ImagePlacement(size[1], size[0], across, down, *moved, target[1], target[0])

    def resize(self, picture: Array, whole: Size, offset: tuple[int, int], target: Array) -> None:
        """Resize a picture to `whole`, and copy the window at `offset` into `target`, whose size is the window's.

        Args:
            picture: [height, width, channels].
            target: [height, width, channels] of the same type and channels.
        """
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

    def _proportional(self, size: Size) -> Size:
        """Return the size of the resized picture in a row that follows its proportions, or in a letterbox."""
        spec, (height, width) = self.spec, size
        if spec.shorter_side is not None and spec.max_side is None:
            return shorter_side_size(size, spec.shorter_side)
        to_pixels = _ROUND[spec.rounding or ("nearest" if self.boxed else "down")]
        high, wide = map(_most, self.sides)
        # PaddleOCR multiplies the side that is a number by the proportion. The result may differ in the last bit.
        if _is_number(self.sides[0]) != _is_number(self.sides[1]):
            if _is_number(self.sides[0]):
                made = int(high), max(to_pixels(high * (width / height)), 1)
            else:
                made = max(to_pixels(wide * (height / width)), 1), int(wide)
            if not self.boxed or (made[0] <= high and made[1] <= wide):
                return made
        ratio = self._ratio(size)
        height, width = max(to_pixels(height * ratio), 1), max(to_pixels(width * ratio), 1)
        return int(min(height, high)), int(min(width, wide))

    def _ratio(self, size: Size) -> float:
        """Return the factor by which a picture that keeps its proportions is resized."""
        spec = self.spec
        if self.boxed and min(map(_most, self.sides)) != math.inf:
            return min(_most(side) / own for side, own in zip(self.sides, size, strict=True))
        ratio = 1.0 if spec.shorter_side is None else spec.shorter_side / min(size)
        if spec.min_side is not None:
            ratio = max(ratio, spec.min_side / min(size))
        if spec.max_side is not None:
            ratio = min(ratio, spec.max_side / max(size))
        return ratio


def placements(tensor: TensorSpec, sizes: Sequence[int]) -> list[ImagePlacement]:
    """Return where images are in rows of a fixed size.

    Args:
        tensor: The input.
        sizes: The height and the width of each image, one after the other.
    """
    geometry = Geometry(tensor.image or ImageSpec(), (tensor.shape[1], tensor.shape[2]))
    pairs = zip(sizes[::2], sizes[1::2], strict=True)
    return [geometry.placement(size, geometry.row(size)) for size in pairs]


def _is_number(side: Dimension) -> bool:
    return isinstance(side, int) and side != -1


def _most(side: Dimension) -> float:
    """Return the most pixels of a declared side."""
    if isinstance(side, tuple):
        return side[1]
    return math.inf if side == -1 else side

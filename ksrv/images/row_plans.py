"""Plans for JPEGs that are resized and converted row by row while they are decoded.

A `RowPlan` of the native core has everything that depends only on the sizes. It is computed once for each size of
picture, and cached. A picture without a plan is decoded as a whole.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from ksrv._native.images.image_header import Header
from ksrv._native.images.row_plan import RowPlan
from ksrv._native.images.row_resize import resizes_by_rows
from ksrv.images import jpeg
from ksrv.images.geometry import Size
from ksrv.images.image_input import ImageInput
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ImageSpec

MOST_PLANS = 1024
"""The plans that are cached for an input."""


class RowPlans:
    """The plans of one image input."""

    def __init__(self, wanted: ImageInput) -> None:
        self._input = wanted
        self._kind = _row_kind(wanted.image.resize, wanted.linear)
        self._plan = lru_cache(MOST_PLANS)(self._new_plan)

    def plan(self, header: Header, size: Size, shape: tuple[int, ...]) -> RowPlan | None:
        """Return the plan for a picture; None if it is decoded as a whole.

        Args:
            size: Its height and width, turned as it appears in the batch.
            shape: The shape of a row, [height, width, channels].
        """
        turned = self._input.image.exif == "apply" and header.orientation != 1
        if turned or not jpeg.decodes(header):
            return None
        return self._plan(shape, *size, header.channels)

    def of_rows(self, shape: tuple[int, int, int]) -> Callable[[int, int, int], RowPlan | None]:
        """Return a function that gives the plan for the height, width and channels of an 8-bit JPEG."""
        return partial(self._plan, shape)

    def _new_plan(
        self, shape: tuple[int, ...], height: int, width: int, channels: int
    ) -> RowPlan | None:
        slot = np.empty(shape, DTYPES[self._input.spec.datatype])
        target: Size = (shape[0], shape[1])
        order = jpeg_order(self._input.image, channels, shape[2])
        if not order or not (self._input.resizable or (height, width) == target):
            return None
        if self._input.geometry.passes((height, width), target, self._input.limits.image_pixels):
            return None
        reduction = self._input.geometry.reduction((height, width), target)
        size = reduced_size((height, width), reduction)
        full, offset, part = self._input.geometry.inside((height, width), target)
        boxed = self._input.geometry.boxed
        # Without a resize, every kind gives the same bytes.
        kind = "linear bytes" if full == size else self._kind
        if kind is None or not resizes_by_rows(kind, size, full):
            return None
        return RowPlan(
            size=size,
            slot=slot,
            part=part,
            conversion=self._input.finish[False, shape[2]],
            full=full,
            offset=offset,
            kind=kind,
            order=order,
            reduction=reduction,
            bfloat16=self._input.bfloat16,
            border=self._input.border(shape[2], np.dtype(np.uint8)).tobytes() if boxed else b"",
        )


def jpeg_order(image: ImageSpec, found: int, wanted: int) -> str:
    """Return the order in which a JPEG's pixels are needed; "" if it has another number of channels.

    Args:
        image: The `image:` section.
        wanted: How many channels are needed; 0 for the file's number.
    """
    colour = wanted >= 3 if image.channels == "convert" else found != 1
    if wanted not in (0, 3 if colour else 1):
        return ""
    if not colour:
        return "GRAY"
    return "RGB" if image.color == "RGB" else "BGR"


def reduced_size(size: Size, reduction: int) -> Size:
    """Return the size of a picture that its decoder scales down."""
    return -(-size[0] // reduction), -(-size[1] // reduction)


def _row_kind(resize: str, linear: np.dtype[np.generic] | None) -> str | None:
    """Return the kind of resize of `RowPlan` for 8-bit pictures; None if they are not resized row by row."""
    match resize:
        case "letterbox" | "opencv":
            return "linear bytes"
        case "area":
            return "area"
        case "pillow":
            return "pillow"
        case "linear" if linear == np.float32:
            return "linear floats"
        case "linear" if linear is None or linear == np.uint8:
            return "linear bytes"
    return None

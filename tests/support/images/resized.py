"""Calls of the native resizes with the arguments that tests leave out."""

from typing import Any

import numpy as np

from ksrv._native.images.convert_pixels import Conversion
from ksrv._native.images.row_plan import RowPlan
from ksrv._native.images.row_resize import resize_rows


def decoded(
    data: bytes,
    size: tuple[int, int],
    target: np.ndarray,
    full: tuple[int, int],
    offset: tuple[int, int] = (0, 0),
    *,
    conversion: Conversion | None = None,
    kind: str = "linear bytes",
    order: str = "BGR",
) -> bool:
    """Decode a JPEG into a window of the resized picture; return whether it was decoded row by row."""
    plan = RowPlan(
        size=size, slot=target, part=(0, 0, *target.shape[:2]), conversion=conversion or Conversion(), full=full,
        offset=offset, kind=kind, order=order, reduction=1, bfloat16=False,
    )  # fmt: skip
    return plan.decode(data, target)


def pillow(picture: np.ndarray, height: int, width: int) -> Any:
    """Return the whole picture, resized as Pillow does."""
    target = np.empty((height, width, *picture.shape[2:]), np.uint8)
    resize_rows(picture, target, Conversion(), (height, width), kind="pillow")
    return target

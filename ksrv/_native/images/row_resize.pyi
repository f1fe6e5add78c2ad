from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ksrv._native.images.convert_pixels import Conversion
from ksrv.request import Array, Element

KINDS: dict[str, int]

def resizes_by_rows(kind: str, size: Sequence[int], full: Sequence[int]) -> bool: ...
def decode_jpeg_resized(
    file: Element,
    size: Sequence[int],
    target: Array,
    conversion: Conversion,
    full: Sequence[int],
    offset: Sequence[int] = (0, 0),
    *,
    kind: str,
    order: str,
    reduction: int = 1,
    bfloat16: bool = False,
) -> bool: ...
def resize_rows(
    source: Array,
    target: Array,
    conversion: Conversion,
    full: Sequence[int],
    offset: Sequence[int] = (0, 0),
    *,
    kind: str,
    bfloat16: bool = False,
) -> None: ...
def resize_pillow(
    source: npt.NDArray[Any],
    height: int,
    width: int,
    target: npt.NDArray[Any] | None = None,
    offset: tuple[int, int] = (0, 0),
    *,
    alpha: bool = True,
) -> npt.NDArray[Any]: ...

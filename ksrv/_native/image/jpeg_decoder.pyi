from collections.abc import Sequence

from ksrv._native.image.convert_pixels import Conversion
from ksrv.request import Array, Element

VERSION: str
ORDERS: dict[str, int]

def decode_jpeg_into(file: Element, picture: Array, order: str, reduction: int = 1) -> bool: ...
def decode_jpeg_linear(
    file: Element,
    size: Sequence[int],
    target: Array,
    conversion: Conversion,
    full: Sequence[int],
    offset: Sequence[int] = (0, 0),
    *,
    order: str,
    reduction: int = 1,
    bfloat16: bool = False,
) -> bool: ...
def resize_linear(
    source: Array,
    target: Array,
    conversion: Conversion,
    full: Sequence[int],
    offset: Sequence[int] = (0, 0),
    *,
    bfloat16: bool = False,
) -> None: ...

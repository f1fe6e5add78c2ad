from typing import Any

import numpy.typing as npt

class LengthBuckets:
    def __init__(self, multiple: int, waste: float, most: int) -> None: ...
    def padded(self, length: int) -> int: ...
    def bucket(self, length: int) -> int: ...

def join_padded(
    parts: list[npt.NDArray[Any] | None],
    shapes: list[tuple[int, ...]],
    out: npt.NDArray[Any],
    padding: bytes,
    value: bytes,
) -> None: ...

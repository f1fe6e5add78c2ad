from collections.abc import Buffer
from typing import Any

import numpy.typing as npt

class NumbersError(ValueError):
    code: str
    offset: int
    count: int

def read(
    buffer: Buffer, begin: int, end: int, datatype: str, count: int
) -> npt.NDArray[Any]: ...

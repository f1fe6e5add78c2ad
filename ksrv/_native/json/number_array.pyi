from typing import Any

import numpy.typing as npt
from typing_extensions import Buffer

class NumbersError(ValueError):
    code: str
    offset: int
    count: int

def read(buffer: Buffer, begin: int, end: int, datatype: str, count: int) -> npt.NDArray[Any]: ...
def write(array: Buffer, datatype: str) -> bytes: ...

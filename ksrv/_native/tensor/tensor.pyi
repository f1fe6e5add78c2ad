from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

class Tensor:
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | list[bytes | memoryview]
    parameters: Mapping[str, bool | int | float | str]
    def __init__(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        data: npt.NDArray[Any] | list[bytes | memoryview],
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...

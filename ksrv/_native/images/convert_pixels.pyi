from collections.abc import Sequence
from typing import Any, final

import numpy.typing as npt

@final
class Conversion:
    def __init__(
        self,
        *,
        channels: Sequence[int] | None = None,
        scale: float = 1.0,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        exact: bool = False,
    ) -> None: ...
    @property
    def keeps_values(self) -> bool: ...
    def __call__(
        self,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        *,
        planar: bool = False,
        bfloat16: bool = False,
    ) -> None: ...

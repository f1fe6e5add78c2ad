from typing import Any

import numpy as np

from ksrv._native.tensor.tensor import Tensor

class DeclaredOutputs:
    def __init__(self, outputs: list[tuple[str, str, np.dtype[Any], tuple[int, ...]]]) -> None: ...
    def read(self, result: Any, rows: int) -> list[Tensor] | None: ...

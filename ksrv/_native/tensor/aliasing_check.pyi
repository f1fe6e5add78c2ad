from typing import Any

import numpy as np
import numpy.typing as npt

def counts(arrays: list[npt.NDArray[Any]]) -> dict[int, int]: ...
def unshared(
    tensors: list[Any], before: dict[int, int], inputs: list[npt.NDArray[np.generic]]
) -> list[bool]: ...

"""Inputs of KServe v2 whose values are JSON."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def tensor(
    name: str,
    values: ArrayLike,
    datatype: str = "FP32",
    shape: list[int] | None = None,
    **parameters: object,
) -> dict[str, Any]:
    """Return an entry of `inputs`. By default it has the shape of its values."""
    array = np.asarray(values)
    made = {
        "name": name,
        "datatype": datatype,
        "shape": shape or list(array.shape),
        "data": array.tolist(),
    }
    return made | ({"parameters": parameters} if parameters else {})

"""The datatypes of KServe v2 as numpy knows them; their names and sizes are the native core's."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ksrv._native.tensor.datatype import NAMES, dtype_string

FLOATING = ("FP16", "BF16", "FP32", "FP64")

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype_string(name)) for name in NAMES if name != "BYTES"
}
"""The dtype of each datatype's arrays; BF16 travels as the 16-bit patterns of its values."""

NAME_BY_DTYPE = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


def widen_bfloat16(patterns: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the values of BF16 patterns as float32.

    Args:
        patterns: An array of uint16.
    """
    return (patterns.astype(np.uint32) << 16).view(np.float32)

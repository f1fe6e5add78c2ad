"""The datatypes of KServe v2 as numpy knows them, and casts from one to another.

The names and sizes of the datatypes are the native core's.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ksrv._native.tensor import datatype
from ksrv._native.tensor.datatype import CONTENTS, NAMES, TENSOR_NAMES

FLOATING = tuple(name for name, shown in TENSOR_NAMES.items() if "float" in shown)

BINARY_ONLY = frozenset(NAMES).difference(CONTENTS)
"""The datatypes that neither JSON nor the typed fields of a message can carry."""

DTYPES: dict[str, np.dtype[Any]] = {
    name: dtype for name, dtype in zip(NAMES, datatype.DTYPES, strict=True) if dtype is not None
}
"""The dtype of each datatype's arrays; BF16 travels as the 16-bit patterns of its values."""

NAME_BY_DTYPE = {dtype: name for name, dtype in DTYPES.items() if dtype.name == TENSOR_NAMES[name]}
"""The datatypes that numpy has. BF16 is missing: it travels as patterns."""


def widen_bfloat16(patterns: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the values of BF16 patterns as float32.

    Args:
        patterns: An array of uint16.
    """
    return (patterns.astype(np.uint32) << 16).view(np.float32)


class KindMismatch(ValueError):
    """A cast would make numbers of one kind into another: floats into integers, or anything into BOOL or BYTES."""


class OutOfRange(ValueError):
    """A value outside of a datatype's range."""


def cast(array: npt.NDArray[Any], own: str, wanted: str) -> npt.NDArray[Any]:
    """Return an array in another datatype; raise if that changes a value by more than rounding.

    Floats become any float whose range is large enough, integers likewise, and integers become floats. UINT16 for BF16
    is the array itself, because arrays carry BF16 as 16-bit patterns.

    Args:
        array: The values; of BF16 the patterns.

    Returns:
        The values, of BF16 the patterns; `array` itself if nothing is to be done.

    Raises:
        KindMismatch: The datatypes are of different kinds.
        OutOfRange: A finite value would become infinite, or an integer would change.
    """
    if own == wanted or (own, wanted) == ("UINT16", "BF16"):
        return array
    if {"BYTES", "BOOL"} & {own, wanted} or (own in FLOATING and wanted not in FLOATING):
        raise KindMismatch(f"{own} does not become {wanted}")
    if own == "BF16":
        array, own = widen_bfloat16(array), "FP32"
    if wanted in FLOATING:
        return _as_floats(array, own, wanted)
    if array.size:
        bounds = np.iinfo(DTYPES[wanted])
        low, high = int(array.min()), int(array.max())
        if low < bounds.min or high > bounds.max:
            raise OutOfRange(
                f"{own} values from {low} to {high}; {wanted} ranges from {bounds.min} to {bounds.max}"
            )
    return array.astype(DTYPES[wanted])


def _as_floats(array: npt.NDArray[Any], own: str, wanted: str) -> npt.NDArray[Any]:
    found: npt.NDArray[Any]
    with np.errstate(over="ignore"):
        if wanted == "BF16":
            found = _to_bfloat16(array.astype(np.float32))
            infinite = (found & 0x7FFF) == 0x7F80
        else:
            found = array.astype(DTYPES[wanted])
            infinite = np.isinf(found)
    if infinite.any():
        overflows = infinite & np.isfinite(array)
        if overflows.any():
            raise OutOfRange(
                f"{own} values that are too large for {wanted}, the first is "
                f"{array[overflows][0].item()}; the largest finite value of {wanted} is {_LARGEST[wanted]:.8g}"
            )
    return found


_LARGEST = {
    "FP16": 65504.0,
    "BF16": 3.3895313892515355e38,
    "FP32": 3.4028234663852886e38,
    "FP64": 1.7976931348623157e308,
}


def _to_bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, halves to even; a NaN stays one."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)

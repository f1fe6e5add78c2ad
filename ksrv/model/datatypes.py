"""The numpy dtypes of KServe v2's datatypes, and casts between datatypes.

The native core defines the names and sizes of the datatypes (`native/tensor/datatype.hpp`). numpy has no bfloat16, so
arrays of BF16 are uint16 arrays with the bit patterns of the values.
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
"""The dtype of each datatype's arrays. BYTES has none: its tensors are lists of elements."""

NAME_BY_DTYPE = {dtype: name for name, dtype in DTYPES.items() if dtype.name == TENSOR_NAMES[name]}
"""The datatype of each numpy dtype, without BF16."""


def widen_bfloat16(patterns: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the values of BF16 patterns as float32.

    Args:
        patterns: An array of uint16.
    """
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def widened(array: npt.NDArray[Any], datatype: str) -> npt.NDArray[Any]:
    """Return an array of a datatype with BF16 patterns as float32."""
    return widen_bfloat16(array) if datatype == "BF16" else array


class KindMismatch(ValueError):
    """A cast would change the kind of values: floats into integers, or between BOOL or BYTES and any other datatype."""


class OutOfRange(ValueError):
    """A value outside of a datatype's range."""


def cast(array: npt.NDArray[Any], own: str, wanted: str) -> npt.NDArray[Any]:
    """Return an array in another datatype; raise if that changes a value by more than rounding.

    Floats are cast to floats, integers to integers, and integers to floats. UINT16 is cast to BF16 without a change,
    because arrays of BF16 have 16-bit patterns.

    Args:
        array: The values; for BF16 the bit patterns.
        own: The datatype of the array.
        wanted: The datatype to return.

    Returns:
        The values; for BF16 the bit patterns. `array` itself if both datatypes have the same arrays.

    Raises:
        KindMismatch: The cast would change the kind of values.
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
            infinite = (found & 0x7FFF) == 0x7F80  # without the sign bit, the pattern of infinity
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
    """Return the patterns of float32 values, rounded to the nearest bfloat16, halves to even. NaN stays NaN."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)

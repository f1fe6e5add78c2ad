"""torch, if this process has imported it, and the memory of its tensors as arrays."""

import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


def imported_torch() -> Any:
    """Return torch's module, or None without it and while another thread still imports it.

    A handler that does not use torch must not meet a half of it while the model beside it is loaded.
    """
    torch = sys.modules.get("torch")
    is_partial = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_partial else torch


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a torch tensor; torch is not imported for this."""
    torch = imported_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def array_over(tensor: Any) -> npt.NDArray[Any]:
    """Return an array over the memory of a tensor on the CPU; bfloat16 as the 16-bit patterns.

    Raises:
        TypeError: numpy has no such dtype.
    """
    import torch

    is_bfloat16 = tensor.dtype is torch.bfloat16
    array: npt.NDArray[Any] = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy(
        force=True
    )
    return array.view(np.uint16) if is_bfloat16 else array


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return numpy's dtype for one of torch's, or None where it has none, as for bfloat16."""
    import torch

    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None

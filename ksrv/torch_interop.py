"""Recognizes torch tensors without importing torch, and makes numpy arrays over their memory."""

import sys
from functools import cache
from typing import Any
from weakref import getweakrefcount

import numpy as np
import numpy.typing as npt


def imported_torch() -> Any:
    """Return torch's module if it is imported completely, else None.

    Another model may import torch at this moment in another thread. Until then no value can be a tensor, and the
    module has not all of its names.
    """
    torch = sys.modules.get("torch")
    is_partial = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_partial else torch


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a torch tensor; torch is not imported for this."""
    torch = imported_torch()
    return torch is not None and isinstance(value, torch.Tensor)


class TorchMemory:
    """A tensor's memory. It is the base object of the array that `array_over` returns, and keeps the tensor alive.

    `Tensor.numpy` is not used, because it marks the storage as not resizable, and `is_exclusive` could not tell any
    more that torch allocated it.

    Args:
        tensor: A contiguous tensor on the CPU.
    """

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": dtype.str,
            "data": (tensor.data_ptr(), False),
        }

    def is_exclusive(self) -> bool:
        """Tell whether torch allocated the memory for this process only, and no other tensor uses it."""
        storage = self._tensor.untyped_storage()
        if not storage.resizable() or storage.is_shared() or getweakrefcount(storage):
            return False
        del storage
        return _holders(self._tensor) == _holders_of_one_tensor()


def array_over(tensor: Any) -> npt.NDArray[Any]:
    """Return an array over a tensor's memory; bfloat16 as the 16-bit patterns.

    Raises:
        TypeError: numpy has no such dtype.
    """
    import torch

    dtype = np.dtype("u2") if tensor.dtype is torch.bfloat16 else numpy_dtype(tensor.dtype)
    if dtype is None:
        raise TypeError(f"numpy has no dtype for {tensor.dtype}")
    if not tensor.nbytes:
        return np.empty(tuple(tensor.shape), dtype)
    # A new tensor over the storage, because the handler's tensor would count as another reference.
    return np.asarray(TorchMemory(tensor.detach(), dtype))


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return numpy's dtype for a dtype of torch; None if numpy has no such dtype, as for bfloat16."""
    import torch

    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _holders(tensor: Any) -> tuple[int, int] | None:
    """Return the reference counts of a tensor's storage and of the storage's Python object; None if torch counts none.

    The counter is private to torch, because nothing public tells whether another tensor has the same storage, such as
    a tensor that a handler keeps, a buffer of a module, or a tensor in the graph of autograd.
    """
    import torch

    storage = tensor.untyped_storage()
    try:
        return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)
    except (AttributeError, TypeError):
        return None


@cache
def _holders_of_one_tensor() -> tuple[int, int]:
    """Return `_holders` of a storage with one tensor; (0, 0), which matches no tensor, if the counters are not usable.

    Checks that a second tensor raises the first count by 1, and a reference to the storage the second.
    """
    import torch

    tensor = torch.ones(1)
    alone = _holders(tensor)
    other: Any = tensor.detach()
    shared = _holders(tensor)
    other = tensor.untyped_storage()
    kept = _holders(tensor)
    del other
    if alone is None or shared is None or kept is None:
        return 0, 0
    usable = shared[0] == alone[0] + 1 and kept[1] == alone[1] + 1 and _holders(tensor) == alone
    return alone if usable else (0, 0)

"""torch, if this process has imported it, and the memory of its tensors as arrays."""

import sys
from functools import cache
from typing import Any
from weakref import getweakrefcount

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


class TorchMemory:
    """A tensor's memory, as the owner of the array that `array_over` returns.

    `Tensor.numpy` would mark the tensor's storage as one that torch did not allocate.

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
        """Tell whether torch allocated the memory, in this process alone, and no other tensor has it."""
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
    """Return numpy's dtype for one of torch's, or None where it has none, as for bfloat16."""
    import torch

    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _holders(tensor: Any) -> tuple[int, int] | None:
    """Return how many hold a tensor's storage, and its Python object; None where torch does not count them.

    The counter is private to torch. Nothing public tells whether another tensor has the same storage: a
    kept one, a module's buffer, one in the graph of autograd.
    """
    import torch

    storage = tensor.untyped_storage()
    try:
        return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)
    except (AttributeError, TypeError):
        return None


@cache
def _holders_of_one_tensor() -> tuple[int, int]:
    """Return the reference counts of a storage with one tensor; (0, 0) if the counters count something else."""
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
    sees = shared[0] == alone[0] + 1 and kept[1] == alone[1] + 1 and _holders(tensor) == alone
    return alone if sees else (0, 0)

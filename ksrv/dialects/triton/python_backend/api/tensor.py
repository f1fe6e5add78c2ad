"""Tensor: a named array of a request or response, with conversions from and to numpy and DLPack."""

import sys
from typing import Any

import numpy as np

from ksrv.dialects.triton.python_backend.api.datatypes import NUMBERS
from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.handlers.models import array_of
from ksrv.model.datatypes import NAME_BY_DTYPE
from ksrv.request import Array, Element
from ksrv.request import Tensor as WireTensor
from ksrv.torch_interop import array_over, numpy_dtype

_CPU = (1, 0)
"""DLPack's device (kind, number) for memory of the CPU."""
_HOST_DEVICES = (1, 3)
"""DLPack's kinds of devices whose memory a CPU can read: CPU, and pinned memory of CUDA."""


class Tensor:
    """A tensor of a request or response.

    Args:
        tensor: The values; they are copied unless they are in C order. Texts are arrays of objects or of bytes.

    Raises:
        TritonModelException: The name is empty, or Triton has no such datatype.
    """

    def __init__(self, name: str, tensor: Array) -> None:
        if not isinstance(tensor, np.ndarray):
            raise TypeError(f"a Tensor is made of a numpy array, not {type(tensor).__name__}")
        if tensor.dtype.kind in "SU":
            tensor = tensor.astype(np.object_)
        datatype = "BYTES" if tensor.dtype == np.object_ else NAME_BY_DTYPE.get(tensor.dtype)
        if datatype is None:
            raise TritonModelException(
                f"the tensor {name!r} is of the dtype {tensor.dtype}, which has no datatype in Triton; convert it"
            )
        self._fill(name, datatype, np.ascontiguousarray(tensor).reshape(tensor.shape))

    def _fill(self, name: str, datatype: str, array: Array | None, torch: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        self._name = name
        self._datatype = datatype
        self._array = array
        self._torch = torch  # the values if they are on a GPU, else None

    @classmethod
    def of(cls, tensor: WireTensor) -> "Tensor":
        """Return a tensor of a request, or of the answer of a model that was called.

        Args:
            tensor: The tensor; values of BF16 are bit patterns of 16 bits.
        """
        made = cls.__new__(cls)
        made._fill(tensor.name, tensor.datatype, array_of(tensor))
        return made

    def name(self) -> str:
        """Return the name."""
        return self._name

    def triton_dtype(self) -> int:
        """Return the number of the datatype in Triton's enumeration."""
        return NUMBERS["STRING" if self._datatype == "BYTES" else self._datatype]

    def shape(self) -> list[int]:
        """Return the sizes."""
        array = self._torch if self._array is None else self._array
        return [int(size) for size in array.shape]

    def is_cpu(self) -> bool:
        """Tell whether the values are in the CPU's memory."""
        return self._array is not None

    def as_numpy(self) -> Array:
        """Return the values; texts are an array of `bytes` objects.

        Raises:
            TritonModelException: They are on a GPU, or are BF16, which numpy does not have.
        """
        if self._array is None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    # ---- DLPack -----------------------------------------------------------------------------

    def to_dlpack(self) -> Any:
        """Return the values as a DLPack capsule. It shares the memory, unless the memory is read-only."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        """See DLPack's protocol for Python."""
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._array is None or self._datatype == "BF16":
            return _torch().utils.dlpack.to_dlpack(self._as_torch())
        array = self._array
        if not array.flags.writeable:  # a capsule cannot mark memory as read-only
            array = array.copy()
        return array.__dlpack__()

    def _as_torch(self) -> Any:
        if self._array is None:
            return self._torch
        torch = _torch()
        writable = self._array if self._array.flags.writeable else self._array.copy()
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)

    def __dlpack_device__(self) -> tuple[int, int]:
        """See DLPack's protocol for Python."""
        if self._array is not None:
            return _CPU
        kind, number = self._torch.__dlpack_device__()
        return int(kind), int(number)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """Return a tensor that shares the memory of a DLPack capsule, or of an object with `__dlpack__`.

        Args:
            tensor: The capsule or object.

        Raises:
            TritonModelException: `tensor` is neither, or is not in C order.
        """
        if not isinstance(name, str) or not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        is_capsule = type(tensor).__name__ == "PyCapsule"
        if not is_capsule and not (
            hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")
        ):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        made = Tensor.__new__(Tensor)
        torch = sys.modules.get("torch")
        if torch is not None:
            made._take_torch(name, torch.from_dlpack(tensor))
        else:
            source = _Capsule(tensor) if is_capsule else tensor
            made._take_numpy(name, source)
        return made

    def _take_torch(self, name: str, found: Any) -> None:
        if not found.is_contiguous():
            raise TritonModelException(_NOT_CONTIGUOUS)
        dtype = numpy_dtype(found.dtype)
        datatype = None if dtype is None else NAME_BY_DTYPE.get(dtype)
        if found.dtype == _torch().bfloat16:
            datatype = "BF16"
        datatype = _named(name, datatype, found.dtype)
        if found.device.type == "cpu":
            self._fill(name, datatype, array_over(found))
        else:
            self._fill(name, datatype, None, found)

    def _take_numpy(self, name: str, source: Any) -> None:
        if source.__dlpack_device__()[0] not in _HOST_DEVICES:
            raise TritonModelException("a tensor on a GPU needs torch: import torch in model.py")
        try:
            array = np.from_dlpack(source)
        except (BufferError, RuntimeError, TypeError) as error:
            raise TritonModelException(
                f"numpy does not take the DLPack tensor ({error}): import torch in model.py"
            ) from error
        if not array.flags.c_contiguous:
            raise TritonModelException(_NOT_CONTIGUOUS)
        self._fill(name, _named(name, NAME_BY_DTYPE.get(array.dtype), array.dtype), array)

    # ---- sending ----------------------------------------------------------------------------

    def on_wire(self) -> WireTensor:
        """Return the tensor in the engine's form, for an answer or a call. Values on a GPU are copied to the CPU."""
        array = array_over(self._torch.cpu()) if self._array is None else self._array
        if self._datatype != "BYTES":
            return WireTensor(self._name, self._datatype, array.shape, array)
        elements: list[Element] = [_element(self._name, value) for value in array.reshape(-1)]
        return WireTensor(self._name, "BYTES", array.shape, elements)


def _named(name: str, datatype: str | None, dtype: Any) -> str:
    if datatype is None:
        raise TritonModelException(
            f"the tensor {name!r} is of {dtype}, which has no datatype in Triton"
        )
    return datatype


class _Capsule:
    """An object with a capsule, because `np.from_dlpack` takes no bare capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU  # a capsule does not say it in Python; numpy refuses a capsule of a GPU when it opens it


_NOT_CONTIGUOUS = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise TritonModelException(
            "BF16 and tensors on a GPU need torch in the environment of the model"
        ) from error
    return torch


def _element(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    try:
        return str(value).encode()
    except UnicodeEncodeError as error:
        raise TritonModelException(
            f"the tensor {name!r} has a text that UTF-8 cannot express: {error.reason}"
        ) from None

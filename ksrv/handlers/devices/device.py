"""The interface of a device to the runner of a handler.

`Device` itself is used for the CPU, MPS, XPU and XLA, for which ksrv makes no streams: `put` returns when the tensor is
on the device, and an output on the device is copied when its values are read for the answer. `CudaDevice` derives from
it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv.errors import KsrvError
from ksrv.loaders.device import torch_device
from ksrv.request import Array

Lease = Callable[[int], Block]


class Device:
    """The device of one instance.

    Args:
        name: The device's name, such as "cuda:0".

    Attributes:
        name: The device's name.
        has_stream: Whether operations are queued on a stream, so that the caller continues before they are done.
        lease_answer: Leases the memory that outputs are copied to. The runner may replace it.
    """

    has_stream = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease_answer: Lease = buffer_pool.lease

    def free_memory(self) -> tuple[int, int] | None:
        """Return the device's free and total bytes of memory, or None if they are unknown."""
        return None

    def lease(self, nbytes: int) -> Block:
        """Return memory for the inputs of a batch.

        Args:
            nbytes: How many bytes.

        Raises:
            MemoryError: No memory is left.
        """
        return buffer_pool.lease(nbytes)

    def running(self) -> AbstractContextManager[None]:
        """Run a block of this thread on the instance's stream. At its end all operations of the block are done."""
        return nullcontext()

    def put(self, array: Array) -> Any:
        """Return an array as a torch tensor on the device.

        Args:
            array: The array. On the CPU the tensor shares its memory, unless the array is read-only:
                then it is copied, so that an in-place operator cannot change it.
        """
        return torch_tensor(array).to(torch_device(self.name))

    def fetch(self, result: Any) -> Any:
        """Return a handler's result with the tensors on the device copied into memory.

        Args:
            result: The value that the handler returned: tensors, or containers of tensors.
        """
        return result

    def finish(self) -> None:
        """Wait until the operations that were queued on the device are done."""

    def failure_of(self, error: BaseException) -> KsrvError | None:
        """Return the error that clients get for an error of the device, or None for any other error."""
        return None

    def close(self) -> None:
        """Release the streams and memory that the device keeps for the instance."""


def bfloat16() -> Any:
    """Return torch's dtype for BF16."""
    import torch

    return torch.bfloat16


def torch_tensor(array: Array) -> Any:
    """Return a tensor over an array's memory, or over a copy of a read-only array."""
    import torch

    if not array.flags.writeable:
        buffer_pool.count_copy(array.nbytes)
        array = array.copy(order="K")
    return torch.from_numpy(array)

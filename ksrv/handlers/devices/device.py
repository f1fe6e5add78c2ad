"""A device as the runner of a handler sees it.

`Device` itself is every device without streams: the CPU, MPS, XPU and XLA. A tensor is there as
soon as it is requested, and an output on the device is copied when the answer is read.
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
    """One instance's way to its device.

    Args:
        name: The device's name, such as "cuda:0".

    Attributes:
        name: The device's name.
        has_stream: Whether operations are queued: they happen later, in order, while the caller continues.
        lease_answer: Leases the memory that outputs are copied to; the executor may set another.
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
        """Have this thread work for the instance: what it asks of the device is done at the end."""
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
        """Wait for what was asked of the device, unless that has been waited for."""

    def failure_of(self, error: BaseException) -> KsrvError | None:
        """Return the error that clients get for an error of the device, or None for any other error."""
        return None

    def close(self) -> None:
        """Let go of what the device keeps for the instance."""


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

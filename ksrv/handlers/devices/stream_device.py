"""A device with streams: copies and kernels are queued, and the caller waits once, for the answer.

Each instance has one stream. An input is copied to the device once; if batches are joined or images
decoded, the memory is pinned, and the device reads it by itself while the handler continues. (Memory of the
front ends is not pinned: the driver copies it, which takes less time than a copy into pinned memory first.) Kernels
follow on the same stream; the outputs are copied back once each, into one pinned block, and only then does
the thread wait. Memory that copies read is kept until that wait, however early the handler releases it.

The methods that begin with an underscore are the interface to a library: CUDA's are in
`ksrv.handlers.devices.cuda`, and the tests have a device that records its calls.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv.handlers.devices.device import Device
from ksrv.request import Array
from ksrv.torch_interop import numpy_dtype

ALIGNMENT = 64


class _Thread(threading.local):
    device: "StreamDevice | None" = None  # that this thread works for


_thread = _Thread()


class StreamDevice(Device):
    """One instance's stream on a device, and its pinned memory."""

    has_stream = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import torch

        self._torch: Any = torch
        self.lease_answer = lease_pages
        self._takes_inputs = False
        self._held: list[Array] = []  # whose memory a copy may still read
        self._behind = False

    def lease(self, nbytes: int) -> Block:
        """See `Device.lease`: memory that can be pinned, once the handler has put an input here."""
        return buffer_pool.lease(nbytes, pages=self._takes_inputs)

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Device.running`."""
        if not self._is_used():
            yield
            return
        outer, before = _thread.device, self._enter()
        _thread.device = self
        try:
            try:
                yield
            finally:
                self.finish()
        finally:
            _thread.device = outer
            self._leave(before)

    def put(self, array: Array) -> Any:
        """See `Device.put`; a thread that the handler started itself waits for the copy."""
        self._takes_inputs = True
        source = self._torch.from_numpy(array if array.flags.writeable else _unlocked(array))
        if _thread.device is not self:
            return self._copy_in(source, wait=True)
        block = block_of(array)
        if block is not None:
            block.pin()
        tensor = self._copy_in(source, wait=False)
        self._held.append(array)
        self._behind = True
        return tensor

    def fetch(self, result: Any) -> Any:
        """See `Device.fetch`; all tensors of a result are waited for together."""
        found: dict[int, Any] = {}
        if isinstance(result, Mapping):
            result = dict(result)
        self._find(result, found)
        if not found:
            return result
        if _thread.device is not self:
            fetched = {key: tensor.detach().cpu() for key, tensor in found.items()}
        else:
            fetched = self._copy_all_out(found)
        return _replaced(result, fetched)

    def finish(self) -> None:
        """See `Device.finish`."""
        if self._behind:
            try:
                self._synchronise()
            finally:
                self._behind = False
                self._held.clear()

    def close(self) -> None:
        """See `Device.close`."""
        self._held.clear()

    # ---- copies -----------------------------------------------------------------------------

    def _find(self, value: Any, found: dict[int, Any]) -> None:
        """Note the tensors on the device inside of a value, by their `id`."""
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            if self.holds(value):
                found[id(value)] = value
            return
        for one in value:
            self._find(one, found)

    def _copy_all_out(self, found: dict[int, Any]) -> dict[int, Any]:
        """Copy tensors into one pinned block and wait for them."""
        torch = self._torch
        dense = {
            key: tensor.detach().resolve_conj().resolve_neg().contiguous()
            for key, tensor in found.items()
            if tensor.layout is torch.strided and not tensor.is_quantized
        }
        starts, total = {}, 0
        for key, tensor in dense.items():
            starts[key] = total
            total += (tensor.nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        block = self.lease_answer(total)
        block.pin()
        fetched = {}
        for key, tensor in dense.items():
            dtype = numpy_dtype(tensor.dtype)
            array = buffer_pool.array(block, dtype or "<u1", _shape(tensor, dtype), starts[key])
            target = torch.from_numpy(array)
            if dtype is None:
                target = target.view(tensor.dtype).view(tensor.shape)
            self._copy_out(tensor, target)
            fetched[key] = target if dtype is None else array
        self._behind = True
        self.finish()
        return fetched

    # ---- what a library does ----------------------------------------------------------------

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value is a tensor on a device of this kind."""

    @abstractmethod
    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record what a function launches.

        Args:
            call: The function; it is called a few times.

        Returns:
            A function that launches it again, and what the recorded call returned: tensors that each
            launch writes anew.
        """

    @abstractmethod
    def _is_used(self) -> bool:
        """Whether anything in this process uses a device of this kind, which takes memory there."""

    @abstractmethod
    def _enter(self) -> Any:
        """Make the instance's stream this thread's; return the stream that it had."""

    @abstractmethod
    def _leave(self, before: Any) -> None:
        """Give the thread its stream back."""

    @abstractmethod
    def _copy_in(self, tensor: Any, *, wait: bool) -> Any:
        """Return a copy of a tensor on the device, on this thread's stream."""

    @abstractmethod
    def _copy_out(self, tensor: Any, target: Any) -> None:
        """Queue the copy of a tensor on the device to one in memory."""

    @abstractmethod
    def _synchronise(self) -> None:
        """Wait for the instance's stream."""


def lease_pages(nbytes: int) -> Block:
    """Return a block that can be pinned.

    Args:
        nbytes: How many bytes.
    """
    return buffer_pool.lease(nbytes, pages=True)


def block_of(array: Array) -> Block | None:
    """Return the block that an array is a view of; None for other memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, Block) else None


class _Unlocked:
    """Read-only memory as torch takes it; a copy to a device only reads it."""

    def __init__(self, array: Array) -> None:
        form = array.__array_interface__
        self.__array_interface__ = {**form, "data": (form["data"][0], False)}
        self.array = array


def _unlocked(array: Array) -> Array:
    return np.asarray(_Unlocked(array))


def _shape(tensor: Any, dtype: np.dtype[Any] | None) -> tuple[int, ...]:
    return (tensor.nbytes,) if dtype is None else tuple(tensor.shape)


def _replaced(value: Any, fetched: dict[int, Any]) -> Any:
    """Return a value with the tensors of `fetched` in their places."""
    if isinstance(value, dict):
        return {key: _replaced(one, fetched) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(one, fetched) for one in value)
    if isinstance(value, list):
        return [_replaced(one, fetched) for one in value]
    return fetched.get(id(value), value)

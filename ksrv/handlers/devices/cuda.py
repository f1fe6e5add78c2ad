"""The CUDA device: copies and kernels are queued on a stream, and the thread waits only once, for the outputs.

Each instance has one stream. An input is copied to the device once. Memory of joined batches and decoded images is
pinned, so the device reads it while the handler continues. (Bodies that a front end received are not pinned: the driver
copies them, which takes less time than a copy into pinned memory first.) Kernels follow on the same stream. Each output
is copied back once, into one pinned block, and only then the thread waits. Memory that queued copies read is kept until
that wait, even if the handler releases it earlier.

The tests run without a GPU: their device replaces the methods after "calls of torch".
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block
from ksrv.errors import DeviceLost, KsrvError, Overloaded
from ksrv.handlers.devices.device import Device
from ksrv.handlers.devices.lost import is_lost
from ksrv.request import Array
from ksrv.torch_interop import numpy_dtype

log = logging.getLogger("ksrv.handlers")

ALIGNMENT = 64

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
# Calls before a recording, in which libraries choose their kernels and allocate their memory.
_WARM_CALLS = 2

_setting_up = threading.Lock()
_recording = threading.Lock()  # one recording at a time in a process
_pins = False  # whether `use_cuda_pinning` was called


class _Thread(threading.local):
    device: "CudaDevice | None" = None  # the device in whose `running` this thread is


_thread = _Thread()


class CudaDevice(Device):
    """One instance's stream on a GPU, and its pinned memory.

    Args:
        name: "cuda:N".
    """

    has_stream = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import torch

        self._torch: Any = torch
        # The runner of a handler process replaces it.
        self.lease_answer = partial(buffer_pool.lease, pages=True)
        self._takes_inputs = False  # whether the handler has put an input on the device
        self._held: list[Array] = []  # arrays whose memory a queued copy may still read
        self._has_queued = False  # whether operations were queued since the last `finish`
        self._device = torch.device(name)
        self._own_stream: Any = None
        self._graph_memory: Any = None
        self._ran_out_of_memory = False

    def free_memory(self) -> tuple[int, int]:
        """See `Device.free_memory`."""
        free, total = self._torch.cuda.mem_get_info(self._device)
        return free, total

    def lease(self, nbytes: int) -> Block:
        """See `Device.lease`. Once the handler has put an input on the device, the memory can be pinned."""
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
        block = buffer_pool.block_of(array)
        if block is not None:
            block.pin()
        tensor = self._copy_in(source, wait=False)
        self._held.append(array)
        self._has_queued = True
        return tensor

    def fetch(self, result: Any) -> Any:
        """See `Device.fetch`. The thread waits once for all tensors of a result."""
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
        if self._has_queued:
            try:
                self._synchronise()
            finally:
                self._has_queued = False
                self._held.clear()

    # ---- copies -----------------------------------------------------------------------------

    def _find(self, value: Any, found: dict[int, Any]) -> None:
        """Add the tensors on the device that a value contains to `found`, by their `id`."""
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            if self.holds(value):
                found[id(value)] = value
            return
        for item in value:
            self._find(item, found)

    def _copy_all_out(self, found: dict[int, Any]) -> dict[int, Any]:
        """Copy tensors into one pinned block and wait for them."""
        torch = self._torch
        # Sparse and quantized tensors stay on the device: `OutputConverter` refuses them.
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
        self._has_queued = True
        self.finish()
        return fetched

    # ---- calls of torch ---------------------------------------------------------------------

    def holds(self, value: Any) -> bool:
        """Whether a value is a tensor on a GPU."""
        return isinstance(value, self._torch.Tensor) and value.is_cuda

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record the kernels that a function launches as a CUDA graph.

        Args:
            call: The function. It is called a few times.

        Returns:
            A function that launches the kernels again, and the outputs of the recorded call: tensors that each
            launch overwrites.
        """
        cuda = self._torch.cuda
        with _recording:
            for _ in range(_WARM_CALLS):
                call()
            if self._graph_memory is None:
                self._graph_memory = cuda.graph_pool_handle()
            graph = cuda.CUDAGraph()
            # "thread_local": other threads continue, and may do things that would abort a recording of all threads.
            with cuda.graph(
                graph,
                pool=self._graph_memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                outputs = call()
        return graph.replay, outputs

    def failure_of(self, error: BaseException) -> KsrvError | None:
        """See `Device.failure_of`: too little memory, or a device that can no longer be used in this process."""
        torch = self._torch
        if is_lost(error):
            text = str(error).splitlines()[0]
            return DeviceLost(f"the device {self.name} can be used no more: {text}")
        if not isinstance(error, torch.OutOfMemoryError) and not (
            isinstance(error, torch.AcceleratorError) and error.error_code == _NO_MEMORY
        ):
            return None
        self._ran_out_of_memory = True
        free, total = self.free_memory()
        log.error("%s has %d of %d MiB free", self.name, free >> 20, total >> 20)
        return Overloaded(
            f"the device {self.name} has too little memory for this batch; send fewer rows, or try "
            f"again when others have been answered",
            "device_memory",
        )

    def close(self) -> None:
        """See `Device.close`."""
        self._held.clear()
        self._own_stream = self._graph_memory = None

    @property
    def _stream(self) -> Any:
        if self._own_stream is None:
            use_cuda_pinning()
            self._own_stream = self._torch.cuda.Stream(self._device)
            # The model was loaded on the default stream, for which the new stream does not wait.
            self._torch.cuda.synchronize(self._device)
        return self._own_stream

    def _is_used(self) -> bool:
        """Tell whether this process uses a GPU already. If not, a stream would initialize CUDA, which takes GPU
        memory.
        """
        return self._own_stream is not None or bool(self._torch.cuda.is_initialized())

    def _enter(self) -> Any:
        """Make the instance's stream the current stream of this thread; return the previous stream."""
        cuda = self._torch.cuda
        before = cuda.current_stream(cuda.current_device())  # with a device it takes half the time
        cuda.set_stream(self._stream)  # also makes its device the current device
        return before

    def _leave(self, before: Any) -> None:
        self._torch.cuda.set_stream(before)
        if self._ran_out_of_memory:  # now the memory of the failed batch can be freed
            self._ran_out_of_memory = False
            self._torch.cuda.empty_cache()

    def _copy_in(self, tensor: Any, *, wait: bool) -> Any:
        return tensor.to(self._device, non_blocking=not wait)

    def _copy_out(self, tensor: Any, target: Any) -> None:
        target.copy_(tensor, non_blocking=True)

    def _synchronise(self) -> None:
        self._stream.synchronize()


class _Unlocked:
    """Presents read-only memory as writeable, because torch warns otherwise. A copy to a device only reads it."""

    def __init__(self, array: Array) -> None:
        form = array.__array_interface__
        self.__array_interface__ = {**form, "data": (form["data"][0], False)}
        self.array = array


def _unlocked(array: Array) -> Array:
    """Return a writeable view of a read-only array."""
    return np.asarray(_Unlocked(array))


def _shape(tensor: Any, dtype: np.dtype[Any] | None) -> tuple[int, ...]:
    """Return the shape of the array for a tensor; a tensor without a dtype of numpy is copied as bytes."""
    return (tensor.nbytes,) if dtype is None else tuple(tensor.shape)


def _replaced(value: Any, fetched: dict[int, Any]) -> Any:
    """Return a value with the tensors of `fetched` in their places."""
    if isinstance(value, dict):
        return {key: _replaced(item, fetched) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(item, fetched) for item in value)
    if isinstance(value, list):
        return [_replaced(item, fetched) for item in value]
    return fetched.get(id(value), value)


def use_cuda_pinning() -> None:
    """Have the buffer pool pin blocks with CUDA, once in a process."""
    global _pins
    with _setting_up:
        if _pins:
            return
        _pins = True
        addresses = _pinning_functions()
        if addresses is None:
            log.warning("CUDA's functions for pinned memory are not found: copies take longer")
        else:
            buffer_pool.use_pinning(*addresses)


def _pinning_functions() -> tuple[int, int] | None:
    """Return the addresses of cudaHostRegister and cudaHostUnregister in the library that torch has loaded."""
    import torch

    libraries = [_loaded_runtime(), torch._C.__file__]
    for library in libraries:
        if library is None:
            continue
        try:
            found = ctypes.CDLL(library)
            pair = found.cudaHostRegister, found.cudaHostUnregister
        except (OSError, AttributeError):
            continue
        pin, unpin = (ctypes.cast(function, ctypes.c_void_p).value for function in pair)
        if pin and unpin:
            return pin, unpin
    return None


def _loaded_runtime() -> str | None:
    """Return the path of the CUDA runtime that torch has loaded into this process."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip().partition("/")
                if "libcudart" in path[2]:
                    return "/" + path[2]
    except OSError:
        pass
    return None

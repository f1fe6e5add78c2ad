"""CUDA as a device: streams, pinned memory and graphs of torch's, and which of its errors mean what."""

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from ksrv._native.memory import buffer_pool
from ksrv.errors import DeviceLost, KsrvError, Overloaded
from ksrv.handlers.devices.lost import is_lost
from ksrv.handlers.devices.stream_device import StreamDevice

log = logging.getLogger("ksrv.handlers")

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_WARM_CALLS = (
    2  # before a recording: libraries choose their kernels and take their memory meanwhile
)

_setting_up = threading.Lock()
_recording = threading.Lock()  # one at a time in a process
_pins = False


class CudaDevice(StreamDevice):
    """One instance's stream on a GPU.

    Args:
        name: "cuda:N".
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._device = self._torch.device(name)
        self._own_stream: Any = None
        self._graph_memory: Any = None
        self._was_full = False

    def free_memory(self) -> tuple[int, int]:
        """See `Device.free_memory`."""
        free, total = self._torch.cuda.mem_get_info(self._device)
        return free, total

    def holds(self, value: Any) -> bool:
        """See `StreamDevice.holds`."""
        return isinstance(value, self._torch.Tensor) and value.is_cuda

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See `StreamDevice.capture`."""
        cuda = self._torch.cuda
        with _recording:
            for _ in range(_WARM_CALLS):
                call()
            if self._graph_memory is None:
                self._graph_memory = cuda.graph_pool_handle()
            graph = cuda.CUDAGraph()
            # Other instances' threads go on, and may do what would end a recording of all threads.
            with cuda.graph(
                graph,
                pool=self._graph_memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                outputs = call()
        return graph.replay, outputs

    def failure_of(self, error: BaseException) -> KsrvError | None:
        """See `Device.failure_of`: too little memory, or a device that this process has lost."""
        torch = self._torch
        if is_lost(error):
            text = str(error).splitlines()[0]
            return DeviceLost(f"the device {self.name} can be used no more: {text}")
        if not isinstance(error, torch.OutOfMemoryError) and not (
            isinstance(error, torch.AcceleratorError) and error.error_code == _NO_MEMORY
        ):
            return None
        self._was_full = True
        free, total = self.free_memory()
        log.error("%s has %d of %d MiB free", self.name, free >> 20, total >> 20)
        return Overloaded(
            f"the device {self.name} has too little memory for this batch; send fewer rows, or try "
            f"again when others have been answered",
            "device_memory",
        )

    def close(self) -> None:
        """See `Device.close`."""
        super().close()
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
        return self._own_stream is not None or bool(self._torch.cuda.is_initialized())

    def _enter(self) -> Any:
        cuda = self._torch.cuda
        before = cuda.current_stream(cuda.current_device())  # asked for so, it takes half the time
        cuda.set_stream(self._stream)  # which makes its device the thread's as well
        return before

    def _leave(self, before: Any) -> None:
        self._torch.cuda.set_stream(before)
        if self._was_full:  # by now nothing holds what the failed batch had there
            self._was_full = False
            self._torch.cuda.empty_cache()

    def _copy_in(self, tensor: Any, *, wait: bool) -> Any:
        return tensor.to(self._device, non_blocking=not wait)

    def _copy_out(self, tensor: Any, target: Any) -> None:
        target.copy_(tensor, non_blocking=True)

    def _synchronise(self) -> None:
        self._stream.synchronize()


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
    """The addresses of cudaHostRegister and cudaHostUnregister in the library that torch has loaded."""
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
    """The path of the CUDA runtime that is in this process, which is torch's."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip().partition("/")
                if "libcudart" in path[2]:
                    return "/" + path[2]
    except OSError:
        pass
    return None

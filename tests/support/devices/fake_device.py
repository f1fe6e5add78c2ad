"""A device that records its calls, in place of a GPU.

Its tensors are in memory and are marked. Queued work happens when a caller waits for it: a copy back is made
only then, and a write to its source before that is detected. A recorded graph has only memory, as on a GPU: a replay
writes the same outputs again.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import torch

from ksrv._native.memory import buffer_pool
from ksrv.errors import DeviceLost, KsrvError, Overloaded
from ksrv.handlers import handler_context
from ksrv.handlers.devices.cuda import CudaDevice

WAITING = {"cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__array__"}
NO_MEMORY = "the fake device is full"
LOST = "the fake device fell off the bus"


class DeviceTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in WAITING:
            FakeDevice.waited_by_handlers.append(func.__name__)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class Pins:
    """The device's functions for pinned memory."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        pin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._pin = pin(lambda address, nbytes, flags: self.bytes.update({address: nbytes}) or 0)
        unpin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        self._unpin = unpin(lambda address: self.bytes.pop(address, 0) * 0)

    def use(self) -> None:
        """Have the buffer pool pin blocks with them."""
        pair = self._pin, self._unpin
        self.bytes.clear()
        pin, unpin = (ctypes.cast(one, ctypes.c_void_p).value for one in pair)
        assert pin and unpin
        buffer_pool.use_pinning(pin, unpin)


PINS = Pins()


class FakeDevice(CudaDevice):
    """One instance's stream on the device.

    Attributes:
        events: The calls of this instance, in order.
        made: All instances.
        waited_by_handlers: How handlers' own code waited for tensors.
        refuses: Whether to refuse to record graphs.
    """

    made: list["FakeDevice"] = []
    waited_by_handlers: list[str] = []
    refuses = False
    _numbers = itertools.count()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.number = next(self._numbers)
        self.events: list[str] = []
        self.closed = False
        self._queued: list[Callable[[], None]] = []
        self.made.append(self)

    def free_memory(self) -> tuple[int, int]:
        return 1 << 30, 2 << 30

    def holds(self, value: Any) -> bool:
        return isinstance(value, DeviceTensor)

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.events.append("record")
        outputs = call()

        def replay() -> None:
            self.events.append("replay")
            _write(outputs, call())

        return replay, outputs

    def failure_of(self, error: BaseException) -> KsrvError | None:
        if str(error) == NO_MEMORY:
            return Overloaded("the device has too little memory for this batch", "device_memory")
        return DeviceLost("the device can be used no more") if str(error) == LOST else None

    def close(self) -> None:
        super().close()
        self.closed = True

    def _is_used(self) -> bool:
        return True

    def _enter(self) -> Any:
        self.events.append("enter")

    def _leave(self, before: Any) -> None:
        self.events.append("leave")

    def _copy_in(self, tensor: Any, *, wait: bool) -> Any:
        kind = "waiting" if wait else "pinned" if _is_pinned(tensor) else "pageable"
        self.events.append(f"in {tensor.nbytes} {kind}")
        copy = tensor.clone()

        def check() -> None:
            assert torch.equal(copy, tensor), "memory was written to while a copy read it"

        if not wait:
            self._queued.append(check)
        return copy.clone().as_subclass(DeviceTensor)

    def _copy_out(self, tensor: Any, target: Any) -> None:
        kind = "pinned" if _is_pinned(target) else "pageable"
        self.events.append(f"out {tensor.nbytes} {kind}")
        plain = tensor.as_subclass(torch.Tensor).clone()
        target.reshape(-1).view(torch.uint8).fill_(0xFF)
        self._queued.append(lambda: target.copy_(plain))

    def _synchronise(self) -> None:
        self.events.append("synchronise")
        for happens in self._queued:
            happens()
        self._queued.clear()


def use_fake_device() -> None:
    """Have every handler that is loaded from now on compute on a `FakeDevice`."""
    PINS.use()
    vars(handler_context)["open_device"] = FakeDevice


def _is_pinned(tensor: Any) -> bool:
    address: int = tensor.data_ptr()
    return any(start <= address < start + nbytes for start, nbytes in PINS.bytes.items())


def _write(target: Any, source: Any) -> None:
    if isinstance(target, torch.Tensor):
        with torch.inference_mode():
            target.copy_(source)
    elif isinstance(target, dict):
        for key, value in target.items():
            _write(value, source[key])
    elif isinstance(target, (list, tuple)):
        for one, value in zip(target, source, strict=True):
            _write(one, value)

"""Memory that a handler answers with and can reach afterwards, in every way that Python libraries offer."""

import array
import ctypes
import gc
import mmap
import tempfile
import threading
import weakref
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

Kept = tuple[Any, Callable[[], Any]]
"""A writable array of FP32 over the memory, and a function that returns an output over it."""


class Subclass(np.ndarray[Any, Any]):
    """An array of a subclass."""


class SubclassTensor(torch.Tensor):
    """A tensor of a subclass."""


class _Interface:
    """Memory by `__array_interface__`, without a reference to its array."""

    def __init__(self, over: Any) -> None:
        self.__array_interface__ = {**over.__array_interface__}


class _Struct:
    """Memory by `__array_struct__`."""

    def __init__(self, over: Any) -> None:
        self.__array_struct__ = over.__array_struct__


class _Converted:
    """An object that numpy converts by its `__array__`."""

    def __init__(self, over: Any) -> None:
        self._over = over

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._over


class _Exchange:
    """An object of another library that gives its memory as a DLPack capsule."""

    def __init__(self, over: Any) -> None:
        self._over = over

    def __dlpack__(self, **options: Any) -> Any:
        return self._over.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._over.__dlpack_device__()


class _Module(torch.nn.Module):
    """Keeps what it answered last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a new tensor, and keep it."""
        self.last = x + 0
        return self.last


def _of_buffer(buffer: Any, count: int) -> Kept:
    writer = np.frombuffer(buffer, np.float32, count)
    return writer, lambda: np.frombuffer(buffer, np.float32, count)


def _over(made: Callable[[Any], Any]) -> Callable[[int], Kept]:
    """Return the maker of a kind that is an array, shown by a function."""

    def make(count: int) -> Kept:
        kept = np.zeros(count, np.float32)
        return kept, lambda: made(kept)

    return make


def _of_tensor(made: Callable[[Any], Any]) -> Callable[[int], Kept]:
    def make(count: int) -> Kept:
        kept = torch.zeros(count)
        return kept.numpy(), lambda: made(kept)

    return make


def _larger(count: int) -> Kept:
    kept = np.zeros(count + 16, np.float32)
    return kept[8 : count + 8], lambda: kept[8 : count + 8]


def _mapped_file(count: int) -> Kept:
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  the mappings keep it
    file.truncate(4 * count)
    writer = np.memmap(file.name, np.float32, "r+", shape=(count,))
    return writer, lambda: np.memmap(file.name, np.float32, "r+", shape=(count,))


def _mapped_tensor(count: int) -> Kept:
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  the mappings keep it
    file.truncate(4 * count)
    writer = np.memmap(file.name, np.float32, "r+", shape=(count,))
    return writer, lambda: torch.from_file(file.name, shared=True, size=count)


def _shared_block(count: int) -> Kept:
    block = shared_memory.SharedMemory(create=True, size=4 * count)
    block.unlink()
    return np.ndarray(count, np.float32, block.buf), lambda: np.ndarray(
        count, np.float32, block.buf
    )


def _shared_tensor(count: int) -> Kept:
    kept = torch.zeros(count).share_memory_()
    return kept.numpy(), lambda: kept[:]


def _script(count: int) -> Kept:
    module = torch.jit.script(_Module())
    module(torch.zeros(count))

    class Writer:
        def __setitem__(self, _: Any, number: float) -> None:
            module.last.fill_(number)

    return Writer(), lambda: module.last


KEPT: dict[str, Callable[[int], Kept]] = {
    "array": _over(lambda kept: kept),
    "slice": _over(lambda kept: kept[:]),
    "part of a larger array": _larger,
    "other dtype and back": _over(lambda kept: kept.view("u4").view("f4")),
    "subclass": _over(lambda kept: kept.view(Subclass)),
    "plain view of a subclass": _over(lambda kept: kept.view(Subclass).view(np.ndarray)),
    "record array": _over(lambda kept: kept.view(np.recarray).view(np.float32)),
    "as_strided": _over(np.lib.stride_tricks.as_strided),
    "broadcast": _over(lambda kept: np.broadcast_to(kept, kept.shape)),
    "read-only view": _over(lambda kept: np.frombuffer(memoryview(kept).toreadonly(), np.float32)),
    "memoryview": _over(lambda kept: np.asarray(memoryview(kept))),
    "memoryview of bytes": _over(
        lambda kept: np.frombuffer(memoryview(kept).cast("B"), np.float32)
    ),
    "frombuffer of an array": _over(lambda kept: np.frombuffer(kept, np.float32)),
    "__array_interface__": _over(lambda kept: np.asarray(_Interface(kept))),
    "__array_struct__": _over(lambda kept: np.asarray(_Struct(kept))),
    "__array__": _over(lambda kept: np.asarray(_Converted(kept))),
    "capsule": _over(np.from_dlpack),
    "capsule of another library": _over(lambda kept: np.from_dlpack(_Exchange(kept))),
    "capsule of a tensor": _of_tensor(lambda kept: np.from_dlpack(kept.detach())),
    "bytearray": lambda count: _of_buffer(bytearray(4 * count), count),
    "array.array": lambda count: _of_buffer(array.array("f", bytes(4 * count)), count),
    "ctypes": lambda count: _of_buffer((ctypes.c_float * count)(), count),
    "ctypes by ctypeslib": lambda count: (
        lambda block: (np.ctypeslib.as_array(block), lambda: np.ctypeslib.as_array(block))
    )((ctypes.c_float * count)()),
    "mmap": lambda count: _of_buffer(mmap.mmap(-1, 4 * count), count),
    "mapped file": _mapped_file,
    "shared memory": _shared_block,
    "tensor": _of_tensor(lambda kept: kept),
    "tensor's slice": _of_tensor(lambda kept: kept[:]),
    "tensor's alias": _of_tensor(lambda kept: kept.detach()),
    "tensor's array": _of_tensor(lambda kept: kept.numpy()),
    "parameter": _of_tensor(torch.nn.Parameter),
    "subclass of tensors": _of_tensor(lambda kept: kept.as_subclass(SubclassTensor)),
    "shared tensor": _shared_tensor,
    "mapped tensor": _mapped_tensor,
    "tensor over an array": _over(torch.from_numpy),
    "array of a tensor over an array": _over(lambda kept: torch.from_numpy(kept).numpy()),
    "tensor of a capsule": _over(from_dlpack),
    "tensor of a buffer": _over(lambda kept: torch.frombuffer(kept, dtype=torch.float32)),
    "attribute of TorchScript": _script,
}
"""Memory that a handler keeps, by what it returns of it. The output has one dimension."""

VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda one: one[:],
    "reshape": lambda one: one.reshape(1, -1).reshape(-1),
    "transpose": lambda one: one.reshape(1, -1).T.reshape(-1),
    "dtype": lambda one: one.view("u4").view("f4"),
    "subclass": lambda one: one.view(Subclass),
    "asarray": np.asarray,
    "memoryview": lambda one: np.asarray(memoryview(one)),
    "as_strided": np.lib.stride_tricks.as_strided,
    "frombuffer": lambda one: np.frombuffer(one, np.float32),
}
"""Views of an array that has one dimension."""


def _in_generator(value: Any) -> Callable[[], Any]:
    def frame(local: Any) -> Any:
        yield
        return local

    running = frame(value)
    next(running)
    return lambda: running.gi_frame.f_locals["local"]


def _in_thread(value: Any) -> Callable[[], Any]:
    asked, answered = threading.Event(), threading.Event()
    found: list[Any] = []

    def live(local: Any) -> None:
        asked.wait(60)
        found.append(local)
        answered.set()

    threading.Thread(target=live, args=(value,), daemon=True).start()

    def find() -> Any:
        asked.set()
        answered.wait(60)
        return found[0]

    return find


class _Circle:
    """Refers to itself, so that only the garbage collector finds it."""

    itself: Any
    value: Any


def _in_circle(value: Any) -> Callable[[], Any]:
    circle = _Circle()
    circle.itself, circle.value = circle, value
    number = id(circle)
    del circle

    def find() -> Any:
        found = [one for one in gc.get_objects() if type(one) is _Circle and id(one) == number]
        return found[0].value if found else None

    return find


def _in_graph(value: Any) -> Callable[[], Any]:
    with torch.inference_mode(False), torch.enable_grad():
        other = torch.ones(len(value), requires_grad=True)
        graph = other * value
    return lambda: graph.grad_fn._saved_other


def _in_module(value: Any) -> Callable[[], Any]:
    module = torch.nn.Module()
    module.register_buffer("kept", value)
    return lambda: module.kept


def _weak_storage(value: Any) -> Callable[[], Any]:
    storage, dtype = weakref.ref(value.untyped_storage()), value.dtype

    def find() -> Any:
        found = storage()
        return None if found is None else torch.tensor([], dtype=dtype).set_(found)

    return find


HELD: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "itself": lambda value: lambda: value,
    "a slice": lambda value: (lambda part: lambda: part)(value[1:]),
    "every second": lambda value: (lambda part: lambda: part)(value[::2]),
    "weak reference": weakref.ref,
    "a generator": _in_generator,
    "a thread": _in_thread,
    "a circle": _in_circle,
}
"""How a new array or tensor is held, and found again; it may be gone by then."""

HELD_ARRAYS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    **HELD,
    "its iterator": lambda value: (lambda flat: lambda: flat.base)(value.flat),
    "a memoryview": lambda value: (lambda view: lambda: np.asarray(view))(memoryview(value)),
    "a capsule": lambda value: (lambda taken: lambda: taken)(np.from_dlpack(value)),
    "a tensor": lambda value: (lambda made: lambda: made)(torch.from_numpy(value)),
    "ctypes": lambda value: (lambda made: lambda: made._arr)(value.ctypes),
}
HELD_TENSORS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    **HELD,
    "its array": lambda value: (lambda made: lambda: made)(value.numpy()),
    "an alias": lambda value: (lambda made: lambda: made)(value.detach()),
    "its storage": lambda value: (
        lambda kept, dtype: lambda: torch.tensor([], dtype=dtype).set_(kept)
    )(value.untyped_storage(), value.dtype),
    "weak storage": _weak_storage,
    "a graph": _in_graph,
    "a module": _in_module,
}


def kept_elements(count: int) -> dict[str, tuple[Any, Any]]:
    """Return memory of BYTES by its kind: buffers that can be written to, and an output of so many elements."""
    buffers = [bytearray(b"a" * 100_000) for _ in range(count)]
    views = [memoryview(bytearray(b"a" * 100_000)) for _ in range(count)]
    objects = np.empty(count, object)
    objects[:] = [bytearray(b"a" * 100_000) for _ in range(count)]
    fixed = np.array([b"a" * 100] * count)
    return {
        "bytearrays": (buffers, buffers),
        "memoryviews": (views, views),
        "object array": (list(objects), objects),
        "fixed width": ([fixed.view("u1")], fixed),
    }

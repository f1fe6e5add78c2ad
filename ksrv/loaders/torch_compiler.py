"""A lock for torch's compiler and for its readers of packages, which are not thread-safe."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_lock = threading.Lock()
_MODULES = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.package",
    "torch.export.pt2_archive._package",
)


@contextmanager
def torch_compiler() -> Iterator[None]:
    """Hold the lock, and import the compiler's modules before the block runs.

    The modules import each other in circles: two threads that load models would enter such a circle at different
    modules and see half-initialised modules. The readers of packages keep their state in global variables.
    """
    with _lock:
        for name in _MODULES:
            import_module(name)
        yield

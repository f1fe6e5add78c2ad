"""Turns at torch's compiler and at its readers of packages, which one thread at a time may use."""

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
    """Import the compiler's modules, and keep other threads from them while the context is open.

    The modules import each other in circles: two models that are loaded side by side would enter such
    a circle at different places and see half-made modules. The readers of packages keep their state
    in global variables.
    """
    with _lock:
        for name in _MODULES:
            import_module(name)
        yield

"""One handler is made and initialized at a time among the models of a process; ksrv's own loaders work side by side.

Packages that load models change global state while they do: `from_pretrained` of transformers switches functions of
its own off, and torch's default datatype, for the whole process. Two of them beside each other give models whose
weights were never read, or have another datatype. A handler's own code says nothing of that, so it has the process's other
handlers wait; what `model:` and `class:` name, `pt2:` compiles and the warm-up runs is loaded by code that may run beside it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ksrv.handlers.imports.import_lock import ImportLock, is_importing


class _Thread(threading.local):
    """What a thread holds.

    Attributes:
        model: The model whose handler it initializes alone, or "".
        patience_s: How long others wait for it.
    """

    model = ""
    patience_s = 0.0


_lock = ImportLock("the initialization of")
_thread = _Thread()


@contextmanager
def initialized_alone(model: str, patience_s: float) -> Iterator[None]:
    """Have no other handler initialized meanwhile, unless that takes too long."""
    # An import that has begun holds locks of modules, which the holder of this lock may wait for.
    if _thread.model or is_importing() or not _lock.acquire(model, patience_s):
        yield
        return
    _thread.model, _thread.patience_s = model, patience_s
    try:
        yield
    finally:
        _let_go()


@contextmanager
def initialized_beside_others() -> Iterator[None]:
    """Let the handlers of other models be initialized, until the end of this block."""
    model, patience_s = _thread.model, _thread.patience_s
    _let_go()
    try:
        yield
    finally:
        if model and _lock.acquire(model, patience_s):
            _thread.model = model


def _let_go() -> None:
    if _thread.model:
        _thread.model = ""
        _lock.release()

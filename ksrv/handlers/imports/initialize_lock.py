"""Only one handler of a process at a time is made and initialized; ksrv's loaders work in parallel.

Packages that load models change global state while they do: `from_pretrained` of transformers switches some of its
functions off, and torch's default datatype, for the whole process. Two such loads at a time give models whose weights
were never read, or have another datatype. ksrv cannot see whether a handler's code does that, so the process's other
handlers wait. `model:`, `class:`, `pt2:` and the warm-up need no lock, because their code may run in parallel.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ksrv.handlers.imports.import_lock import ImportLock, is_importing


class _Thread(threading.local):
    """The handler that a thread initializes.

    Attributes:
        model: The model whose handler it initializes alone, or "".
        patience_s: How long others wait for it without progress: see `ImportLock.acquire`.
    """

    model = ""
    patience_s = 0.0


_lock = ImportLock("the initialization of")
_thread = _Thread()


@contextmanager
def initialized_alone(model: str, patience_s: float) -> Iterator[None]:
    """Hold the lock in this block. The block runs without it if the current holder makes no progress."""
    # Inside an import this thread has locks of modules. It must not wait, because the holder of `_lock` may wait for
    # one of these modules.
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
    """Release the lock in this block, so that handlers of other models can be initialized."""
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

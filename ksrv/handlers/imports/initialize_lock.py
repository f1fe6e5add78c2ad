"""The lock for initialization: only one handler of a process at a time runs its constructor and `initialize`.

Packages change global state of the process while they load a model: `from_pretrained` of transformers replaces
functions and torch's default datatype. Two such loads at the same time give models whose weights were never read, or
have another datatype. ksrv cannot see whether a handler's code does that, so the other handlers of the process wait.
ksrv's loaders are safe in parallel, so they release the lock while they read a model file or compile a model; only the
constructor that `class:` names runs with the lock. The warm-up does not take it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ksrv.handlers.imports.import_lock import ImportLock, is_importing


class _Thread(threading.local):
    """The handler that a thread initializes.

    Attributes:
        model: The model for which the thread holds the lock, or "".
        patience_s: How long others wait without progress: see `ImportLock.acquire`.
    """

    model = ""
    patience_s = 0.0


_lock = ImportLock("the initialization of")
_thread = _Thread()


@contextmanager
def initialized_alone(model: str, patience_s: float) -> Iterator[None]:
    """Hold the lock in this block. The block runs without it if the current holder makes no progress."""
    # Inside an import this thread holds locks of modules. It must not wait for `_lock`, whose holder may wait for one
    # of these modules.
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

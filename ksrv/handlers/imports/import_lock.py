"""The import lock: only one model of a process imports at a time.

Python has a lock for each module. If two threads import modules that import each other, each holds one lock and waits
for the other lock. Python then raises `_DeadlockError`, or returns a partially initialized module ("cannot import name
..."). In a single thread the same imports succeed, and large packages rely on that. So models that are loaded at the
same time would fail at random in any import: at the top of a file, in `initialize`, in a lazy package's `__getattr__`,
in the warm-up.

A thread that runs a model's code takes the import lock for each outermost import. So a thread that waits for the import
lock holds no module's lock, and the two kinds of locks cannot deadlock. Threads that a package or a handler has started
never take the import lock, because an import may wait for such a thread. A lock whose holder makes no progress is not
waited for any longer: then two models import at the same time, as without the lock.
"""

import importlib._bootstrap
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from ksrv._native.batch.stages import current_context

log = logging.getLogger("ksrv.handlers")

STALL_S = 30.0
"""Other threads stop waiting if the import has begun no further module for this time: it may hang, load weights, or
wait for a lock of the waiting thread."""

LEAST_SHARE = 0.01
"""The share of a processor that an import uses at least, even on a busy machine. An import that uses less is taken to hang."""

Find = Callable[[str, Callable[..., ModuleType]], ModuleType]


class ImportLock:
    """A lock whose waiters give up if its holder makes no progress.

    Args:
        what: The work of the holder, for the log.
    """

    def __init__(self, what: str = "the import of") -> None:
        self._what = what
        self.reset()

    def reset(self) -> None:
        """Free the lock without its holder: in the child of a fork, the holding thread does not exist."""
        self._changed = threading.Condition()
        self._holder = ""  # the module or model of the holder; "" if the lock is free
        self._clock = time.CLOCK_THREAD_CPUTIME_ID  # the processor time of the holder's thread
        # Waiters give up at `_until_s` (monotonic), `_patience_s` after the last progress. It is put off while the
        # holder computes, at most until the holder's processor time reaches `_most_s`. `_computed_s` is the holder's
        # processor time at the last check.
        self._until_s = self._patience_s = 0.0
        self._computed_s = self._most_s = 0.0

    def acquire(self, name: str, patience_s: float) -> bool:
        """Take the lock.

        Args:
            name: The module or model of the caller, for the log.
            patience_s: How long other threads wait for the caller without progress. If the caller computes, they wait
                longer, until it has used `patience_s` of processor time.

        Returns:
            Whether the lock was taken. False if its holder makes no progress: the caller continues without the lock.
        """
        with self._changed:
            while self._holder:
                left_s = self._until_s - time.monotonic()
                if left_s <= 0 and not self._computes():
                    log.warning(
                        "%s %s begins beside that of %s, which takes long",
                        self._what,
                        name,
                        self._holder,
                    )
                    return False
                self._changed.wait(max(left_s, 0.0))
            self._holder = name
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self.note_progress(patience_s)
            return True

    def note_progress(self, patience_s: float) -> None:
        """Note progress of the holder. Only the holder calls this.

        Args:
            patience_s: How long others wait from now on without further progress.
        """
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s
        self._computed_s = time.thread_time()
        self._most_s = self._computed_s + patience_s

    def _computes(self) -> bool:
        """Return whether the holder has used the processor since the last check. If so, the wait begins again."""
        try:
            computed_s = time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            return False
        least_s = LEAST_SHARE * self._patience_s
        if computed_s - self._computed_s < least_s or computed_s >= self._most_s:
            return False
        self._computed_s = computed_s
        self._until_s = time.monotonic() + self._patience_s
        return True

    def release(self) -> None:
        """Release the lock and wake the next waiter."""
        with self._changed:
            self._holder = ""
            self._changed.notify()


class _Thread(threading.local):
    """The state of a thread.

    Attributes:
        runs_model: Whether the thread runs a model's code outside of a batch. (In a batch, `current_context` is set.)
        importing: Whether the thread is inside an import.
        locked: Whether the thread holds the import lock.
    """

    runs_model = False
    importing = False
    locked = False


_lock = ImportLock()
_thread = _Thread()
_installing = threading.Lock()
_bootstrap: Any = importlib._bootstrap
_find_unlocked: Find = _bootstrap._find_and_load


@contextmanager
def locked_imports() -> Iterator[None]:
    """Make imports of this thread take the import lock in this block. In a batch they always take it."""
    with _installing:
        _install()
    before, _thread.runs_model = _thread.runs_model, True
    try:
        yield
    finally:
        _thread.runs_model = before


def is_importing() -> bool:
    """Return whether this thread is inside an import, so that it may hold locks of modules."""
    return _thread.importing


@cache
def _install() -> None:
    """Wrap the function that Python calls, for every form of import, to load a module that is not loaded.

    It is wrapped only once: a tool that wraps it later calls this wrapper, which must not call the tool's in turn.
    """
    global _find_unlocked
    _find_unlocked = _bootstrap._find_and_load
    # Python removes frames of importlib's file from the tracebacks of failed imports.
    file = _find_unlocked.__code__.co_filename
    _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=file)
    _bootstrap._find_and_load = _find_and_load
    os.register_at_fork(after_in_child=_lock.reset)


def _find_and_load(name: str, import_: Callable[..., ModuleType]) -> ModuleType:
    """Replaces the function of importlib: takes the import lock for the outermost import of a model's thread."""
    if _thread.importing:
        if _thread.locked:
            _lock.note_progress(STALL_S)
        return _find_unlocked(name, import_)
    runs_model = _thread.runs_model or current_context() is not None
    if runs_model and not _is_loaded(name):
        _thread.locked = _lock.acquire(name, STALL_S)
    _thread.importing = True
    try:
        return _find_unlocked(name, import_)
    finally:
        _thread.importing = False
        if _thread.locked:
            _thread.locked = False
            _lock.release()


def _is_loaded(name: str) -> bool:
    """Return whether the module is loaded completely: then its import needs no lock."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)

"""A thread pool whose threads end after some time without work.

It is for calls that block: a burst of streams needs one or two threads for each stream.
`concurrent.futures.ThreadPoolExecutor` would keep all of these threads as long as the worker lives.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

IDLE_SECONDS = 30.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class IdleThreads(Executor):
    """A pool that starts threads when they are needed, and ends them when they are idle.

    Args:
        threads: The most threads.
        name: The prefix of the threads' names.
        idle_seconds: After how long without work a thread ends.
    """

    def __init__(self, threads: int, name: str, *, idle_seconds: float | None = None) -> None:
        self._most = threads
        self._name = name
        self._idle_seconds = IDLE_SECONDS if idle_seconds is None else idle_seconds
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """The number of threads, busy or idle."""
        return self._threads

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have a function called on a thread; see `Executor.submit`.

        Raises:
            RuntimeError: The pool was shut down, or it has no thread and none can be started.
        """
        future: Future[_T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} have ended")
            self._waiting.append((future, partial(fn, *args, **kwargs)))
            if len(self._waiting) > self._idle and self._threads < self._most:
                self._start()
            self._changed.notify()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._live, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no thread: the existing threads take the work
            if not self._threads:
                self._waiting.pop()
                raise
        else:
            self._threads += 1

    def _live(self) -> None:
        """Run work until the thread has been idle for long. Each thread of the pool runs this."""
        while (taken := self._next()) is not None:
            future, work = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - it is the future's
                    future.set_exception(error)
            del taken, future, work  # they would keep the call's memory while the thread is idle

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for the next work. Return None if the thread must end; it is not counted in `_threads` then."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closed, self._idle_seconds)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end as soon as no work waits. Does not wait for them; see `Executor.shutdown`."""
        with self._changed:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for future, _ in dropped:
            future.cancel()

"""Threads for calls that block, which end when they are idle for long.

A burst of streams takes a thread or two each. `concurrent.futures.ThreadPoolExecutor` would keep all of them
for as long as the worker lives.
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
    """A pool of the threads that are busy, or were busy a short while ago.

    Args:
        name: The prefix of the threads' names.
        idle_seconds: After how long without work a thread ends.
    """

    def __init__(self, threads: int, name: str, *, idle_seconds: float | None = None) -> None:
        self._most = threads
        self._name = name
        self._idle_seconds = IDLE_SECONDS if idle_seconds is None else idle_seconds
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle: list[
            threading.Condition
        ] = []  # of each idle thread; the thread that worked last is at the end
        self._threads = 0
        self._closed = False
        self._ended = threading.Condition(self._lock)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have a function called on a thread; see `Executor.submit`.

        Raises:
            RuntimeError: The pool was shut down, or it has no thread and none can be started.
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} have ended")
            self._waiting.append((future, partial(fn, *args, **kwargs)))
            if self._idle:
                self._idle.pop().notify()  # the others come nearer to their end
            elif self._threads < self._most:
                self._start()
        return future

    def _start(self) -> None:
        thread = threading.Thread(target=self._live, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread: the existing threads take the work
            if not self._threads:
                self._waiting.pop()
                raise
        else:
            self._threads += 1

    def _live(self) -> None:
        work_comes = threading.Condition(self._lock)
        while (taken := self._next(work_comes)) is not None:
            future, work = taken
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - it is the future's
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del taken, future, work  # which would keep a call alive while the thread is idle

    def _next(
        self, work_comes: threading.Condition
    ) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next work; None when the thread is to end, which is counted then."""
        with self._lock:
            while not self._waiting:
                if not self._closed:
                    self._idle.append(work_comes)
                    work_comes.wait(self._idle_seconds)
                    if work_comes not in self._idle:
                        continue  # it was called, perhaps for what another thread has taken since
                    self._idle.remove(work_comes)
                    if self._waiting:
                        continue
                self._threads -= 1
                self._ended.notify_all()
                return None
            return self._waiting.popleft()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Have the threads end once nothing waits; see `Executor.shutdown`."""
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            while self._idle:
                self._idle.pop().notify()
        for future, _ in dropped:
            future.cancel()
        with self._lock:
            while wait and self._threads:
                self._ended.wait()

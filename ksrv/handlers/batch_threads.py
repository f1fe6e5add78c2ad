"""Makes threads that a handler starts work for the batch in which they were started, as coroutines do.

A call to another model from such a thread then has the deadline and the ids of that batch. The batch is in the context
variable `WORKS_FOR`. Python starts threads with an empty context, so `Thread.start` and `ThreadPoolExecutor.submit` are
replaced by functions that pass `WORKS_FOR` on, and no other variable.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

from ksrv._native.batch.stages import WORKS_FOR, BoundContext, bound_batch

POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""Modules whose threads work for many batches, not only for the batch that starts such a thread."""

_start = Thread.start
_submit = ThreadPoolExecutor.submit


def pass_batches_on() -> None:
    """Replace `Thread.start` and `ThreadPoolExecutor.submit` in this process. Calling this twice is harmless."""
    Thread.start = _start_for_batch  # type: ignore[assignment, method-assign]
    ThreadPoolExecutor.submit = _submit_for_batch  # type: ignore[assignment, method-assign]


@contextmanager
def working_for(bound: BoundContext) -> Iterator[None]:
    """Have this thread, and the threads that are started in it, work for a batch."""
    token = WORKS_FOR.set(bound)
    try:
        yield
    finally:
        WORKS_FOR.reset(token)


def _start_for_batch(thread: Thread) -> None:
    bound = bound_batch()
    if bound is not None and not _is_of_pool(thread):
        run = thread.run

        def run_for_batch() -> None:
            del thread.run  # otherwise the thread and this function would be a reference cycle
            WORKS_FOR.set(bound)
            run()

        thread.run = run_for_batch  # type: ignore[method-assign]
    _start(thread)


def _is_of_pool(thread: Thread) -> bool:
    return getattr(getattr(thread, "_target", None), "__module__", "") in POOLS


def _submit_for_batch(
    pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **named: Any
) -> Future[Any]:
    bound = bound_batch()
    if bound is not None:
        function = partial(_run_for_batch, bound, function)
    return _submit(pool, function, *args, **named)


def _run_for_batch(
    bound: BoundContext, function: Callable[..., Any], /, *args: Any, **named: Any
) -> Any:
    with working_for(bound):
        return function(*args, **named)

"""`@timed`: times functions of a handler. ksrv times the four stages without it."""

import functools
import re
from collections.abc import Callable
from time import perf_counter_ns
from typing import ParamSpec, TypeVar, overload

from ksrv._native.batch.stages import current_context

P = ParamSpec("P")
R = TypeVar("R")

_NO_WORD = re.compile("[^A-Za-z0-9_]")


def stage_name(name: str) -> str:
    """Return the name of a stage for header lines and messages: characters that are not allowed there become `_`."""
    return _NO_WORD.sub("_", name)


@overload
def timed(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def timed(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def timed(
    function: Callable[P, R] | None = None, *, name: str = ""
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Time a function or method, as a stage of the batch in which it runs.

    The time is added to the batch's timings under the function's name, so that it appears beside
    preprocess, inference and postprocess. Outside a batch the function runs untimed. Several calls
    in one batch add up.

    Args:
        function: The function to time; left out when a name is given.
        name: The name to show; by default the function's name. Characters other than ASCII letters, digits and `_` are
            shown as `_`.

    Returns:
        A function with the same signature, name and docstring.
    """

    def decorate(inner: Callable[P, R]) -> Callable[P, R]:
        shown = stage_name(name or inner.__name__)

        @functools.wraps(inner)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            context = current_context()
            # In a stage of this name, ksrv takes the time already.
            if context is None or context.timing_stage(shown):
                return inner(*args, **kwargs)
            start = perf_counter_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                context.add_time(shown, perf_counter_ns() - start)

        return wrapper

    return decorate if function is None else decorate(function)

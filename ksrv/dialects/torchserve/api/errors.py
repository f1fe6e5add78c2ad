"""`ts.utils.util`: the error with which a handler chooses the status of its answer, and the decorator `deprecated`."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class PredictionException(Exception):
    """An error whose status and text the client sees."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        self.message = message
        self.error_code = error_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[F], F]:
    """Return a decorator; the decorated function warns at each call.

    Args:
        version: The version that removes the function.
        replacement: The function to use instead, if any.
        klass: The category of the warning.
    """
    instead = f": use {replacement}" if replacement else ""

    def mark(function: F) -> F:
        @wraps(function)
        def warn(*arguments: Any, **options: Any) -> Any:
            text = f"{function.__name__} is deprecated, and removed in {version}{instead}"
            warnings.warn(text, klass, stacklevel=2)
            return function(*arguments, **options)

        return warn  # type: ignore[return-value]

    return mark

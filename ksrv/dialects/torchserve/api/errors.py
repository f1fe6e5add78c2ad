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


def deprecated(version: str, replacement: str) -> Callable[[F], F]:
    """Mark a function that warns when it is called."""

    def mark(function: F) -> F:
        @wraps(function)
        def warn(*arguments: Any, **options: Any) -> Any:
            warnings.warn(
                f"{function.__name__} has been deprecated since {version}: use {replacement}",
                DeprecationWarning,
                stacklevel=2,
            )
            return function(*arguments, **options)

        return warn  # type: ignore[return-value]

    return mark

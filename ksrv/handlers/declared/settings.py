"""`@settings`: gives a handler its settings in the Python file itself, instead of in a model.yaml."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])

ATTRIBUTE = "__ksrv_settings__"


def settings(**keys: Any) -> Callable[[T], T]:
    """Give a handler class or function its settings: the keys of model.yaml.

    A server reads them without running the file, so their values are literals, or names that the
    file sets to literals. `inputs` and `outputs` may have tensor types. A subclass inherits the settings of its bases
    and may override them. Keys in model.yaml take precedence.

    Args:
        keys: `batching={"max_batch_size": 8}`, `model="cats.pt"`, `executor="process"`, ...

    Returns:
        A decorator that returns the class or function unchanged.
    """

    def mark(handler: T) -> T:
        setattr(handler, ATTRIBUTE, keys)
        return handler

    return mark


def settings_of(handler: Any) -> Mapping[str, Any]:
    """Return the settings that `@settings` gave a function, or a class and its bases.

    Args:
        handler: The class or function.
    """
    line = handler.__mro__ if isinstance(handler, type) else (handler,)
    found: dict[str, Any] = {}
    for kind in reversed(line):
        found |= getattr(kind, "__dict__", {}).get(ATTRIBUTE, {})
    return found

"""Calls a torch module with tensors by name, although its `forward` may name them otherwise.

Several inputs reach `inference` as keywords. If a module's `forward` knows those names they are
passed on; if it does not (names that are no identifiers, traced modules, packages), the tensors
are passed by position in the order in which model.yaml declares them.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ksrv.errors import InferenceError
from ksrv.model.spec import TensorSpec


def forward_names(module: Any) -> tuple[str, ...] | None:
    """Return the argument names of a module's `forward`, or None where they cannot be known.

    Args:
        module: An eager or scripted module.
    """
    forward = getattr(module, "forward", None)
    schema = getattr(forward, "schema", None)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments[1:])
    try:
        parameters = inspect.signature(forward or module).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


class NamedArguments:
    """A torch module that accepts the declared input names as keywords.

    Attributes:
        module: The module itself.
        order: The declared names, in the order of its arguments.
    """

    def __init__(self, module: Any, order: tuple[str, ...]) -> None:
        self.module = module
        self.order = order

    @classmethod
    def wrap(cls, module: Any, inputs: Sequence[TensorSpec]) -> Any:
        """Return `module` itself where its `forward` knows the names, else a wrapper."""
        order = tuple(spec.name for spec in inputs)
        known = forward_names(module)
        if len(order) < 2 or (known is not None and set(order) <= set(known)):
            return module
        return cls(module, order)

    def __call__(self, *args: Any, **tensors: Any) -> Any:
        if set(tensors) == set(self.order):
            return self.module(*args, *(tensors[name] for name in self.order))
        return self.module(*args, **tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class PositionalCall:
    """An exported or compiled model, which takes its tensors exactly as they were exported.

    Attributes:
        run: The model.
        order: The inputs' names in the order of its arguments.
        positional: How many of them are passed by position; None for all.
        keywords: The names of the others, as the model was exported with them.
        rows: The least and the most rows that it was exported for; None for any.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        order: tuple[str, ...],
        positional: int | None = None,
        keywords: tuple[str, ...] = (),
        rows: tuple[int, int] | None = None,
    ) -> None:
        self.run = run
        self.order = order
        self.positional = positional
        self.keywords = keywords
        self.rows = rows

    def __call__(self, *args: Any, **tensors: Any) -> Any:
        if self.rows is not None:
            self._check_rows(next(iter((*args, *tensors.values())), None), *self.rows)
        if set(tensors) == set(self.keywords):
            return self.run(*args, **tensors)
        if set(tensors) == set(self.order):
            values = [*args, *(tensors[name] for name in self.order)]
        else:
            values = [*args, *tensors.values()]
        count = len(values) if self.positional is None else self.positional
        return self.run(*values[:count], **dict(zip(self.keywords, values[count:], strict=True)))

    @staticmethod
    def _check_rows(tensor: Any, least: int, most: int) -> None:
        rows = len(tensor) if getattr(tensor, "ndim", 0) else None
        if rows is not None and not least <= rows <= most:
            raise InferenceError(
                f"the batch has {rows} rows; the model was exported for {least} to {most}"
            )

"""Passes named tensors to a torch model: as keywords, or by position if the model's arguments have other names.

The default `inference` of a handler calls the model with one keyword for each input, by the names in model.yaml. A
module whose `forward` has arguments of these names is called directly. Any other module is wrapped in `NamedArguments`,
which passes the tensors by position, in the order in which model.yaml declares them. Exported and compiled models are
called by `PositionalCall`, because they take their arguments only in the form in which they were exported.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ksrv.errors import InferenceError
from ksrv.model.spec import TensorSpec


def forward_names(module: Any) -> tuple[str, ...] | None:
    """Return the argument names of a module's `forward`, or None if they cannot be known.

    Args:
        module: An eager or scripted module.
    """
    forward = getattr(module, "forward", None)
    schema = getattr(forward, "schema", None)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments[1:])  # without `self`
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
        module: The module.
        order: The declared input names, in the order of the module's arguments.
    """

    def __init__(self, module: Any, order: tuple[str, ...]) -> None:
        self.module = module
        self.order = order

    @classmethod
    def wrap(cls, module: Any, inputs: Sequence[TensorSpec]) -> Any:
        """Return the module if its `forward` has arguments of the declared names, else a wrapper."""
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
        order: The inputs' names in the order of the model's arguments.
        positional: How many of the arguments are positional; None for all.
        keywords: The names of the other arguments, with which the model was exported.
        rows: The fewest and the most rows that the model was exported for; None for any number.
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

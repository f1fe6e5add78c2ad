"""Built-in handlers with optional outputs.

A built-in handler can answer in several forms (classes and probabilities as tensors, a JSON object
for each row). model.yaml selects outputs by declaring them; a model.yaml that declares none gets
the handler's default outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.builtin.ranking import Softmax
from ksrv.model.spec import ModelSpec, TensorSpec


class OptionalOutputsHandler(BaseHandler):
    """A handler that answers with the outputs that model.yaml declares.

    Attributes:
        default_outputs: The outputs of a model whose model.yaml declares none.
        optional_outputs: Outputs that the handler makes only for a model that declares them.
    """

    default_outputs: tuple[TensorSpec, ...] = ()
    optional_outputs: tuple[TensorSpec, ...] = ()

    @cached_property
    def softmax(self) -> Softmax:
        """Turns scores into probabilities; made on first use by `parameters: {softmax: ...}`."""
        return Softmax(self.context)

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the default outputs, or check the declared outputs.

        Args:
            spec: The inputs and outputs that model.yaml declares.

        Raises:
            ValueError: model.yaml declares an output that this handler does not have, or its `softmax` is neither true
                nor false.
        """
        _ = self.softmax  # raises if the parameter is invalid
        if not spec.outputs:
            return replace(spec, outputs=self.default_outputs)
        names = [output.name for output in (*self.default_outputs, *self.optional_outputs)]
        for declared in spec.outputs:
            if declared.name not in names:
                raise ValueError(
                    f"{type(self).__name__} has no output {declared.name!r}; it offers "
                    f"{', '.join(names)}"
                )
        return spec

    def select(self, makers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Make the declared outputs and no others.

        Args:
            makers: Functions that make the outputs, by name.

        Returns:
            The outputs by name.
        """
        return {output.name: makers[output.name]() for output in self.context.spec.outputs}

    def label(self, index: int) -> str:
        """Return the label of a class, or its number as text for a class without a label."""
        labels = self.labels
        return labels[index] if labels is not None and 0 <= index < len(labels) else str(index)

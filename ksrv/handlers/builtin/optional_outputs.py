"""Handlers that offer more outputs than they always answer with.

A built-in handler can answer in several forms (classes and probabilities as tensors, a JSON object
for each row). model.yaml chooses among them by declaring outputs; without it the handler's usual
ones are declared.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.spec import ModelSpec, TensorSpec


class OfferingHandler(BaseHandler):
    """A handler whose outputs are chosen by name.

    Attributes:
        offered: Every output that the handler can give, the usual ones first.
        usual: How many of them are declared where model.yaml declares none.
    """

    offered: tuple[TensorSpec, ...] = ()
    usual: int = 1

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the usual outputs, or check the declared ones.

        Args:
            spec: What model.yaml declares.

        Returns:
            The spec with outputs.

        Raises:
            ValueError: model.yaml declares an output that this handler does not have.
        """
        if not spec.outputs:
            return replace(spec, outputs=self.offered[: self.usual])
        names = [one.name for one in self.offered]
        for one in spec.outputs:
            if one.name not in names:
                raise ValueError(
                    f"{type(self).__name__} has no output {one.name!r}; it offers "
                    f"{', '.join(names)}"
                )
        return spec

    def choose(self, makers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Make the outputs that are declared, and no others.

        Args:
            makers: What makes each offered output.

        Returns:
            The outputs by name.
        """
        return {one.name: makers[one.name]() for one in self.context.spec.outputs}

    def label(self, index: int) -> str:
        """Return the label of a class; its number where there is none.

        Args:
            index: The class.
        """
        labels = self.labels
        return labels[index] if labels is not None and 0 <= index < len(labels) else str(index)

"""The base of models whose file names the inputs and outputs, such as ONNX: they are called like functions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from ksrv.request import Array


class NamedModel(ABC):
    """A model whose file names its tensors.

    Args:
        inputs: The names of the inputs in the file, in the file's order.
        outputs: The names of the outputs in the file, in the file's order.
        declared: The names that model.yaml gives the inputs, in its order.
    """

    def __init__(
        self, inputs: Sequence[str], outputs: Sequence[str], declared: Sequence[str] = ()
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.declared = tuple(declared)

    # An input may be called `self`.
    def __call__(self, /, *arrays: Array, **named: Array) -> dict[str, Array]:
        """Run the model.

        Args:
            arrays: Inputs by position, in the file's order.
            named: Inputs by the file's names, or by the declared names, which are passed by position.

        Returns:
            The outputs by name.
        """
        if named and set(named) == set(self.declared) and set(named) != set(self.inputs):
            arrays = (*arrays, *(named[name] for name in self.declared))
            named = {}
        return self.run({**dict(zip(self.inputs, arrays, strict=False)), **named})

    @abstractmethod
    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model on inputs by name. The names may not be Python identifiers, so they are not keywords here.

        Returns:
            The outputs by name.
        """

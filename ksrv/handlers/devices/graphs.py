"""Runs a model by replaying CUDA graphs: one graph for each form of the inputs.

The kernels of a small network take longer to launch than to run; a graph launches all of them at once. The form of
inputs is their datatypes, shapes and strides, and the values of constants. A graph is recorded when inputs of a new
form arrive, which for a model with declared shapes is in the warm-up. Inputs are copied into the memory that the graph
reads. The next replay overwrites the outputs, so a handler that keeps them gets a copy. A model that cannot be recorded
runs without graphs, and the log reports that once.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ksrv.handlers.devices.cuda import CudaDevice

log = logging.getLogger("ksrv.handlers")

MOST_GRAPHS = 64
"""Inputs of further forms run without a graph."""
_CONSTANTS = (bool, int, float, str, type(None))


class Graph:
    """The recorded launches of a model for inputs of one form.

    Args:
        args: The positional inputs. Tensors among them are copied.
        named: The inputs by name, likewise.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> None:
        def static(value: Any) -> Any:
            return value.clone() if device.holds(value) else value

        self._args = [static(value) for value in args]
        self._named = {key: static(value) for key, value in named.items()}
        # The tensors that the graph reads, in the order of the inputs.
        self._places = [
            place for place in (*self._args, *self._named.values()) if device.holds(place)
        ]
        self._device = device
        self._replay, self.outputs = device.capture(lambda: model(*self._args, **self._named))

    def run(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Launch the model on other inputs of the form.

        Args:
            named: The inputs by name, in the order of the recorded inputs.

        Returns:
            The outputs, in the memory of the graph.
        """
        given = [value for value in (*args, *named.values()) if self._device.holds(value)]
        for place, value in zip(self._places, given, strict=True):
            place.copy_(value)
        self._replay()
        return self.outputs


class GraphedModel:
    """A model and its graphs.

    Args:
        device: The device of the inputs.

    Attributes:
        eager: The model itself.
        clones: Whether to copy the outputs out of the graph's memory. Not needed if the answer is made of them before
            the next batch, and the handler does not get them.
        failure: Why no graphs are recorded any more, or None.
    """

    def __init__(self, model: Any, device: CudaDevice, name: str) -> None:
        self.eager = model
        self.clones = True
        self.failure: str | None = None
        self._device = device
        self._name = name
        self._graphs: dict[Any, Graph] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        form = None if self.failure is not None else self._form(args, named)
        if form is None:
            return self.eager(*args, **named)
        graph = self._graphs.get(form)
        if graph is None:
            if len(self._graphs) == MOST_GRAPHS:
                return self.eager(*args, **named)
            # First without recording, so that an error of the model itself is raised and not taken for one of the
            # recording.
            result = self.eager(*args, **named)
            self._record(form, args, named)
            return result
        outputs = graph.run(args, named)
        return clone(outputs) if self.clones else outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.eager, name)

    @property
    def graphs(self) -> int:
        """How many forms of inputs have a graph."""
        return len(self._graphs)

    def _record(self, form: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        try:
            self._graphs[form] = Graph(self._device, self.eager, args, named)
        except Exception as error:
            if self._device.failure_of(error) is not None:
                raise  # an error of the device, not of the recording
            text = str(error).splitlines() or [""]
            self.failure = f"{type(error).__name__}: {text[0][:400]}"
            self._graphs.clear()
            log.warning("the model %s runs without graphs: %s", self._name, self.failure)

    def _form(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the form of inputs, or None if no graph can take them."""
        import torch

        if torch.is_grad_enabled():
            return None
        form: list[Any] = [len(args), *named]
        for value in (*args, *named.values()):
            if self._device.holds(value):
                form.append((value.dtype, value.shape, value.stride()))
            elif isinstance(value, _CONSTANTS):
                form.append((type(value), value))
            else:
                return None
        return tuple(form)


def clone(result: Any) -> Any:
    """Copy tensors out of the memory that the next replay of a graph overwrites.

    Args:
        result: Tensors, or containers of them.
    """
    import torch

    if isinstance(result, torch.Tensor):
        return result.clone()
    if isinstance(result, Mapping):
        return {key: clone(value) for key, value in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(clone, result))
    if isinstance(result, (list, tuple)):
        return type(result)(map(clone, result))
    return result

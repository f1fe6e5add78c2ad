"""The handler of a Triton model with a model file: ksrv's default stages, with the tensors of config.pbtxt.

Clients see the names and shapes that config.pbtxt declares. If the model file has other names or shapes (`reshape`, the
arguments and results of a TorchScript model, undeclared outputs), a `Binding` around the model converts between them.
Otherwise the model is called directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ksrv.dialects.triton.declarations import BoundTensor, TritonDeclarations
from ksrv.errors import HandlerFailed
from ksrv.handlers.base import BaseHandler
from ksrv.handlers.context import Context
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.spec import Dimension, ModelSpec, TensorSpec, allows, fits


class TritonModel(BaseHandler):
    """Serves the model file of a Triton repository."""

    def initialize(self, context: Context) -> None:
        """Load the model, compare it with config.pbtxt, and bind its tensors.

        Raises:
            ModelLoadError: The model file has other tensors than config.pbtxt declares.
        """
        super().initialize(context)
        tensors, inputs, outputs = self.bound_tensors()
        loaded = context.loaded
        assert loaded is not None, "a model of Triton has a file"
        batched = context.config.batching is not None
        check_side("input", tensors.inputs, inputs, loaded.inputs, batched)
        check_side("output", tensors.outputs, outputs, loaded.outputs, batched)
        if loaded.is_torch:
            self.model = TorchBinding(self.model, tensors)
        elif any(tensor.model_shape is not None for tensor in (*tensors.inputs, *tensors.outputs)):
            self.model = NamedBinding(self.model, tensors)

    @cached_property
    def dialect(self) -> TritonDeclarations:
        """The parts of the model's config.pbtxt that are not settings of ksrv."""
        return TritonDeclarations.of(self.context.config)

    def bound_tensors(
        self,
    ) -> tuple[TritonDeclarations, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return the declared tensors of the model file, and the specs of inputs and of outputs."""
        spec = self.context.spec
        return self.dialect, spec.inputs, spec.outputs

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Complete the declared tensors from the model file.

        Args:
            spec: The inputs and outputs that config.pbtxt declares.
        """
        loaded = self.context.loaded
        assert loaded is not None, "a model is declared once it is loaded"
        return replace(
            spec, inputs=spec.inputs or loaded.inputs, outputs=spec.outputs or loaded.outputs
        )


class Binding(ABC):
    """A callable that takes and returns the tensors of config.pbtxt, and calls the model with the model's tensors.

    Args:
        names: The names of the inputs, in the order of positional arguments.
    """

    def __init__(self, model: Any, tensors: TritonDeclarations, names: Sequence[str]) -> None:
        self._model = model
        self._inputs = tensors.inputs
        self._outputs = tensors.outputs
        self._names = names

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, Any]:
        """Run the model.

        Args:
            arrays: The only input, or none.
            named: The inputs by name.

        Returns:
            The declared outputs by name.

        Raises:
            HandlerFailed: A TorchScript module returned fewer results than outputs are declared.
        """
        named |= dict(zip(self._names, arrays, strict=False))
        for bound in self._inputs:
            named[bound.name] = to_model(named[bound.name], bound)
        return self._run(named)

    @abstractmethod
    def _run(self, named: dict[str, Any]) -> dict[str, Any]:
        """Run the model on inputs in the model's shapes, and return the outputs in the shapes that clients see."""


class NamedBinding(Binding):
    """A model with named tensors, such as an ONNX session, which has a method `run`."""

    def __init__(self, model: Any, tensors: TritonDeclarations) -> None:
        super().__init__(model, tensors, [bound.name for bound in tensors.inputs] or model.inputs)

    def _run(self, named: dict[str, Any]) -> dict[str, Any]:
        found: Mapping[str, Any] = self._model.run(named)
        if not self._outputs:
            return dict(found)
        return {bound.name: to_client(found[bound.name], bound) for bound in self._outputs}


class TorchBinding(Binding):
    """A TorchScript module, which is called with positional arguments or with one dictionary.

    The order of arguments: by position if all names end with `__0`, `__1`, ...; as in `forward` if its arguments have
    the names of the inputs; else as declared. If `forward` takes a dictionary, it gets the inputs by name. Outputs are
    taken by position from a tuple or a list, or by name from a dictionary.
    """

    def __init__(self, model: Any, tensors: TritonDeclarations) -> None:
        module = getattr(model, "module", model)  # without the wrapper for keywords
        schema = getattr(getattr(module, "forward", None), "schema", None)
        arguments = schema.arguments[1:] if schema is not None else []
        names = [argument.name for argument in arguments]
        order = tensors.inputs
        if all(bound.position is not None for bound in order):
            order = tuple(sorted(order, key=lambda bound: bound.position or 0))
        elif {bound.name for bound in order} == set(names):
            order = tuple(sorted(order, key=lambda bound: names.index(bound.name)))
        super().__init__(module, tensors, [bound.name for bound in order])
        self._takes_dictionary = len(names) == 1 and str(arguments[0].type).startswith("Dict[")

    def _run(self, named: dict[str, Any]) -> dict[str, Any]:
        if self._takes_dictionary:
            result = self._model(named)
        else:
            result = self._model(*(named[name] for name in self._names))
        return {
            bound.name: to_client(self._output(result, bound, index), bound)
            for index, bound in enumerate(self._outputs)
        }

    def _output(self, result: Any, bound: BoundTensor, index: int) -> Any:
        """Return one output from the result of the module; `index` is its number among the declared outputs."""
        if isinstance(result, Mapping):
            if bound.name not in result:
                raise HandlerFailed(
                    f"the TorchScript model returned the outputs {', '.join(map(str, result))}; "
                    f"config.pbtxt declares {bound.name}"
                )
            return result[bound.name]
        results = result if isinstance(result, tuple | list) else (result,)
        index = index if bound.position is None else bound.position
        if index >= len(results):
            raise HandlerFailed(
                f"the TorchScript model returned {len(results)} outputs; config.pbtxt declares "
                f"{bound.name} as number {index}"
            )
        return results[index]


def to_model(array: Any, bound: BoundTensor) -> Any:
    """Return an input (an array or torch tensor in the shape for clients) in the model's shape."""
    if bound.model_shape is None:
        return array
    return array.reshape(_filled(bound.model_shape, bound.shape, array.shape))


def to_client(array: Any, bound: BoundTensor) -> Any:
    """Return an output (an array or torch tensor in the model's shape) in the shape for clients.

    Raises:
        HandlerFailed: The array does not have the model's shape.
    """
    if bound.model_shape is None:
        return array
    shape = tuple(array.shape)
    if not fits(shape, bound.model_shape):
        raise HandlerFailed(
            f"the model returned the output {bound.name!r} in the shape {list(shape)}; the reshape "
            f"of config.pbtxt expects {list(bound.model_shape)}"
        )
    return array.reshape(_filled(bound.shape, bound.model_shape, shape))


def _filled(
    wanted: Sequence[int], declared: Sequence[int], actual: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape `wanted` with its open sizes (-1) filled in.

    Args:
        declared: The tensor's other shape, with as many open sizes.
        actual: The sizes that the tensor has in this other shape.
    """
    sizes = (size for size, want in zip(actual, declared, strict=True) if want == -1)
    return tuple(next(sizes) if want == -1 else want for want in wanted)


def check_side(
    side: str,
    bound: Sequence[BoundTensor],
    declared: Sequence[TensorSpec],
    in_file: Sequence[TensorSpec],
    batched: bool,
) -> None:
    """Compare the inputs or outputs of config.pbtxt with the tensors of the model file.

    Args:
        side: "input" or "output".
        declared: The tensors of config.pbtxt; empty if it declares none.
        in_file: The tensors of the model file; empty if the file does not describe them.
        batched: Whether the first dimension of each tensor is the batch dimension.

    Raises:
        ModelLoadError: The tensors contradict each other.
    """
    if batched:
        fixed = next((spec for spec in in_file if not spec.shape or spec.shape[0] != -1), None)
        if fixed is not None and side == "input":
            raise ModelLoadError(
                f"config.pbtxt has a max_batch_size, but the input {fixed.name!r} of the model file "
                f"has the shape {fixed.wire_shape} without a batch dimension; set max_batch_size: 0"
            )
    if not in_file or not declared:
        return
    known = {spec.name: spec for spec in in_file}
    for spec, binding in zip(declared, bound, strict=True):
        found = known.get(spec.name)
        if found is None:
            raise ModelLoadError(
                f"config.pbtxt declares the {side} {spec.name!r}; the model file has {', '.join(known)}"
            )
        if found.datatype != spec.datatype:
            raise ModelLoadError(
                f"config.pbtxt declares the {side} {spec.name!r} as {spec.datatype}; in the model "
                f"file it is {found.datatype}"
            )
        shape = binding.model_shape or binding.shape
        if found.shape and not _agree(shape, found.shape):
            raise ModelLoadError(
                f"config.pbtxt declares the {side} {spec.name!r} with the shape {list(shape)}; in the "
                f"model file it is {found.wire_shape}"
            )
    missing = [name for name in known if name not in {spec.name for spec in declared}]
    if side == "input" and missing:
        raise ModelLoadError(
            f"config.pbtxt leaves out the input {missing[0]!r} of the model file; it declares "
            f"{', '.join(spec.name for spec in declared)}"
        )


def _agree(declared: Sequence[int], in_file: Sequence[Dimension]) -> bool:
    pairs = zip(in_file, declared, strict=False)
    return len(declared) == len(in_file) and all(
        size == -1 or allows(known, size) for known, size in pairs
    )

"""Reads the inputs and outputs of a config.pbtxt: the tensors that clients see, and the tensors of the model file.

Both differ if a tensor has `reshape`, and for TorchScript models, whose tensors have positions instead of names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ksrv.dialects.triton.config.model_keys import DATA_TYPES, Keys
from ksrv.dialects.triton.declarations import BoundTensor, position_of
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import ANY_SIZE, ANY_SIZE_OR_NONE, Dimension, TensorSpec
from ksrv.repository.report import Report

_REFUSED = {
    "is_shape_tensor": "shape tensors are TensorRT's",
    "is_non_linear_format_io": "formats of TensorRT's are not served",
    "allow_ragged_batch": "requests of different shapes are never in one batch here",
    "optional": "every input is needed here",
}
_APPLIED_FOR_PYTHON = {
    "optional": "a request may leave it out",
    "allow_ragged_batch": "execute() gets each request's tensors; tensors of other shapes arrive in another call",
}
"""Keys that only the Python backend can serve, because its `execute(requests)` gets each request separately."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a model.

    Attributes:
        inputs: The inputs as clients see them; empty if they are read from the model file.
        outputs: The outputs as clients see them, or empty.
        bound_inputs: For each of `inputs`, the input of the model file.
        bound_outputs: For each of `outputs`, the output of the model file.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    bound_inputs: tuple[BoundTensor, ...]
    bound_outputs: tuple[BoundTensor, ...]

    @property
    def is_open(self) -> bool:
        """Whether clients choose a size of an input."""
        return not self.inputs or any(
            size == -1 or isinstance(size, tuple) for spec in self.inputs for size in spec.shape
        )


def read_tensors(keys: Keys, report: Report, backend: str) -> Tensors:
    """Return the tensors of a config.pbtxt.

    Args:
        backend: The name of the backend. Some backends read tensors that are left out from the model file.

    Raises:
        ConfigError: A tensor is incomplete, or its shapes do not fit each other.
    """
    batched = bool(keys.max_batch_size) or (
        keys.max_batch_size is None and keys.dynamic_batching is not None
    )
    sides = []
    for side, tensors in (("input", keys.input), ("output", keys.output)):
        reader = _Reader(report, backend, side, batched)
        sides.append(reader.read(tensors or ()))
    (inputs, bound_inputs), (outputs, bound_outputs) = sides
    return Tensors(inputs, outputs, bound_inputs, bound_outputs)


class _Reader:
    """Reads the inputs or the outputs.

    Args:
        side: "input" or "output".
        batched: Whether tensors have a batch dimension, which `dims` do not mention.
    """

    def __init__(self, report: Report, backend: str, side: str, batched: bool) -> None:
        self._report = report
        self._side = side
        self._batched = batched
        self._completes = backend in ("onnxruntime", "openvino", "python")
        self._is_python = backend == "python"
        self._has_positions = backend == "pytorch"
        # For an open first dimension that does not count rows. Python models and ensembles also get empty tensors, as
        # in Triton.
        self._any_size = ANY_SIZE_OR_NONE if backend in ("python", "ensemble") else ANY_SIZE

    def read(
        self, tensors: Sequence[Keys]
    ) -> tuple[tuple[TensorSpec, ...], tuple[BoundTensor, ...]]:
        side = self._side
        if not tensors and not self._completes:
            raise Fault((), f"needs an {side}; only ONNX and OpenVINO files declare theirs")
        for index, tensor in enumerate(tensors):
            self._check_keys(tensor, (side, index))
            if any(other.name == tensor.name for other in tensors[:index]):
                raise Fault((side, index, "name"), f"{tensor.name!r} is declared twice")
        incomplete = any(tensor.data_type is None or not tensor.dims for tensor in tensors)
        if not tensors or incomplete:
            self._report.applied[side] = "names, datatypes and shapes are read from the model file"
            return (), ()
        positions = self._all_positions(tensors)
        specs, bound = [], []
        for index, (tensor, position) in enumerate(zip(tensors, positions, strict=True)):
            datatype, shape = DATA_TYPES[tensor.data_type], self._shape(tensor.dims)
            inner = self._model_shape(tensor, (side, index))
            spec = TensorSpec(tensor.name, datatype, shape, optional=bool(tensor.optional))
            specs.append(spec)
            wire = tuple(spec.wire_shape)
            bound.append(
                BoundTensor(name=tensor.name, shape=wire, model_shape=inner, position=position)
            )
        shown = (f"{spec.name} {spec.datatype} {spec.wire_shape}" for spec in specs)
        self._report.applied[side] = ", ".join(shown)
        return tuple(specs), tuple(bound)

    def _check_keys(self, tensor: Keys, path: KeyPath) -> None:
        for key, reason in _REFUSED.items():
            if not getattr(tensor, key):
                continue
            if self._is_python and key in _APPLIED_FOR_PYTHON:
                self._report.applied[f"{self._side}.{key}"] = _APPLIED_FOR_PYTHON[key]
            else:
                self._report.refused[f"{self._side}.{key}"] = reason
        if tensor.format:
            self._report.applied[f"{self._side}.format"] = "shown to clients, as in Triton"
        for missing, value in (("data_type", tensor.data_type), ("dims", tensor.dims)):
            if not value and (not self._completes or tensor.reshape is not None):
                raise Fault((*path, missing), f"the {self._side} {tensor.name!r} needs it")
        reshaped = tensor.reshape.shape if tensor.reshape else ()
        for key, sizes in (("dims", tensor.dims), ("reshape", reshaped)):
            if 0 in sizes:
                raise Fault((*path, key), "a size is -1 or more than 0")

    def _shape(self, dims: Sequence[int]) -> tuple[Dimension, ...]:
        """Return the shape for clients.

        In ksrv a first dimension of -1 counts rows. So without a batch dimension it becomes a range of sizes.
        """
        if self._batched:
            return (-1, *dims)
        return (self._any_size if dims[0] == -1 else dims[0], *dims[1:])

    def _model_shape(self, tensor: Keys, path: KeyPath) -> tuple[int, ...] | None:
        """Return the shape that `reshape` gives a tensor for the model, or None without `reshape`."""
        if tensor.reshape is None:
            return None
        if self._is_python:
            self._report.refused[f"{self._side}.reshape"] = (
                "a Python model sees tensors as clients send them; reshape them in model.py"
            )
            return None
        shape = list(tensor.reshape.shape)
        if _segments(tensor.dims) != _segments(shape):
            raise Fault(
                (*path, "reshape"),
                f"{shape} does not hold as many values as the dims {tensor.dims}",
            )
        self._report.applied[f"{self._side}.reshape"] = "as in Triton"
        return (-1, *shape) if self._batched else tuple(shape)

    def _all_positions(self, tensors: Sequence[Keys]) -> list[int | None]:
        """Return the positions of a TorchScript model's tensors, such as 0 of NAME__0, or None for each."""
        positions = [position_of(tensor.name) for tensor in tensors]
        if not self._has_positions or None in positions:
            return [None] * len(tensors)
        if sorted(positions, key=lambda position: position or 0) != list(range(len(tensors))):
            raise Fault(
                (self._side,), f"the names end with {positions}; expected each place from 0 once"
            )
        return positions


def _segments(sizes: Sequence[int]) -> list[int]:
    """Return the products of the fixed sizes before, between and after open sizes (-1).

    Two shapes with equal products always have as many values, whatever the open sizes are.
    """
    products: list[int] = []
    run: list[int] = []
    for size in (*sizes, -1):
        if size == -1:
            products.append(math.prod(run))
            run = []
        else:
            run.append(size)
    return products

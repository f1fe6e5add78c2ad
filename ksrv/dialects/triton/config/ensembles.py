"""Reads the steps of an ensemble (`ensemble_scheduling`), and checks that the models that it calls fit.

The rules follow `ValidateEnsembleConfig` in Triton's ensemble_utils.cc.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.dialects.triton.config.tensors import Tensors
from ksrv.dialects.triton.declarations import EnsembleStep, TritonDeclarations
from ksrv.model.config import ModelConfig
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import Dimension, TensorSpec
from ksrv.repository.entry import ModelEntry


def read_steps(keys: Keys, tensors: Tensors) -> tuple[EnsembleStep, ...]:
    """Return the steps of an ensemble, in an order in which each step finds its inputs.

    Raises:
        Fault: The step is missing, a map is empty or wrong, or a tensor is read that no step gives, is given twice, or
            depends on itself.
    """
    scheduling = keys.ensemble_scheduling
    if scheduling is None or not scheduling.step:
        raise Fault(("ensemble_scheduling",), "an ensemble needs a step")
    steps = []
    # For each tensor the index of the step that gives it; -1 for the inputs of the ensemble.
    givers: dict[str, int] = {spec.name: -1 for spec in tensors.inputs}
    for index, step in enumerate(scheduling.step):
        path = ("ensemble_scheduling", "step", index)
        if step.model_namespace:
            raise Fault((*path, "model_namespace"), "namespaces of models are not known here")
        inputs = _names((*path, "input_map"), step.input_map)
        outputs = _names((*path, "output_map"), step.output_map)
        for tensor in outputs.values():
            if tensor in givers:
                raise Fault((*path, "output_map"), f"the tensor {tensor!r} is given twice")
            givers[tensor] = index
        version = "" if step.model_version == -1 else str(step.model_version)
        steps.append(
            EnsembleStep(model=step.model_name, version=version, inputs=inputs, outputs=outputs)
        )
    graph: dict[int, set[int]] = {}
    for index, read in enumerate(steps):
        for tensor in read.inputs.values():
            if tensor not in givers:
                raise Fault(
                    ("ensemble_scheduling", "step", index, "input_map"),
                    f"no input and no step gives the tensor {tensor!r}",
                )
        graph[index] = {givers[tensor] for tensor in read.inputs.values()} - {-1}
    for spec in tensors.outputs:
        if spec.name not in givers:
            raise Fault(("output",), f"no step gives the output {spec.name!r}")
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle = " -> ".join(steps[index].model for index in error.args[1])
        raise Fault(
            ("ensemble_scheduling",), f"steps wait for each other in a circle: {circle}"
        ) from None
    return tuple(steps[index] for index in order)


def check_ensembles(entries: Mapping[str, ModelEntry]) -> None:
    """Set the error of each ensemble that calls itself, or whose models are missing or do not fit.

    Args:
        entries: Every model by name. Entries of such ensembles are changed.
    """
    calls = {name: set(_called(entry)) for name, entry in entries.items()}
    waiting = [name for name in calls if calls[name]]
    failed = True
    while failed:  # an error of an ensemble may be an error of ensembles that call it
        failed = False
        for name in list(waiting):
            entry = entries[name]
            circle = _circle(name, calls)
            error = f"{entry.path}: {circle}" if circle else _misfit(entry, entries)
            if error is not None:
                entry.error, entry.versions = error, {}
                waiting.remove(name)
                failed = True


def _names(path: KeyPath, entries: Sequence[Keys]) -> dict[str, str]:
    """Return a map of a step: the ensemble's tensor for each tensor of the step's model."""
    names: dict[str, str] = {}
    for index, entry in enumerate(entries):
        if entry.key in names:
            raise Fault((*path, index), f"{entry.key!r} is written twice")
        names[entry.key] = entry.value
    if not names:
        raise Fault(path, "a step needs it")
    return names


def _configs(entry: ModelEntry, version: str = "") -> Iterable[ModelConfig]:
    """Return the settings of a version, or of every version."""
    sources = [entry.versions[version]] if version else entry.versions.values()
    return (source.config for source in sources if source.config is not None)


def _called(entry: ModelEntry) -> list[str]:
    """Return the models that an ensemble calls; empty for other models."""
    return [
        step.model for config in _configs(entry) for step in TritonDeclarations.of(config).steps
    ]


def _circle(name: str, calls: Mapping[str, set[str]]) -> str:
    """Return an error text if an ensemble calls itself through other models, else ""."""
    waiting: list[tuple[str, ...]] = [(name,)]
    seen: set[str] = set()
    while waiting:
        chain = waiting.pop()
        for other in sorted(calls.get(chain[-1], ())):
            if other == name:
                return f"ensembles call each other in a circle: {' -> '.join((*chain, name))}"
            if other not in seen:
                seen.add(other)
                waiting.append((*chain, other))
    return ""


def _misfit(entry: ModelEntry, entries: Mapping[str, ModelEntry]) -> str | None:
    """Return an error text for the first step whose model is missing or has other tensors; None if all fit."""
    for config in _configs(entry):
        tensors: dict[str, _Declared] = {}
        for spec in (*config.inputs, *config.outputs):
            tensors[spec.name] = _Declared("the ensemble", spec, config.counts_rows)
        for step in TritonDeclarations.of(config).steps:
            shown = f"{entry.path}: the ensemble calls the model {step.model!r}"
            model = entries.get(step.model)
            if model is None:
                return f"{shown}, which is not there"
            if model.error:
                return f"{shown}, which cannot be served: {model.error}"
            if step.version and step.version not in model.versions:
                served = ", ".join(model.versions)
                return f"{shown} in version {step.version}; served are {served}"
            for called in _configs(model, step.version):
                if fault := _step_fault(step, called, config.row_limit):
                    return f"{shown}{fault}"
                # Only Triton models have a configuration. The shapes of other models begin with the batch dimension, so
                # they cannot be compared.
                if called.configuration is not None and (
                    why := _contradiction(step, called, tensors)
                ):
                    return f"{entry.path}: {why}"
    return None


def _step_fault(step: EnsembleStep, called: ModelConfig, row_limit: int) -> str:
    """Return the end of the error text if a step names other tensors than its model has, or "".

    Args:
        row_limit: The most rows of a request to the ensemble.
    """
    most = called.batching.max_batch_size if called.batching else 0
    if 0 < most < row_limit:
        return f", which takes {most} rows at most, and the ensemble {row_limit}"
    for side, names in (("input", step.inputs), ("output", step.outputs)):
        known = {spec.name for spec in getattr(called, f"{side}s")}
        wrong = [name for name in names if known and name not in known]
        if wrong:
            return f" with the {side} {wrong[0]!r}; it has {', '.join(sorted(known))}"
    needed = {spec.name for spec in called.inputs if not spec.optional}
    missing = needed - set(step.inputs)
    return f" without its input {min(missing)!r}" if missing else ""


class _Declared(NamedTuple):
    """A tensor of an ensemble, as the ensemble or one of its models declares it.

    Attributes:
        model: Who declares it, as error texts name it.
        has_rows: Whether the first dimension of the shape is the batch dimension.
    """

    model: str
    spec: TensorSpec
    has_rows: bool

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """The shape without the batch dimension."""
        return self.spec.shape[1:] if self.has_rows else self.spec.shape


def _contradiction(
    step: EnsembleStep, called: ModelConfig, tensors: dict[str, _Declared]
) -> str | None:
    """Return an error text for the first tensor of a step that contradicts an earlier declaration, or None.

    Args:
        tensors: The declarations of the ensemble and of earlier steps. Those of this step are added.
    """
    for specs, names in ((called.inputs, step.inputs), (called.outputs, step.outputs)):
        for spec in specs:
            if spec.name not in names:
                continue
            declared = _Declared(f"the model {step.model!r}", spec, called.counts_rows)
            first = tensors.setdefault(names[spec.name], declared)
            # The batch dimension is added or taken off between steps, so either form of the shape may agree.
            alike = _agree(first.dims, declared.dims) or _agree(first.spec.shape, spec.shape)
            if first.spec.datatype != spec.datatype or not alike:
                return (
                    f"the tensor {names[spec.name]!r} is {first.spec.datatype} {first.spec.wire_shape} by "
                    f"{first.model} and {spec.datatype} {spec.wire_shape} by {declared.model}"
                )
    return None


def _agree(first: tuple[Dimension, ...], second: tuple[Dimension, ...]) -> bool:
    """Tell whether one shape can have both declarations; an open size (-1 or a range) agrees with any."""
    if len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(
        a == b or -1 in (a, b) or isinstance(a, tuple) or isinstance(b, tuple) for a, b in pairs
    )

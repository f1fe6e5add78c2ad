"""Ensembles of Triton: the steps of `ensemble_scheduling`, and whether the models in them fit.

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
    """Return the steps of an ensemble.

    Raises:
        ConfigError: A tensor is read that no step gives, given twice, or depends on itself.
    """
    scheduling = keys.ensemble_scheduling
    if scheduling is None or not scheduling.step:
        raise Fault(("ensemble_scheduling",), "an ensemble needs a step")
    steps = []
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
    for index, made in enumerate(steps):
        for tensor in made.inputs.values():
            if tensor not in givers:
                raise Fault(
                    ("ensemble_scheduling", "step", index, "input_map"),
                    f"no input and no step gives the tensor {tensor!r}",
                )
        graph[index] = {givers[tensor] for tensor in made.inputs.values()} - {-1}
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
    """Give ensembles whose models are missing, do not fit or call them back their error.

    Args:
        entries: Every model by name.
    """
    calls = {name: set(_called(entry)) for name, entry in entries.items()}
    waiting = [name for name in calls if calls[name]]
    failed = True
    while failed:  # an ensemble of an ensemble that fails, fails
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
    names: dict[str, str] = {}
    for index, entry in enumerate(entries):
        if entry.key in names:
            raise Fault((*path, index), f"{entry.key!r} is written twice")
        names[entry.key] = entry.value
    if not names:
        raise Fault(path, "a step needs it")
    return names


def _configs(entry: ModelEntry) -> Iterable[ModelConfig]:
    return (source.config for source in entry.versions.values() if source.config is not None)


def _called(entry: ModelEntry) -> list[str]:
    return [
        step.model for config in _configs(entry) for step in TritonDeclarations.of(config).steps
    ]


def _circle(name: str, calls: Mapping[str, set[str]]) -> str:
    """Return a sentence on the models through which an ensemble calls itself, else ""."""
    waiting: list[tuple[str, ...]] = [(name,)]
    seen: set[str] = set()
    while waiting:
        way = waiting.pop()
        for other in sorted(calls.get(way[-1], ())):
            if other == name:
                return f"ensembles call each other in a circle: {' -> '.join((*way, name))}"
            if other not in seen:
                seen.add(other)
                waiting.append((*way, other))
    return ""


def _misfit(entry: ModelEntry, entries: Mapping[str, ModelEntry]) -> str | None:
    """Return a sentence on the first step whose model is not there or takes other tensors."""
    for config in _configs(entry):
        tensors: dict[str, _Declared] = {}
        for own in (*config.inputs, *config.outputs):
            tensors[own.name] = _Declared("the ensemble", own, config.counts_rows)
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
            for called in _configs(model):
                most = called.batching.max_batch_size if called.batching else 0
                if 0 < most < config.row_limit:
                    return f"{shown}, which takes {most} rows at most, and the ensemble {config.row_limit}"
                for side, names in (("input", step.inputs), ("output", step.outputs)):
                    known = {one.name for one in getattr(called, f"{side}s")}
                    wrong = [one for one in names if known and one not in known]
                    if wrong:
                        return f"{shown} with the {side} {wrong[0]!r}; it has {', '.join(sorted(known))}"
                needed = {one.name for one in called.inputs if not one.optional}
                missing = needed - set(step.inputs)
                if missing:
                    return f"{shown} without its input {min(missing)!r}"
                if called.configuration is not None and (
                    why := _contradiction(step, called, tensors)
                ):
                    return f"{entry.path}: {why}"
    return None


class _Declared(NamedTuple):
    """A tensor of an ensemble as one of its models declares it."""

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
    """Return a sentence on the first tensor that two models declare in ways that exclude each other.

    Args:
        tensors: The declarations of the ensemble and the earlier steps; this step's are added.
    """
    for specs, names in ((called.inputs, step.inputs), (called.outputs, step.outputs)):
        for spec in specs:
            if spec.name not in names:
                continue
            mine = _Declared(f"the model {step.model!r}", spec, called.counts_rows)
            first = tensors.setdefault(names[spec.name], mine)
            alike = _agree(first.dims, mine.dims) or _agree(first.spec.shape, spec.shape)
            if first.spec.datatype != spec.datatype or not alike:
                return (
                    f"the tensor {names[spec.name]!r} is {first.spec.datatype} {first.spec.wire_shape} by "
                    f"{first.model} and {spec.datatype} {spec.wire_shape} by {mine.model}"
                )
    return None


def _agree(one: tuple[Dimension, ...], other: tuple[Dimension, ...]) -> bool:
    """Tell whether a shape may be both; a size that is open in one of them agrees with any."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        a == b or -1 in (a, b) or isinstance(a, tuple) or isinstance(b, tuple) for a, b in pairs
    )

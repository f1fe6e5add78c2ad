"""Translates the `sequence_batching` of a config.pbtxt: limits of sequences, control inputs, and states.

ksrv fills a control input with facts about the sequence of each row, such as its id. A state is an output of the model
that is an input of the next request of the same sequence.
"""

import math
from typing import NamedTuple

from ksrv.dialects.triton.config.model_keys import DATA_TYPES, Keys
from ksrv.dialects.triton.declarations import ControlTensor, DeclaredState
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import SequenceLimits
from ksrv.repository.report import Report, reasons_for

IDLE_MICROSECONDS = 1_000_000
"""Triton's default for max_sequence_idle_microseconds."""

_KEY = "sequence_batching"
_KINDS = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "corrid",
}
_VALUES = {
    "int32_false_true": "INT32",
    "fp32_false_true": "FP32",
    "bool_false_true": "BOOL",
}
_IDS = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
"""The datatypes that an input for the id of a sequence may have."""


class SequenceSettings(NamedTuple):
    """The settings in a sequence_batching.

    Attributes:
        limits: The limits of sequences.
        controls: The inputs that ksrv fills in.
        states: The tensors that are passed from one request of a sequence to the next.
        delay_ms: How long the oldest request waits for a full batch.
    """

    limits: SequenceLimits
    controls: tuple[ControlTensor, ...]
    states: tuple[DeclaredState, ...]
    delay_ms: float


def read_sequence_batching(keys: Keys, report: Report, backend: str) -> SequenceSettings | None:
    """Return the settings for sequences, or None if the model serves none.

    Raises:
        ConfigError: The keys do not fit each other.
    """
    section = keys.sequence_batching
    if section is None:
        return None
    if section.iterative_sequence and backend == "python":
        report.applied[f"{_KEY}.iterative_sequence"] = "a request that is rescheduled is run again"
        return None
    if section.iterative_sequence:
        report.refused[f"{_KEY}.iterative_sequence"] = "a request is run once here"
    if section.state and backend == "python":
        report.refused[f"{_KEY}.state"] = "a Python model keeps the state of sequences itself"
    taken = {tensor.name for tensor in keys.input or ()}
    controls = _controls(section, taken)
    states = tuple(
        _state(state, (_KEY, "state", at), report) for at, state in enumerate(section.state or ())
    )
    for index, state in enumerate(states):
        if state.input in taken:
            raise Fault(
                (_KEY, "state", index, "input_name"), f"the input {state.input!r} has another use"
            )
        taken.add(state.input)
    limits = _limits(section, keys, report)
    if controls:
        filled = (f"{control.name} ({control.kind})" for control in controls)
        report.applied[f"{_KEY}.control_input"] = f"filled in: {', '.join(filled)}"
    if states:
        kept = ", ".join(f"{state.output} -> {state.input}" for state in states)
        report.applied[f"{_KEY}.state"] = f"kept for each sequence: {kept}"
    return SequenceSettings(limits, controls, states, _delay_ms(section, report))


def _limits(section: Keys, keys: Keys, report: Report) -> SequenceLimits:
    idle = section.max_sequence_idle_microseconds or IDLE_MICROSECONDS
    idle_ms = min(max(1, math.ceil(idle / 1000)), 86_400_000)  # at most a day
    groups = keys.instance_group or ()
    instances = sum((group.count or 1) * max(1, len(group.gpus or ())) for group in groups) or 1
    # As in Triton, an instance has as many sequences as rows, or as many as `oldest` says.
    each = max(1, keys.max_batch_size or 1)
    if section.oldest is not None:
        each = section.oldest.max_candidate_sequences or each
    limits = SequenceLimits()  # ksrv's defaults: never fewer open sequences than these allow
    most = min(max(limits.max, instances * each), 1_000_000)
    report.applied[_KEY] = (
        f"sequences end after {idle_ms} ms without a request; {most} may be open, and the first request "
        f"of a further sequence is answered 503, while Triton lets it wait"
    )
    return SequenceLimits(max=most, idle_timeout_ms=idle_ms)


def _delay_ms(section: Keys, report: Report) -> float:
    strategy = section.oldest or section.direct
    if strategy is None:
        return 0.0
    name = "direct" if strategy is section.direct else "oldest"
    reasons = {
        "minimum_slot_utilization": "batches have no slots of sequences",
        "preferred_batch_size": "every size up to max_batch_size is taken",
        "preserve_ordering": "each request has its answer as soon as it is there",
    }
    report.ignored |= reasons_for(strategy, reasons, f"{_KEY}.{name}.")
    delay = (strategy.max_queue_delay_microseconds or 0) / 1000
    report.applied[f"{_KEY}.{name}"] = (
        f"requests of different sequences are joined; the oldest waits up to {delay:g} ms"
    )
    return min(delay, 3_600_000.0)


def _controls(section: Keys, taken: set[str]) -> tuple[ControlTensor, ...]:
    """Return the control inputs, and add their names to `taken`."""
    found: list[ControlTensor] = []
    for index, tensor in enumerate(section.control_input or ()):
        path = (_KEY, "control_input", index)
        if tensor.name in taken:
            raise Fault((*path, "name"), f"the input {tensor.name!r} has another use")
        taken.add(tensor.name)
        for number, control in enumerate(tensor.control):
            if any(_KINDS[control.kind] == other.kind for other in found):
                raise Fault((*path, "control", number), f"{control.kind} is given twice")
            found.append(_control(tensor.name, control, (*path, "control", number)))
        if len(tensor.control) != 1:
            raise Fault(path, "expected one control of a kind for each input")
    return tuple(found)


def _control(name: str, control: Keys, path: KeyPath) -> ControlTensor:
    kind = _KINDS[control.kind]
    if kind == "corrid":
        datatype = DATA_TYPES[control.data_type or "TYPE_UINT64"]
        if datatype not in _IDS:
            raise Fault(
                (*path, "data_type"), f"{datatype} is not a datatype for the id of a sequence"
            )
        return ControlTensor(name=name, kind=kind, datatype=datatype)
    given = [key for key in _VALUES if getattr(control, key)]
    if len(given) != 1:
        raise Fault(path, f"needs one of {', '.join(_VALUES)}")
    values = getattr(control, given[0])
    if len(values) != 2:
        raise Fault(
            (*path, given[0]), f"expected two values, those for false and true, found {values}"
        )
    return ControlTensor(
        name=name,
        kind=kind,
        datatype=_VALUES[given[0]],
        false=float(values[0]),
        true=float(values[1]),
    )


def _state(state: Keys, path: KeyPath, report: Report) -> DeclaredState:
    initial = state.initial_state or []
    datatype = DATA_TYPES[state.data_type]
    if datatype == "BYTES":
        raise Fault((*path, "data_type"), "a state of texts is not kept")
    if any(value.data_file is not None for value in initial):
        report.refused[f"{_KEY}.state.initial_state.data_file"] = "states begin as zeros"
    if state.use_growable_memory:
        report.ignored[f"{_KEY}.state.use_growable_memory"] = "a state has the memory that it needs"
    dims = (initial[0].dims if initial else None) or state.dims
    return DeclaredState(
        input=state.input_name,
        output=state.output_name,
        datatype=datatype,
        shape=tuple(state.dims),
        initial_shape=tuple(1 if size == -1 else size for size in dims),
    )

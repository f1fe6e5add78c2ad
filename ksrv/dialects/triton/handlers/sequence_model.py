"""A model of a Triton repository with `sequence_batching`: its control inputs and states are filled in.

The states are tensors that the model gives with one request of a sequence and takes with the next; they lie
with the sequence. The rows of a batch belong to different sequences.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ksrv.dialects.triton.declarations import (
    BoundTensor,
    ControlTensor,
    StateTensor,
    TritonDeclarations,
    position_of,
)
from ksrv.dialects.triton.handlers.model import TritonModel
from ksrv.errors import InvalidRequest, quote
from ksrv.handlers.batch import Batch
from ksrv.handlers.devices.device import torch_tensor
from ksrv.handlers.sequences import Sequence as OpenSequence
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import SequenceRequest


class TritonSequenceModel(TritonModel):
    """Serves the model file of a Triton repository whose requests belong to sequences."""

    def bound_tensors(
        self,
    ) -> tuple[TritonDeclarations, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return the tensors of config.pbtxt together with the tensors that are filled in here."""
        tensors, inputs, outputs = super().bound_tensors()
        batch = (-1,) if self._batched else ()
        filled = [TensorSpec(one.name, one.datatype, (*batch, 1)) for one in tensors.controls]
        filled += [
            TensorSpec(one.input, one.datatype, (*batch, *one.shape)) for one in tensors.states
        ]
        given = [
            TensorSpec(one.output, one.datatype, (*batch, *one.shape))
            for one in tensors.states
            if one.output not in {spec.name for spec in outputs}
        ]
        return (
            replace_tensors(tensors, inputs and filled, outputs and given),
            (*inputs, *filled) if inputs else (),
            (*outputs, *given) if outputs else (),
        )

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Complete the declared tensors from the model file, without the tensors that are filled in.

        Args:
            spec: The inputs and outputs that config.pbtxt declares.
        """
        complete = super().declare(spec)
        tensors = self.dialect
        inner = {one.name for one in tensors.controls} | {one.input for one in tensors.states}
        kept = {one.output for one in tensors.states} if not spec.outputs else set()
        return replace(
            complete,
            inputs=tuple(one for one in complete.inputs if one.name not in inner),
            outputs=tuple(one for one in complete.outputs if one.name not in kept),
        )

    @property
    def _batched(self) -> bool:
        return self.context.config.batching is not None

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs by name."""
        if self._is_torch:
            return {name: batch.tensor(name) for name in batch}
        return {name: self._array(batch, name) for name in batch}

    def inference(self, /, **inputs: Any) -> dict[str, Any]:
        """Run the model on one request of each sequence.

        Args:
            inputs: The inputs of clients by name.

        Returns:
            The outputs by name, without the states.
        """
        batch = self.context.batch
        sequences = batch.sequences if self._batched else batch.sequences[:1]
        tensors = self.dialect
        for control in tensors.controls:
            inputs[control.name] = self._given(self._control(control, sequences, batch))
        states = [[_state(sequence, one) for sequence in sequences] for one in tensors.states]
        if not self._batched or all(_are_alike(kept) for kept in states):
            outputs = self._run(inputs, states)
            self._keep(outputs, sequences)
            return self._wanted(outputs)
        rows = [
            self._run(
                {name: value[row : row + 1] for name, value in inputs.items()},
                [kept[row : row + 1] for kept in states],
            )
            for row in range(len(sequences))
        ]
        wanted = [self._wanted(row) for row in rows]
        joined = {name: self._joined([one[name] for one in wanted]) for name in wanted[0]}
        # Only once every row has run: where one fails, all requests of the batch do, and may be sent again.
        for row, sequence in zip(rows, sequences, strict=True):
            self._keep(row, [sequence])
        return joined

    def _run(self, inputs: Mapping[str, Any], states: Sequence[Sequence[Any]]) -> dict[str, Any]:
        named = dict(inputs)
        for one, kept in zip(self.dialect.states, states, strict=True):
            named[one.input] = self._given(np.stack(kept) if self._batched else kept[0])
        return dict(self.model(**named))

    @property
    def _is_torch(self) -> bool:
        loaded = self.context.loaded
        return loaded is not None and loaded.is_torch

    def _given(self, array: Any) -> Any:
        """Return an input that is filled in here as the model takes it."""
        return torch_tensor(array).to(self.device) if self._is_torch else array

    def _joined(self, rows: list[Any]) -> Any:
        return sys.modules["torch"].cat(rows) if self._is_torch else np.concatenate(rows)

    def _keep(self, outputs: Mapping[str, Any], sequences: Sequence[OpenSequence]) -> None:
        """Keep the states that the model returned, each for its sequence."""
        for one in self.dialect.states:
            found = outputs[one.output]
            if self._is_torch:
                found = found.cpu()
            for row, sequence in enumerate(sequences):
                sequence.state[one.input] = np.array(found[row] if self._batched else found)

    def _wanted(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs that clients see."""
        wanted = {spec.name for spec in self.context.spec.outputs}
        return {name: array for name, array in outputs.items() if name in wanted or not wanted}

    def _control(
        self, control: ControlTensor, sequences: Sequence[OpenSequence], batch: Batch
    ) -> Any:
        """Return a control input: one value for each row."""
        values = np.zeros(len(sequences), dtype_of(control.datatype))
        for row, sequence in enumerate(sequences):
            try:
                values[row] = control_value(control, sequence)
            except InvalidRequest as error:
                batch.fail(row, error.message)
        return values.reshape(-1, 1) if self._batched else values


def control_value(control: ControlTensor, sequence: OpenSequence | SequenceRequest) -> Any:
    """Return the value of a control input for a request of a sequence.

    Raises:
        InvalidRequest: The sequence's id does not fit the datatype.
    """
    if control.kind != "corrid":
        is_true = control.kind == "ready" or getattr(sequence, control.kind)
        return control.true if is_true else control.false
    try:
        return _id_value(sequence.id, control)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"the model takes ids of sequences as {control.datatype}, and the 'sequence_id' "
            f"{quote(str(sequence.id))} is no such value"
        ) from None


def replace_tensors(
    tensors: TritonDeclarations, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> TritonDeclarations:
    """Return tensors with more that the model has."""
    filled = [
        tuple(
            BoundTensor(name=one.name, shape=tuple(one.wire_shape), position=position_of(one.name))
            for one in side
        )
        for side in (inputs, outputs)
    ]
    return msgspec.structs.replace(
        tensors,
        inputs=(*tensors.inputs, *filled[0]),
        outputs=(*tensors.outputs, *filled[1]),
    )


def dtype_of(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a datatype; BYTES are objects."""
    return np.dtype(object) if name == "BYTES" else DTYPES[name]


def _id_value(name: int | str, control: ControlTensor) -> Any:
    if name == "":  # of a warm-up; a model may make a number of a text
        name = 1
    if control.datatype == "BYTES":
        return str(name).encode()
    if isinstance(name, str):
        raise ValueError("a text")
    limits = np.iinfo(dtype_of(control.datatype))
    if not limits.min <= name <= limits.max:
        raise OverflowError("too large")
    return name


def _state(sequence: OpenSequence, tensor: StateTensor) -> Any:
    kept = sequence.state.get(tensor.input)
    return np.zeros(tensor.initial, dtype_of(tensor.datatype)) if kept is None else kept


def _are_alike(states: Sequence[Any]) -> bool:
    return all(state.shape == states[0].shape for state in states)

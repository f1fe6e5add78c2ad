"""The handler of a Triton model with `sequence_batching`: fills in control inputs and states.

A control input tells the model about the sequence of each row. A state is an output that is an input of the sequence's
next request; the sequence keeps it in between. Each row of a batch belongs to another sequence.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ksrv.dialects.triton.declarations import (
    BoundTensor,
    ControlTensor,
    TritonDeclarations,
    position_of,
)
from ksrv.dialects.triton.handlers.model import TritonModel
from ksrv.errors import InvalidRequest, quote
from ksrv.handlers.batch import Batch
from ksrv.handlers.file_tensors import KeptStates
from ksrv.handlers.sequences import Sequence as OpenSequence
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import SequenceRequest


class TritonSequenceModel(TritonModel):
    """Serves the model file of a Triton repository whose requests belong to sequences."""

    def bound_tensors(
        self,
    ) -> tuple[TritonDeclarations, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return the tensors of config.pbtxt, with the control inputs and states that the model file has too."""
        tensors, inputs, outputs = super().bound_tensors()
        batch = (-1,) if self._batched else ()
        filled = [
            TensorSpec(control.name, control.datatype, (*batch, 1)) for control in tensors.controls
        ]
        filled += [
            TensorSpec(state.input, state.datatype, (*batch, *state.shape))
            for state in tensors.states
        ]
        given = [
            TensorSpec(state.output, state.datatype, (*batch, *state.shape))
            for state in tensors.states
            if state.output not in {spec.name for spec in outputs}
        ]
        # A side that config.pbtxt does not declare stays empty: the tensors of the model file are then taken as they are.
        return (
            add_tensors(tensors, inputs and filled, outputs and given),
            (*inputs, *filled) if inputs else (),
            (*outputs, *given) if outputs else (),
        )

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Complete the declared tensors from the model file, without control inputs and states.

        Args:
            spec: The inputs and outputs that config.pbtxt declares.
        """
        complete = super().declare(spec)
        tensors = self.dialect
        filled = {control.name for control in tensors.controls}
        filled |= {state.input for state in tensors.states}
        # A state that config.pbtxt declares as an output is sent to clients too.
        hidden = {state.output for state in tensors.states} if not spec.outputs else set()
        return replace(
            complete,
            inputs=tuple(each for each in complete.inputs if each.name not in filled),
            outputs=tuple(each for each in complete.outputs if each.name not in hidden),
        )

    @property
    def _batched(self) -> bool:
        return self.context.config.batching is not None

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs of clients by name."""
        if self._is_torch:
            return {name: batch.tensor(name) for name in batch}
        return {name: self._array(batch, name) for name in batch}

    def inference(self, /, **inputs: Any) -> dict[str, Any]:
        """Run the model on one request of each sequence.

        Args:
            inputs: The inputs of clients by name.

        Returns:
            The outputs for clients by name.
        """
        batch = self.context.batch
        # Without batching the request is one step of one sequence, and the first dimension counts no rows.
        sequences = batch.sequences if self._batched else batch.sequences[:1]
        tensors = self.dialect
        kept = KeptStates(
            tensors.states, has_rows=self._batched, device=self.device if self._is_torch else None
        )
        for control in tensors.controls:
            inputs[control.name] = kept.for_model(self._control(control, sequences, batch))
        wanted = [spec.name for spec in self.context.spec.outputs]
        return kept.run(self.model, inputs, sequences, wanted)

    @property
    def _is_torch(self) -> bool:
        loaded = self.context.loaded
        return loaded is not None and loaded.is_torch

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


def add_tensors(
    tensors: TritonDeclarations, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> TritonDeclarations:
    """Return declarations with more inputs and outputs."""
    filled = [
        tuple(
            BoundTensor(
                name=spec.name, shape=tuple(spec.wire_shape), position=position_of(spec.name)
            )
            for spec in side
        )
        for side in (inputs, outputs)
    ]
    return msgspec.structs.replace(
        tensors, inputs=(*tensors.inputs, *filled[0]), outputs=(*tensors.outputs, *filled[1])
    )


def dtype_of(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a datatype; BYTES are objects."""
    return np.dtype(object) if name == "BYTES" else DTYPES[name]


def _id_value(name: int | str, control: ControlTensor) -> Any:
    if name == "":  # in a warm-up, where any id is good, but the datatype may need a number
        name = 1
    if control.datatype == "BYTES":
        return str(name).encode()
    if isinstance(name, str):
        raise ValueError("a text")
    limits = np.iinfo(dtype_of(control.datatype))
    if not limits.min <= name <= limits.max:
        raise OverflowError("too large")
    return name

"""Presents the tensors of a model file as its settings say: renamed, with constant inputs, and with kept states.

`present` wraps the model that a loader returned. `KeptStates` also serves dialects whose recurrent models have other
bindings.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ksrv.errors import did_you_mean, quote
from ksrv.handlers.context import Context
from ksrv.handlers.devices.device import torch_tensor
from ksrv.handlers.imports.folder_modules import HandlerError
from ksrv.handlers.sequences import Sequence as OpenSequence
from ksrv.loaders.device import torch_device
from ksrv.loaders.loaded import LoadedModel
from ksrv.loaders.named import NamedModel
from ksrv.model.config import ModelConfig, StateTensor
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE, cast
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import TensorSpec, fits
from ksrv.request import Array
from ksrv.torch_interop import is_tensor


class KeptStates:
    """The states of a recurrent model: each row gets the state of its sequence, which keeps what the model returns.

    Args:
        states: The states, each with a datatype and an initial shape.
        has_rows: Whether the tensors have a batch dimension.
        device: The device of a torch model; None for a model that takes arrays.
    """

    def __init__(
        self, states: Sequence[StateTensor], *, has_rows: bool, device: Any = None
    ) -> None:
        self._states = states
        self._has_rows = has_rows
        self._device = device

    def run(
        self,
        model: Callable[..., Mapping[str, Any]],
        inputs: Mapping[str, Any],
        sequences: Sequence[OpenSequence],
        wanted: Collection[str],
    ) -> dict[str, Any]:
        """Run a model on one request of each sequence.

        Args:
            model: Takes the inputs and states by name, and returns the outputs by name.
            inputs: The other inputs by name, with a row for each sequence.
            wanted: The names of the outputs to return; empty for all.
        """
        states = [[_state(sequence, state) for sequence in sequences] for state in self._states]
        if not self._has_rows or all(len({state.shape for state in kept}) == 1 for kept in states):
            outputs = self._call(model, inputs, states)
            self._keep(outputs, sequences)
            return {name: outputs[name] for name in wanted or outputs}
        # States of different shapes are not one array, so each row runs alone.
        rows = [
            self._call(
                model,
                {name: value[row : row + 1] for name, value in inputs.items()},
                [kept[row : row + 1] for kept in states],
            )
            for row in range(len(sequences))
        ]
        joined = {name: _joined([each[name] for each in rows]) for name in wanted or rows[0]}
        # States are kept once every row has run. If a row fails, all requests of the batch fail, and clients may send
        # them again; a state that was kept already would then be advanced twice.
        for each, sequence in zip(rows, sequences, strict=True):
            self._keep(each, [sequence])
        return joined

    def _call(
        self,
        model: Callable[..., Mapping[str, Any]],
        inputs: Mapping[str, Any],
        states: Sequence[Sequence[Array]],
    ) -> Mapping[str, Any]:
        """Call the model with an array for each state and row."""
        named = dict(inputs)
        for state, kept in zip(self._states, states, strict=True):
            joined = np.stack(kept, state.batch_dimension) if self._has_rows else kept[0]
            named[state.input] = self.for_model(joined)
        return model(**named)

    def for_model(self, array: Array) -> Any:
        """Return an array as the model takes it: as a tensor on its device, or unchanged."""
        return array if self._device is None else torch_tensor(array).to(self._device)

    def _keep(self, outputs: Mapping[str, Any], sequences: Iterable[OpenSequence]) -> None:
        """Store the states that the model returned in their sequences."""
        for state in self._states:
            found = outputs[state.output]
            array = np.asarray(found.cpu() if is_tensor(found) else found)
            for row, sequence in enumerate(sequences):
                own = array.take(row, state.batch_dimension) if self._has_rows else array.copy()
                sequence.state[state.input] = own


class FileTensors(NamedModel):
    """A model file with the inputs and outputs that its settings show.

    Args:
        loaded: The model as its loader returned it.
        context: The context of the handler, which knows the settings and the running batch.

    Attributes:
        model: The model without this wrapper. Handlers may use its attributes, such as `session`, through the wrapper.
        shown: This model as handlers and clients see it.

    Raises:
        HandlerError: The settings name tensors that the file does not have, or cannot have these values.
    """

    def __init__(self, loaded: LoadedModel, context: Context) -> None:
        config = context.config
        self.model = loaded.model
        self._context = context
        inputs = {spec.name: spec for spec in loaded.inputs}
        outputs = {spec.name: spec for spec in loaded.outputs}
        is_named = isinstance(self.model, NamedModel)
        self._results = list(self.model.outputs if is_named else outputs)
        if not inputs or not self._results:
            raise HandlerError(
                "rename:, constants:, state: and names alone in outputs: need a file that says what its inputs and "
                "outputs are: ONNX, OpenVINO or .pt2"
            )
        check_names(("rename",), config.rename, [*inputs, *self._results, *loaded.left_out])
        check_names(("constants",), config.constants, inputs)
        check_names(("state",), [state.input for state in config.state], inputs)
        check_names(("state",), [state.output for state in config.state], self._results)
        filled = {*config.constants, *(state.input for state in config.state)}
        hidden = {state.output for state in config.state}
        listed = config.served_outputs or [spec.name for spec in config.outputs]
        # The names in the file by the names for clients.
        self._given = _by_new_name(config, [name for name in inputs if name not in filled])
        self._answered = {
            new: old
            for new, old in _by_new_name(config, self._results).items()
            if new in listed or old not in hidden
        }
        check_names(("outputs",), config.served_outputs, self._answered)
        super().__init__(
            list(self._given), list(self._answered), [spec.name for spec in context.spec.inputs]
        )
        self._has_rows = config.counts_rows
        self._batched = {spec.name for spec in loaded.inputs if spec.batched}
        self._states = KeptStates(
            [
                _completed(state, inputs[state.input], outputs.get(state.output), config)
                for state in config.state
            ],
            has_rows=self._has_rows,
            device=torch_device(context.device) if loaded.is_torch else None,
        )
        self._constants = [
            (inputs[name], _constant(inputs[name], value))
            for name, value in config.constants.items()
        ]
        self.shown = replace(
            loaded,
            model=self,
            inputs=tuple(replace(inputs[old], name=new) for new, old in self._given.items()),
            outputs=tuple(
                replace(outputs[old], name=new)
                for new, old in self._answered.items()
                if old in outputs
            ),
        )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """See `NamedModel.run`."""
        given = {self._given.get(name, name): value for name, value in feeds.items()}
        rows = next((len(given[name]) for name in given if name in self._batched), 1)
        for spec, value in self._constants:
            if value.ndim < len(spec.shape):
                value = np.repeat(value[None], rows, axis=0)
            given[spec.name] = self._states.for_model(value)
        sequences = self._context.batch.sequences if self._context.config.state else []
        found = self._states.run(
            self._call,
            given,
            sequences if self._has_rows else sequences[:1],
            self._answered.values(),
        )
        return {new: found[old] for new, old in self._answered.items()}

    def _call(self, /, **given: Any) -> Mapping[str, Any]:
        """Run the model on tensors by the names in the file."""
        if isinstance(self.model, NamedModel):
            return self.model.run(given)
        result = self.model(**given)
        if isinstance(result, Mapping):
            return result
        results = result if isinstance(result, tuple | list) else (result,)
        return dict(zip(self._results, results, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def present(loaded: LoadedModel, context: Context) -> LoadedModel:
    """Return a model with the tensors that its settings show: the loaded model, or a wrapper of it.

    Raises:
        HandlerError: The settings do not fit the file.
    """
    config = context.config
    if not (config.rename or config.constants or config.state or config.served_outputs):
        return loaded
    return FileTensors(loaded, context).shown


def _by_new_name(config: ModelConfig, names: Iterable[str]) -> dict[str, str]:
    """Return names of a file by the names that clients see."""
    found: dict[str, str] = {}
    for old in names:
        new = config.rename.get(old, old)
        if new in found:
            raise HandlerError(
                f"rename: {quote(old)} and {quote(found[new])} of the model file would both be {quote(new)}"
            )
        found[new] = old
    return found


def check_names(path: KeyPath, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name of a tensor that the model does not have.

    Args:
        path: The path of the key that has the names.

    Raises:
        Fault: A name is not known.
    """
    for name in names:
        if name not in known:
            has = f"it has {', '.join(known)}{did_you_mean(name, known)}"
            raise Fault(path, f"the model file has no {quote(name)}; {has}")


def _completed(
    state: StateTensor, spec: TensorSpec, output: TensorSpec | None, config: ModelConfig
) -> StateTensor:
    """Return a state with the datatype and the initial shape of its input in the file.

    Args:
        spec: The input.
        output: The output; None if the file does not describe it.
    """
    shown = f"state: {quote(spec.name)}"
    if spec.datatype == "BYTES":
        raise HandlerError(f"{shown} has texts; a state has numbers")
    # Without a rank in the file, an output has no dimensions.
    if output is not None and (
        output.datatype != spec.datatype
        or len(output.shape) not in (0, len(spec.shape))
        or any(
            -1 not in sizes and sizes[0] != sizes[1]
            for sizes in zip(output.wire_shape, spec.wire_shape, strict=False)
        )
    ):
        raise HandlerError(
            f"{shown} is {spec.datatype} {spec.wire_shape} in the model file, and the output {quote(output.name)} cannot "
            f"be the next state, because it is {output.datatype} {output.wire_shape}"
        )
    sizes = list(spec.shape)
    if config.counts_rows:
        at = state.batch_dimension
        rows = sizes.pop(at) if at < len(sizes) else 0
        # A file that was exported for one row serves requests of one row.
        is_lone = rows == 1 and config.batching is None
        if isinstance(rows, int) and rows != -1 and not is_lone:
            raise HandlerError(
                f"{shown} has the shape {spec.wire_shape} in the model file, whose dimension {at} does not count rows; "
                f"name the dimension that does in batch_dimension:"
            )
    initial = state.initial_shape
    if initial is None:
        initial = tuple(size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    if not fits(initial, tuple(sizes)):
        raise HandlerError(
            f"{shown} has the shape {spec.wire_shape} in the model file; the initial_shape {list(initial)} does not fit"
        )
    return msgspec.structs.replace(state, datatype=spec.datatype, initial_shape=initial)


def _constant(spec: TensorSpec, value: object) -> Array:
    """Return the value of a constant: the whole tensor, or the value of each row.

    Raises:
        HandlerError: The value does not fit the datatype or the shape in the file.
    """
    shown = f"constants: {quote(spec.name)}"
    try:
        array = np.asarray(value)
        own = "BYTES" if array.dtype.kind in "U" else NAME_BY_DTYPE[array.dtype]
        array = array.astype(object) if own == "BYTES" else array
        found = cast(array, own, spec.datatype)
    except (ValueError, KeyError) as error:
        raise HandlerError(
            f"{shown} is {spec.datatype} in the model file, and the value is not: {error}"
        ) from None
    # A number is enough for a tensor of one element. With a batch dimension it is the value of each row.
    if all(size in (-1, 1) for size in spec.shape) and not found.ndim:
        found = found.reshape((1,) * (len(spec.shape) - spec.batched))
    if not (fits(found.shape, spec.shape) or (spec.batched and fits(found.shape, spec.shape[1:]))):
        raise HandlerError(
            f"{shown} has the shape {list(found.shape)}; in the model file it is {spec.wire_shape}"
        )
    return found


def _state(sequence: OpenSequence, state: StateTensor) -> Array:
    kept = sequence.state.get(state.input)
    return np.zeros(state.initial_shape or (), DTYPES[state.datatype]) if kept is None else kept


def _joined(rows: list[Any]) -> Any:
    return sys.modules["torch"].cat(rows) if is_tensor(rows[0]) else np.concatenate(rows)

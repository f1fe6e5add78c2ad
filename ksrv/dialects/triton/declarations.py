"""The contents of a config.pbtxt that are no settings of ksrv: `ModelConfig.dialect["triton"]`.

The reader of config.pbtxt writes it, and the handlers of this folder read it.
"""

import re
from typing import Any

import msgspec

from ksrv.model.config import ModelConfig

NAME = "triton"
_POSITION = re.compile(r".+__([0-9]{1,4})")


def position_of(name: str) -> int | None:
    """Return the position of a TorchScript model's tensor, such as 0 of the name NAME__0, or None."""
    found = _POSITION.fullmatch(name)
    return None if found is None else int(found[1])


class BoundTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a Triton model as clients see it, and as the model file does.

    Attributes:
        name: Its name.
        shape: The shape for clients, -1 for any size.
        model_shape: The shape in the model, or None where it is the same.
        position: Its place among the arguments or results of a TorchScript model, or None where
            its name is the model's too.
    """

    name: str
    shape: tuple[int, ...]
    model_shape: tuple[int, ...] | None = None
    position: int | None = None


class ControlTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a model that gets the sequence of each row.

    Attributes:
        kind: "start", "end", "ready" or "corrid", the sequence's id.
        false: The value for false, unless the input is an id.
        true: The value for true.
    """

    name: str
    kind: str
    datatype: str
    false: float = 0
    true: float = 1


class StateTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that goes from one request of a sequence to the next.

    Attributes:
        input: The name under which the model takes it.
        output: The name under which the model gives it.
        shape: Of one row; -1 for a size of any value.
        initial: The shape of the zeros at the start of a sequence.
    """

    input: str
    output: str
    datatype: str
    shape: tuple[int, ...]
    initial: tuple[int, ...]


class EnsembleStep(msgspec.Struct, frozen=True, kw_only=True):
    """One model of an ensemble.

    Attributes:
        model: Its name.
        version: Its version, or "" for the highest.
        inputs: Its inputs, and the tensors of the ensemble that they are.
        outputs: Its outputs, and the tensors of the ensemble that they become.
    """

    model: str
    version: str = ""
    inputs: dict[str, str]
    outputs: dict[str, str]


class TritonDeclarations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declarations of a config.pbtxt; tensors are empty if the model file knows them.

    Attributes:
        controls: The inputs that get sequences.
        states: The states of sequences.
        steps: The models of an ensemble, each after the models that it waits for.
    """

    inputs: tuple[BoundTensor, ...] = ()
    outputs: tuple[BoundTensor, ...] = ()
    controls: tuple[ControlTensor, ...] = ()
    states: tuple[StateTensor, ...] = ()
    steps: tuple[EnsembleStep, ...] = ()

    def mapping(self) -> dict[str, Any]:
        """Return this as `ModelConfig.dialect` has it."""
        return {NAME: msgspec.to_builtins(self)}

    @staticmethod
    def of(config: ModelConfig) -> "TritonDeclarations":
        """Return what `mapping` wrote; empty for models of other formats."""
        return msgspec.convert(config.dialect.get(NAME, {}), TritonDeclarations)

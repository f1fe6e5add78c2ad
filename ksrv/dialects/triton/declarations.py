"""The parts of a config.pbtxt that are not settings of ksrv, as `ModelConfig.dialect["triton"]` carries them.

`config/` writes them, and `handlers/` reads them.
"""

import re
from typing import Any

import msgspec

from ksrv.model.config import ModelConfig, StateTensor

NAME = "triton"
_POSITION = re.compile(r".+__([0-9]{1,4})")


def position_of(name: str) -> int | None:
    """Return the position in the name of a TorchScript model's tensor, such as 0 in NAME__0, or None."""
    found = _POSITION.fullmatch(name)
    return None if found is None else int(found[1])


class BoundTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a Triton model, as clients see it and as the model file has it.

    Attributes:
        name: The name for clients.
        shape: The shape for clients, -1 for any size.
        model_shape: The shape in the model, or None if it is the same.
        position: The position among the arguments or results of a TorchScript model, or None if the model uses the
            name.
    """

    name: str
    shape: tuple[int, ...]
    model_shape: tuple[int, ...] | None = None
    position: int | None = None


class ControlTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a model that ksrv fills with a fact about the sequence of each row.

    Attributes:
        kind: "start" or "end": whether the row's request starts or ends its sequence; "ready": whether the row has a
            request; "corrid": the id of the sequence.
        false: The value for false. Not used for "corrid".
        true: The value for true. Not used for "corrid".
    """

    name: str
    kind: str
    datatype: str
    false: float = 0
    true: float = 1


class DeclaredState(StateTensor, frozen=True, kw_only=True):
    """A state of a recurrent model with the shape that config.pbtxt declares.

    Attributes:
        shape: The shape of one row; -1 for any size.
    """

    shape: tuple[int, ...]


class EnsembleStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an ensemble: a call to a model.

    Attributes:
        version: The version of the model, or "" for the highest.
        inputs: For each input of the model the name of the ensemble's tensor that it gets.
        outputs: For each output of the model the name of the ensemble's tensor that it becomes.
    """

    model: str
    version: str = ""
    inputs: dict[str, str]
    outputs: dict[str, str]


class TritonDeclarations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declarations of a config.pbtxt.

    Attributes:
        inputs: The inputs; empty if they are read from the model file.
        outputs: The outputs; empty if they are read from the model file.
        steps: The steps of an ensemble, each after the steps whose outputs it needs.
    """

    inputs: tuple[BoundTensor, ...] = ()
    outputs: tuple[BoundTensor, ...] = ()
    controls: tuple[ControlTensor, ...] = ()
    states: tuple[DeclaredState, ...] = ()
    steps: tuple[EnsembleStep, ...] = ()

    def mapping(self) -> dict[str, Any]:
        """Return the declarations in the form of `ModelConfig.dialect`."""
        return {NAME: msgspec.to_builtins(self)}

    @staticmethod
    def of(config: ModelConfig) -> "TritonDeclarations":
        """Return the declarations of a model; empty for models of other formats."""
        return msgspec.convert(config.dialect.get(NAME, {}), TritonDeclarations)

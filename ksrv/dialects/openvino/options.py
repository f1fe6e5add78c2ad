"""The settings of a model of OpenVINO in another server's configuration: `ModelConfig.dialect["openvino"]`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ksrv.model.spec import Dimension

LOADER = "ksrv.dialects.openvino.loader"
"""The module that loads such a model; `ModelConfig.runtime`."""
_NAME = "openvino"


class OpenVinoOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a model in the config.json of an OpenVINO Model Server.

    Attributes:
        batch: The size of the batch dimension of every input, -1 for any; 0 leaves it.
        shapes: The shapes of inputs by their names in the file; "" is the only one. An empty shape
            leaves every size open.
        layouts: The layouts of tensors for clients, and after a colon in the file: "NHWC:NCHW".
        names: The names for clients by the names in the file, if they differ.
        stateful: Whether its variables are a state of each sequence.
        low_latency: Whether its loops become such variables.
    """

    batch: Dimension = 0
    shapes: dict[str, tuple[Dimension, ...]] = {}
    layouts: dict[str, str] = {}
    names: dict[str, str] = {}
    stateful: bool = False
    low_latency: bool = False

    def mapping(self) -> dict[str, Any]:
        """Return this as `ModelConfig.dialect` has it."""
        return {_NAME: msgspec.to_builtins(self)}

    @staticmethod
    def of(dialect: Mapping[str, Any]) -> "OpenVinoOptions":
        """Return what `mapping` wrote."""
        return msgspec.convert(dialect[_NAME], OpenVinoOptions)

"""The options of a model of OpenVINO in another server's configuration, as `ModelConfig.dialect` stores them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ksrv.model.spec import Dimension

LOADER = "ksrv.dialects.openvino.loader"
"""The module that loads such a model: the value of `ModelConfig.runtime`."""
_NAME = "openvino"
"""The key in `ModelConfig.dialect`."""


class OpenVinoOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a model in the config.json of an OpenVINO Model Server.

    Attributes:
        batch: The size of the batch dimension of every input. -1 for any size, 0 for the size in the model file.
        shapes: The shapes of inputs by the names in the model file; "" is the only input. An empty shape leaves every
            size open.
        layouts: For each tensor the layout for clients, and after a colon the layout in the model file: "NHWC:NCHW".
        names: The names for clients by the names in the model file, if they differ.
        stateful: Whether each sequence of requests has a separate state, which the model keeps in its variables.
        low_latency: Whether the state of loops is moved to variables.
    """

    batch: Dimension = 0
    shapes: dict[str, tuple[Dimension, ...]] = {}
    layouts: dict[str, str] = {}
    names: dict[str, str] = {}
    stateful: bool = False
    low_latency: bool = False

    def mapping(self) -> dict[str, Any]:
        """Return the options as a value of `ModelConfig.dialect`."""
        return {_NAME: msgspec.to_builtins(self)}

    @staticmethod
    def of(dialect: Mapping[str, Any]) -> "OpenVinoOptions":
        """Return the options that `mapping` has stored."""
        return msgspec.convert(dialect[_NAME], OpenVinoOptions)

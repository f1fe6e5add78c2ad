"""Triton's names and numbers of datatypes, and functions that find a tensor or its configuration by name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.dialects.triton.config.model_keys import DATA_TYPES
from ksrv.model.datatypes import DTYPES

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    triton: np.object_ if name == "BYTES" else DTYPES[name].type
    for triton, name in DATA_TYPES.items()
    if name != "BF16"
}
"""BF16 is missing on purpose: numpy has no such dtype, and models use DLPack for it."""

NUMBERS = {
    name.removeprefix("TYPE_"): number for number, name in enumerate(TRITON_STRING_TO_NUMPY, 1)
} | {"BF16": 14}
"""The numbers of Triton's enumeration by names, in which BYTES are STRING."""


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return numpy's type for a datatype of config.pbtxt, such as "TYPE_FP32".

    Raises:
        KeyError: numpy has no such type.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return Triton's number for a type of numpy, or None if Triton has no such datatype.

    Args:
        data_type: A type or dtype.
    """
    if data_type == np.bytes_ or data_type == np.object_:
        return NUMBERS["STRING"]
    found = (
        number for number, own in enumerate(TRITON_STRING_TO_NUMPY.values(), 1) if data_type == own
    )
    return next(found, None)


def triton_to_numpy_type(data_type: int) -> Any:
    """Return numpy's type for a number in Triton's enumeration, or None if the number is unknown."""
    types = list(TRITON_STRING_TO_NUMPY.values())
    return types[data_type - 1] if 1 <= data_type <= len(types) else None


def _by_name(tensors: Any, name: str) -> Any:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_tensor_by_name(inference_request: Any, name: str) -> Any:
    """Return an input of a request, or None if it has no input of this name."""
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Any:
    """Return an output of a response, or None if it has no output of this name."""
    return _by_name(inference_response.output_tensors(), name)


def _entry(model_config: Mapping[str, Any], side: str, name: str) -> dict[str, Any] | None:
    return next((entry for entry in model_config.get(side, ()) if entry["name"] == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an input of a model's parsed configuration, or None."""
    return _entry(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an output of a model's parsed configuration, or None."""
    return _entry(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Tell whether a model with this parsed configuration may answer a request with any number of responses."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))

"""The configuration that `initialize` gets, and the model's spec after `auto_complete_config` has completed it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ksrv.dialects.triton.config.model_keys import DATA_TYPES
from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ANY_SIZE_OR_NONE, LARGEST_SIZE, Dimension, ModelSpec, TensorSpec


def full_configuration(declared: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return a configuration for `args["model_config"]`.

    Args:
        declared: The contents of config.pbtxt with Triton's defaults.
        device: The instance's device, such as "cpu" or "cuda:0".
    """
    kind = f"KIND_{kind_of(device)}"
    groups = [
        {**group, "kind": group["kind"].replace("KIND_AUTO", kind)}
        for group in declared["instance_group"]
    ]
    return {**declared, "instance_group": groups}


def kind_of(device: str) -> str:
    """Return "CPU" or "GPU", as `args["model_instance_kind"]` has it."""
    return "GPU" if device.startswith("cuda") else "CPU"


def completed_spec(
    spec: ModelSpec, config: ModelConfig, configuration: Mapping[str, Any]
) -> ModelSpec:
    """Return the spec of a model.

    Args:
        spec: The spec from config.pbtxt alone.
        configuration: The configuration that `auto_complete_config` has completed.

    Raises:
        TritonModelException: The completed configuration is wrong.
    """
    rows = _whole(configuration.get("max_batch_size", 0), "max_batch_size", 0)
    inputs, outputs = (_tensors(side, configuration, rows > 0) for side in ("input", "output"))
    known = {*(config.configuration or {}), "dynamic_batching", "model_transaction_policy"}
    # Clients see only keys that Triton knows, not other keys that the model has added.
    shown = {key: value for key, value in configuration.items() if key in known}
    # The settings for sequences were made from the file. If it has sequences and no batches, requests are not joined,
    # also if `auto_complete_config` adds a max_batch_size.
    return replace(
        spec,
        platform="python",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=rows if config.sequences is None or config.batching else 0,
        counts_rows=rows > 0,
        accepts_any_inputs=not inputs,
        configuration=shown,
    )


def _tensors(side: str, configuration: Mapping[str, Any], batched: bool) -> tuple[TensorSpec, ...]:
    found = []
    for tensor in configuration.get(side, ()):
        name, datatype_name, dims = tensor["name"], tensor["data_type"], tensor["dims"]
        if not isinstance(name, str) or not name or datatype_name not in DATA_TYPES:
            raise TritonModelException(
                f"the {side} {name!r} has the data_type {datatype_name!r}; Triton has {', '.join(DATA_TYPES)}"
            )
        if not isinstance(dims, Sequence) or isinstance(dims, str):
            raise TritonModelException(
                f"the dims of the {side} {name!r} are a list of sizes, not {dims!r}"
            )
        sizes = [_whole(size, f"a size of the {side} {name!r}", -1) for size in dims]
        shape: tuple[Dimension, ...] = (-1, *sizes) if batched else tuple(sizes)
        if not batched and shape and shape[0] == -1:
            shape = (ANY_SIZE_OR_NONE, *shape[1:])
        found.append(
            TensorSpec(
                name, DATA_TYPES[datatype_name], shape, optional=bool(tensor.get("optional"))
            )
        )
    return tuple(found)


def _whole(value: Any, subject: str, least: int) -> int:
    if type(value) is not int or not least <= value <= LARGEST_SIZE:
        raise TritonModelException(f"{subject} is a whole number from {least}, not {value!r}")
    return value

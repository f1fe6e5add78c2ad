"""The metadata of the server and its models, as plain dictionaries.

The dictionaries are the REST answers; `to_message` makes the gRPC answers of the same dictionaries,
so that both front ends answer the same. Everything here is a pure function.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ksrv import __version__
from ksrv.limits import Limits
from ksrv.model.spec import Dimension, ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol.protobuf import message_class
from ksrv.statistics import Duration, ModelStatistics

SERVER_NAME = "ksrv"

LABELS_BYTES = 65536
"""The length of `properties.labels` at most: metadata is asked for often, and some models know millions of classes."""

Document = dict[str, Any]


EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "classification",
    "sequence",
    "model_repository",
    "model_configuration",
    "statistics",
    "generate",
    "binary_image_input",
    "binary_data_size_list",
)
"""The parts of the protocol that always work here."""


def working_extensions(*, shared_memory: bool) -> tuple[str, ...]:
    """Return the names of the protocol's extensions that work.

    Args:
        shared_memory: Whether callers may use regions of shared memory.
    """
    return (*EXTENSIONS, "system_shared_memory") if shared_memory else EXTENSIONS


def server_metadata(extensions: Iterable[str]) -> Document:
    """Describe the server.

    Args:
        extensions: The names of the protocol's extensions that work.
    """
    return {
        "name": SERVER_NAME,
        "version": __version__,
        "extensions": list(extensions),
    }


def model_metadata(
    spec: ModelSpec, versions: Sequence[str], limits: Limits | None = None
) -> Document:
    """Describe a model's tensors.

    Args:
        versions: The versions that can be called; an unversioned model has the version "".
        limits: The limits on the size of images; the defaults if left out.

    Returns:
        The document. It has `properties` only if an input takes encoded images or may be left out, an output is
        available as images, the model may answer in parts, or classes have labels, which are listed there as a JSON
        list.
    """
    document: Document = {
        "name": spec.name,
        "versions": [version for version in versions if version],
        "platform": spec.platform,
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }
    properties: dict[str, str] = {}
    for tensor in spec.inputs:
        if tensor.may_be_left_out:
            properties[f"{tensor.name}.optional"] = "true"
        properties |= _length_properties(tensor)
        if tensor.image is not None:
            properties |= _image_properties(tensor, tensor.image, limits or Limits())
    for tensor in spec.outputs:
        properties |= _length_properties(tensor)
        if tensor.output_image is not None:
            formats = ",".join(tensor.output_image.formats)
            properties[f"{tensor.name}.image.formats"] = formats
    if spec.may_stream:
        properties["streams"] = "true"
    if spec.labels is not None:
        labels = json.dumps(spec.labels, ensure_ascii=False, separators=(",", ":"))
        if len(labels.encode()) <= LABELS_BYTES:
            properties["labels"] = labels
    if spec.sequences is not None:
        properties["sequences.max"] = str(spec.sequences.max)
        properties["sequences.idle_timeout_ms"] = str(spec.sequences.idle_timeout_ms)
    if properties:
        document["properties"] = properties
    return document


def _tensor(tensor: TensorSpec) -> Document:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.wire_shape}


def _length_properties(tensor: TensorSpec) -> dict[str, str]:
    """Say which dimensions of a tensor are lengths that may differ between joined requests."""
    if not tensor.lengths:
        return {}
    shape = (name or size for name, size in zip(tensor.lengths, tensor.wire_shape, strict=True))
    return {f"{tensor.name}.lengths": ",".join(map(str, shape))}


def _image_properties(tensor: TensorSpec, image: ImageSpec, limits: Limits) -> dict[str, str]:
    channels = _size(tensor.shape[3])
    values = {
        "accepts": f"BYTES of shape [N]: one encoded file for each image, "
        f"beside raw {tensor.datatype} in NHWC order",
        "formats": ",".join(image.formats),
        "color": image.color,
        "channels": f"{channels} ({image.channels})",
        "size": f"{_size(tensor.shape[1])}x{_size(tensor.shape[2])}",
        "resize": image.resize,
        "exif": image.exif,
        "max_pixels": str(limits.image_pixels),
        "max_request_pixels": str(limits.request_pixels),
    }
    if image.shorter_side is not None:
        values["shorter_side"] = str(image.shorter_side)
    if image.scale != 1.0:
        values["scale"] = repr(image.scale)
    for key, numbers in (("mean", image.mean), ("std", image.std)):
        if numbers:
            values[key] = ",".join(repr(number) for number in numbers)
    return {f"{tensor.name}.image.{key}": value for key, value in values.items()}


def _size(dimension: Dimension) -> str:
    if isinstance(dimension, tuple):
        return f"{dimension[0]}:{dimension[1]}"
    return "any" if dimension == -1 else str(dimension)


def model_config(spec: ModelSpec) -> Document:
    """Describe a model in the form of Triton's configuration.

    Args:
        spec: The model. If it batches, the shapes have no batch dimension. A model of Triton's is
            described by its config.pbtxt, which the tensors and the device of the loaded model complete.
    """
    own = spec.configuration or {}
    rows = spec.max_batch_size or spec.row_limit
    batches = rows > 0
    document: Document = {
        "name": spec.name,
        "platform": spec.platform,
        "backend": SERVER_NAME,
        "max_batch_size": rows,
        "model_transaction_policy": {"decoupled": False},
        "parameters": {
            name: {"string_value": value if isinstance(value, str) else repr(value)}
            for name, value in spec.parameters.items()
            if isinstance(value, str | int | float | bool)
        },
    }
    if spec.sequences is not None:
        document["sequence_batching"] = {
            "max_sequence_idle_microseconds": spec.sequences.idle_timeout_ms * 1000,
            "oldest": {"max_candidate_sequences": spec.sequences.max},
        }
    elif spec.max_batch_size:
        document["dynamic_batching"] = {}
    if own:
        document = {**own, "instance_group": _instance_groups(own, spec.device)}
    sides = (("input", spec.inputs), ("output", spec.outputs))
    return document | {
        side: _config_tensors(tensors, own.get(side, ()), batches) for side, tensors in sides
    }


def _config_tensors(
    tensors: Sequence[TensorSpec], own: Iterable[Mapping[str, Any]], batches: bool
) -> list[Document]:
    """Return inputs or outputs, with what a config.pbtxt says of them."""
    declared = {one["name"]: one for one in own}
    return [
        {
            "name": tensor.name,
            "data_type": data_type(tensor.datatype),
            **({"format": "FORMAT_NHWC"} if tensor.image is not None and batches else {}),
            "dims": tensor.wire_shape[1 if batches and tensor.batched else 0 :],
            **({"optional": True} if tensor.may_be_left_out else {}),
            **{key: value for key, value in declared.get(tensor.name, {}).items() if value != []},
        }
        for tensor in tensors
    ]


def _instance_groups(own: Mapping[str, Any], device: str) -> list[Document]:
    """Return the instance groups of a config.pbtxt, each with the kind of device that its instances have."""
    kind = "KIND_CPU" if device.partition(":")[0] == "cpu" else "KIND_GPU"
    return [
        group | {"kind": kind} if group["kind"] == "KIND_AUTO" else group
        for group in own.get("instance_group", ())
    ]


def data_type(datatype: str) -> str:
    """Return Triton's configuration name of a datatype: BYTES is a string there."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def model_statistics(statistics: Iterable[ModelStatistics]) -> Document:
    """Describe what models have done."""
    return {"model_stats": [_statistics(entry) for entry in statistics]}


def _statistics(entry: ModelStatistics) -> Document:
    return {
        "name": entry.name,
        "version": entry.version,
        "last_inference": entry.last_inference_ms,
        "inference_count": entry.inference_count,
        "execution_count": entry.execution_count,
        "inference_stats": {
            "success": _duration(entry.success),
            "fail": _duration(entry.fail),
            "queue": _duration(entry.queue),
            "compute_input": _duration(entry.compute_input),
            "compute_infer": _duration(entry.compute_infer),
            "compute_output": _duration(entry.compute_output),
            "cache_hit": _duration(entry.cached.get("hit", Duration())),
            "cache_miss": _duration(entry.cached.get("miss", Duration())),
        },
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for batch in entry.batches
        ],
        "memory_usage": [],
        "response_stats": {},
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def model_config_document(spec: ModelSpec) -> Document:
    """Describe a model as Triton's REST route does: with every field that is no message, set or not."""
    return _document(to_message("inference.ModelConfig", model_config(spec)))


def _document(message: Any) -> Document:
    """Return a message in the JSON form of Triton: 64-bit integers as numbers, unset messages and choices left out."""
    document: Document = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Mapping):
            entry = field.message_type.fields_by_name["value"]
            document[field.name] = {str(key): _value(entry, value[key]) for key in value}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            document[field.name] = [_value(field, one) for one in value]
        elif not field.has_presence or message.HasField(field.name):
            document[field.name] = _value(field, value)
    return document


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _document(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.cpp_type == field.CPPTYPE_FLOAT:
        return float(str(np.float32(value)))  # 0.1, not the double next to the float
    return value


def to_message(name: str, document: Document) -> Any:
    """Return a document as a protobuf message of the same field names.

    Args:
        document: Scalars, lists, mappings for submessages and names for enumerations.

    Raises:
        ParseError: The message has no such field, or a value has another type.
    """
    from google.protobuf.json_format import ParseDict

    return ParseDict(document, message_class(name)())

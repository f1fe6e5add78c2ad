"""Makes the metadata of the server and its models, as dictionaries.

REST answers with these dictionaries as JSON. For gRPC, `to_message` turns the same dictionaries into messages, so that
both front ends give the same answers.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ksrv import __version__
from ksrv.limits import Limits
from ksrv.model.spec import AudioSpec, Dimension, ImageSpec, ModelSpec, TensorSpec, changed_keys
from ksrv.protocol.protobuf import message_class

SERVER_NAME = "ksrv"

LABELS_BYTES = 65536
"""The most bytes of `properties.labels`; longer lists are left out, because some models have millions of classes."""

Document = dict[str, Any]

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "classification",
    "sequence",
    "binary_image_input",
    "binary_data_size_list",
)
"""The extensions of KServe v2 in every server; a dialect may add others, such as shared memory."""


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
        The document. It has `properties` only if an input takes encoded images or sounds, or may be left out, an output
        is available as images or has files, the model may answer in parts, or classes have labels, which are listed
        there as a JSON list.
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
        if tensor.audio is not None:
            properties |= _audio_properties(tensor.name, tensor.audio)
    for tensor in spec.outputs:
        properties |= _length_properties(tensor)
        if tensor.content_type:
            properties[f"{tensor.name}.content_type"] = tensor.content_type
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
    """Return the property that names the dimensions along which a tensor is padded, or nothing."""
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
    given = changed_keys(image)
    for key in ("shorter_side", "min_side", "max_side", "multiple", "rounding", "align"):
        if key in given:
            values[key] = str(given[key])
    if image.resize_to is not None:
        values["resize_to"] = "x".join(map(str, image.resize_to))
    if image.scale != 1.0:
        values["scale"] = repr(image.scale)
    pad = image.pad if image.resize == "letterbox" else ()
    for key, numbers in (("mean", image.mean), ("std", image.std), ("pad", pad)):
        if numbers:
            values[key] = ",".join(repr(number) for number in numbers)
    return {f"{tensor.name}.image.{key}": value for key, value in values.items()}


def _audio_properties(name: str, audio: AudioSpec) -> dict[str, str]:
    values = {
        "accepts": "BYTES of shape [N]: one WAV, FLAC, OGG or MP3 file each, beside samples in FP32"
    }
    values |= {key: str(value) for key, value in changed_keys(audio).items()}
    return {f"{name}.audio.{key}": value for key, value in values.items()}


def _size(dimension: Dimension) -> str:
    if isinstance(dimension, tuple):
        return f"{dimension[0]}:{dimension[1]}"
    return "any" if dimension == -1 else str(dimension)


def to_message(name: str, document: Document) -> Any:
    """Return a document as a protobuf message of the same field names.

    Args:
        document: Scalars, lists, mappings for submessages and names for enumerations.

    Raises:
        ParseError: The message has no such field, or a value has another type.
    """
    from google.protobuf.json_format import ParseDict

    return ParseDict(document, message_class(name)())

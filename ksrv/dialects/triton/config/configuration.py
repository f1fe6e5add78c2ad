"""The configuration of a model that clients can ask for: its config.pbtxt, completed with Triton's defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ksrv.dialects.triton.config.backends import BACKENDS, ENSEMBLE, Backend
from ksrv.dialects.triton.config.model_keys import Keys, MapEntry
from ksrv.dialects.triton.config.sequence_batching import IDLE_MICROSECONDS
from ksrv.protocol.metadata import Document


def configuration(keys: Keys, name: str, backend: Backend, max_batch_size: int) -> dict[str, Any]:
    """Return the keys of a config.pbtxt with Triton's defaults, as plain values under Triton's names.

    Only tensors in the file are shown, and the device of an instance group stays KIND_AUTO, because the model is not
    loaded yet. Loading completes both.

    Args:
        keys: The keys of the file.
        max_batch_size: The most rows of a batch; 0 without a batch dimension.
    """
    shown: dict[str, Any] = plain(keys)
    shown |= {"name": name, "max_batch_size": max_batch_size}
    shown.setdefault("version_policy", {"latest": {"num_versions": 1}})
    preferred = [max_batch_size] if max_batch_size else []
    if (dynamic := shown.get("dynamic_batching")) is not None:
        dynamic["preferred_batch_size"] = dynamic.get("preferred_batch_size") or preferred
    if (sequences := shown.get("sequence_batching")) is not None:
        idle = sequences.get("max_sequence_idle_microseconds")
        sequences["max_sequence_idle_microseconds"] = idle or IDLE_MICROSECONDS
        if (oldest := sequences.get("oldest")) is not None:
            oldest["preferred_batch_size"] = oldest.get("preferred_batch_size") or preferred
    if backend.platform is not None:
        shown["platform"] = backend.platform
    if backend is ENSEMBLE:
        shown["backend"] = ""
        return shown
    shown["backend"] = backend.name
    shown.setdefault("default_model_filename", backend.file)
    groups = shown.get("instance_group") or [{"name": name}]
    shown["instance_group"] = [
        {"name": f"{name}_{index}", "kind": "KIND_AUTO", "count": 1} | group
        for index, group in enumerate(groups)
    ]
    if backend is BACKENDS["python"]:
        pinned = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}
        shown["optimization"] = pinned | shown.get("optimization", {})
    return shown


def plain(value: Any) -> Any:
    """Return a value without `Keys`: a message becomes a dictionary of the keys that the file has."""
    if isinstance(value, Keys):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], MapEntry):
            return {entry.key: plain(entry.value) for entry in value}
        return [plain(item) for item in value]
    return value


def as_document(message: Any) -> Document:
    """Return a protobuf message in Triton's JSON: 64-bit integers are numbers, and unset messages are left out."""
    document: Document = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Mapping):
            entry = field.message_type.fields_by_name["value"]
            document[field.name] = {str(key): _value(entry, value[key]) for key in value}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            document[field.name] = [_value(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            document[field.name] = _value(field, value)
    return document


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return as_document(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.cpp_type == field.CPPTYPE_FLOAT:
        return float(str(np.float32(value)))  # 0.1, not the double next to the float
    return value

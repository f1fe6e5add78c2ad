"""Converts the messages of the gRPC service to and from mappings by field name.

protobuf is imported with the first message. The message classes are in a descriptor pool that the client shares with
the server, and not in protobuf's default pool, where another client library may have registered messages of the same
names. A field that a message leaves out has its default value.
"""

from collections.abc import Mapping
from typing import Any

from ksrv.protocol.protobuf import INFERENCE, methods, set_parameters

PARAMETER = "inference.InferParameter"
CONTENTS = "inference.InferTensorContents"
"""Typed values of a tensor. They are not read, because ksrv always answers with raw contents."""


def encode(method: str, values: Mapping[str, Any]) -> bytes:
    """Return the request of a call as bytes.

    Args:
        values: The fields; fields that the message does not have are left out.

    Raises:
        ValueError: A parameter is not a text, a number or a bool.
    """
    request = methods(INFERENCE)[method][0]()
    _fill(request, values)
    content: bytes = request.SerializeToString()
    return content


def decode(method: str, content: bytes) -> dict[str, Any]:
    """Return the fields of the answer of a call.

    Raises:
        ValueError: The bytes are not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        answer = methods(INFERENCE)[method][1].FromString(content)
    except DecodeError as error:
        raise ValueError(f"it is not a protobuf message of this call: {error}") from error
    document: dict[str, Any] = _read(answer)
    return document


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    """Set the fields of a message. Mappings are parameters."""
    known = message.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        if name not in known or not value:
            continue
        field = getattr(message, name)
        if isinstance(value, Mapping):
            set_parameters(field, value)
        elif not known[name].is_repeated:
            setattr(message, name, value)
        elif known[name].message_type is not None:
            for item in value:
                _fill(field.add(), item)
        else:
            field.extend(
                bytes(item) if isinstance(item, memoryview | bytearray) else item for item in value
            )


def _read(message: Any) -> Any:
    """Return a message as a mapping, and a parameter as its bare value."""
    if message.DESCRIPTOR.full_name == PARAMETER:
        chosen = message.WhichOneof("parameter_choice")
        return None if chosen is None else getattr(message, chosen)
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if field.message_type is None or field.message_type.full_name != CONTENTS
    }


def _value(field: Any, value: Any) -> Any:
    """Return the value of a field: of a scalar, a map, a list or a message."""
    kind = field.message_type
    if kind is None:
        return list(value) if field.is_repeated else value
    if kind.GetOptions().map_entry:
        holds_messages = kind.fields_by_name["value"].message_type is not None
        return {key: _read(value[key]) if holds_messages else value[key] for key in value}
    return [_read(item) for item in value] if field.is_repeated else _read(value)

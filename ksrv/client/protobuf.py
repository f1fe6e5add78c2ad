"""The few messages of the gRPC service, read and written without the protobuf package.

A message is a mapping by field name, as its JSON form would be; what a message leaves out is read as
its default. Field numbers are those of `protos/inference.proto`.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        kind: "string", "bytes", "bool", "int64", "uint64", "double", or the fields of a message.
        form: "single", "repeated", or "map" with string keys.
    """

    name: str
    kind: "str | Message"
    form: str = "single"


Message: TypeAlias = Mapping[int, Field]

PARAMETER: Message = {
    1: Field("bool", "bool"),
    2: Field("int", "int64"),
    3: Field("string", "string"),
    4: Field("double", "double"),
    5: Field("uint", "uint64"),
}
"""A oneof: it is read and written as the bare value."""

_TENSOR: Message = {
    1: Field("name", "string"),
    2: Field("datatype", "string"),
    3: Field("shape", "int64", "repeated"),
    4: Field("parameters", PARAMETER, "map"),
}
_NAMED: Message = {1: Field("name", "string"), 2: Field("version", "string")}
_LOADED: Message = {2: Field("model_name", "string")}
_DURATION: Message = {1: Field("count", "uint64"), 2: Field("ns", "uint64")}
_STAGES = ("compute_input", "compute_infer", "compute_output")

_INFER_REQUEST: Message = {
    1: Field("model_name", "string"),
    2: Field("model_version", "string"),
    3: Field("id", "string"),
    4: Field("parameters", PARAMETER, "map"),
    5: Field("inputs", _TENSOR, "repeated"),
    6: Field(
        "outputs",
        {1: Field("name", "string"), 2: Field("parameters", PARAMETER, "map")},
        "repeated",
    ),
    7: Field("raw_input_contents", "bytes", "repeated"),
}
_INFER_RESPONSE: Message = {
    1: Field("model_name", "string"),
    2: Field("model_version", "string"),
    3: Field("id", "string"),
    4: Field("parameters", PARAMETER, "map"),
    5: Field("outputs", _TENSOR, "repeated"),
    6: Field("raw_output_contents", "bytes", "repeated"),
}

REQUESTS: Mapping[str, Message] = {
    "ServerLive": {},
    "ServerReady": {},
    "ServerMetadata": {},
    "ModelReady": _NAMED,
    "ModelMetadata": _NAMED,
    "ModelStatistics": _NAMED,
    "ModelInfer": _INFER_REQUEST,
    "ModelStreamInfer": _INFER_REQUEST,
    "RepositoryIndex": {},
    "RepositoryModelLoad": _LOADED,
    "RepositoryModelUnload": _LOADED,
}

RESPONSES: Mapping[str, Message] = {
    "ServerLive": {1: Field("live", "bool")},
    "ServerReady": {1: Field("ready", "bool")},
    "ServerMetadata": {
        1: Field("name", "string"),
        2: Field("version", "string"),
        3: Field("extensions", "string", "repeated"),
    },
    "ModelReady": {1: Field("ready", "bool")},
    "ModelMetadata": {
        1: Field("name", "string"),
        2: Field("versions", "string", "repeated"),
        3: Field("platform", "string"),
        4: Field("inputs", {key: _TENSOR[key] for key in (1, 2, 3)}, "repeated"),
        5: Field("outputs", {key: _TENSOR[key] for key in (1, 2, 3)}, "repeated"),
        6: Field("properties", "string", "map"),
    },
    "ModelStatistics": {
        1: Field(
            "model_stats",
            {
                1: Field("name", "string"),
                2: Field("version", "string"),
                3: Field("last_inference", "uint64"),
                4: Field("inference_count", "uint64"),
                5: Field("execution_count", "uint64"),
                6: Field(
                    "inference_stats",
                    {
                        number: Field(name, _DURATION)
                        for number, name in enumerate(("success", "fail", "queue", *_STAGES), 1)
                    },
                ),
                7: Field(
                    "batch_stats",
                    {
                        1: Field("batch_size", "uint64"),
                        **{
                            number: Field(name, _DURATION) for number, name in enumerate(_STAGES, 2)
                        },
                    },
                    "repeated",
                ),
            },
            "repeated",
        )
    },
    "ModelInfer": _INFER_RESPONSE,
    "ModelStreamInfer": {
        1: Field("error_message", "string"),
        2: Field("infer_response", _INFER_RESPONSE),
    },
    "RepositoryIndex": {
        1: Field(
            "models",
            {
                1: Field("name", "string"),
                2: Field("version", "string"),
                3: Field("state", "string"),
                4: Field("reason", "string"),
            },
            "repeated",
        )
    },
    "RepositoryModelLoad": {},
    "RepositoryModelUnload": {},
}

_DEFAULTS: Mapping[str, Any] = {
    "string": "", "bytes": b"", "bool": False, "int64": 0, "uint64": 0, "double": 0.0,
}  # fmt: skip


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _delimited(number: int, content: Any) -> list[Any]:
    return [_varint(number << 3 | LENGTH), _varint(len(content)), content]


def encode(message: Message, values: Mapping[str, Any]) -> bytes:
    """Return a message's bytes.

    Args:
        message: Its fields.
        values: Their values; fields that are left out or empty are not written.

    Raises:
        ValueError: A parameter is neither a text, a number nor a truth value.
    """
    parts: list[Any] = []
    for number, field in message.items():
        value = values.get(field.name)
        if value is None or (field.form != "single" and not value):
            continue
        if field.form == "map":
            for key, one in value.items():
                entry = b"".join([*_single(1, "string", key), *_single(2, field.kind, one)])
                parts += _delimited(number, entry)
        elif field.form == "single":
            parts += _single(number, field.kind, value)
        elif field.kind == "int64":
            parts += _delimited(number, b"".join(map(_varint, value)))
        else:
            for one in value:
                parts += _single(number, field.kind, one)
    return b"".join(parts)


def _single(number: int, kind: "str | Message", value: Any) -> list[Any]:
    if kind is PARAMETER:
        return _delimited(number, _parameter(value))
    if not isinstance(kind, str):
        return _delimited(number, encode(kind, value))
    if kind == "string":
        return _delimited(number, value.encode())
    if kind == "bytes":
        return _delimited(number, value)
    if kind == "double":
        return [_varint(number << 3 | FIXED64), struct.pack("<d", value)]
    return [_varint(number << 3 | VARINT), _varint(int(value))]


def _parameter(value: Any) -> bytes:
    if isinstance(value, bool):
        chosen = 1
    elif isinstance(value, int):
        chosen = 2 if value < 1 << 63 else 5
    elif isinstance(value, str):
        chosen = 3
    elif isinstance(value, float):
        chosen = 4
    else:
        raise ValueError(f"a parameter is a text, a number or a truth value, got {value!r}")
    return b"".join(_single(chosen, PARAMETER[chosen].kind, value))


def decode(message: Message, content: memoryview) -> dict[str, Any]:
    """Return what a message holds; bytes are views into it.

    Args:
        message: Its fields; others are left out.
        content: Its bytes.

    Raises:
        ValueError: They are no such message.
    """
    values = {field.name: _default(field) for field in message.values()}
    for number, wire, raw in _fields(content):
        field = message.get(number)
        if field is None:
            continue
        if field.form == "map":
            entry = decode({1: Field("key", "string"), 2: Field("value", field.kind)}, raw)
            values[field.name][entry["key"]] = entry["value"]
        elif field.form == "single":
            values[field.name] = _value(field.kind, raw)
        elif wire == LENGTH and field.kind in ("int64", "uint64"):
            values[field.name] += [_value(field.kind, one) for one in _varints(raw)]
        else:
            values[field.name].append(_value(field.kind, raw))
    return values


def _default(field: Field) -> Any:
    if field.form != "single":
        return {} if field.form == "map" else []
    if isinstance(field.kind, str):
        return _DEFAULTS[field.kind]
    if field.kind is PARAMETER:
        return None
    return {one.name: _default(one) for one in field.kind.values()}


def _value(kind: "str | Message", raw: Any) -> Any:
    if kind is PARAMETER:
        found = [
            _value(PARAMETER[number].kind, one)
            for number, _, one in _fields(raw)
            if number in PARAMETER
        ]
        return found[-1] if found else None
    if not isinstance(kind, str):
        return decode(kind, raw)
    if kind == "string":
        return str(raw, "utf-8", "replace")
    if kind == "int64" and raw >= 1 << 63:
        return raw - (1 << 64)
    if kind == "double":
        return struct.unpack("<d", raw)[0]
    return bool(raw) if kind == "bool" else raw


def _read_varint(content: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while offset < len(content) and shift < 70:
        byte = content[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, offset
        shift += 7
    raise ValueError("the message ends within a number")


def _varints(content: memoryview) -> Iterator[int]:
    offset = 0
    while offset < len(content):
        value, offset = _read_varint(content, offset)
        yield value


def _fields(content: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an integer, or a view of its bytes."""
    offset = 0
    while offset < len(content):
        key, offset = _read_varint(content, offset)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, offset = _read_varint(content, offset)
            yield number, wire, value
            continue
        if wire == LENGTH:
            size, offset = _read_varint(content, offset)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"the message has the wire type {wire}")
        if offset + size > len(content):
            raise ValueError("the message ends within a field")
        yield number, wire, content[offset : offset + size]
        offset += size

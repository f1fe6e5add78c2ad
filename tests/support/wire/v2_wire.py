"""Requests and answers of KServe v2 in plain Python: struct and json, nothing of ksrv or protobuf.

A tensor is a name, a datatype, a shape and a flat list of Python values; FP16 and BF16 values are
their bit patterns. REST bodies come in every dialect that a client may write, gRPC messages with raw
or typed contents.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "H", "BF16": "H", "FP32": "f", "FP64": "d",
}  # fmt: skip
CONTENTS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4,
    "UINT32": 4, "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Plain:
    """A tensor in Python values."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]

    @property
    def raw(self) -> bytes:
        """Its bytes on the wire; BYTES elements with their lengths."""
        if self.datatype == "BYTES":
            return b"".join(struct.pack("<I", len(value)) + value for value in self.values)
        return struct.pack(f"<{len(self.values)}{FORMATS[self.datatype]}", *self.values)


def nested(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Flat values in lists of lists, row-major."""
    if len(shape) <= 1:
        return list(values)
    step = len(values) // shape[0] if shape[0] else 0
    return [nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


# ---- REST ------------------------------------------------------------------------------------

FORMS = ("flat", "nested", "sized", "unsized", "listed")
"""How an input may be written: JSON in two ways, binary with and without sizes, a list of sizes."""


def rest_input(tensor: Plain, form: str) -> tuple[dict[str, Any], bytes]:
    """One entry of `inputs`, and the bytes that follow the JSON for it."""
    entry: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
    }
    if form in ("flat", "nested"):
        values = tensor.values
        if tensor.datatype == "BYTES":
            values = [value.decode() for value in values]
        entry["data"] = nested(values, tensor.shape) if form == "nested" else list(values)
        return entry, b""
    raw = tensor.raw
    if form == "listed":
        if tensor.datatype == "BYTES":
            raw = b"".join(tensor.values)
            sizes = ",".join(str(len(value)) for value in tensor.values)
        else:
            sizes = str(len(raw))
        entry["parameters"] = {"binary_data_size": sizes}
    elif form == "sized":
        entry["parameters"] = {"binary_data_size": len(raw)}
    return entry, raw


def document(inputs: list[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"inputs": inputs, **fields}).encode()


# ---- gRPC ------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def contents(tensor: Plain) -> bytes:
    """InferTensorContents."""
    number = CONTENTS[tensor.datatype]
    if number == 8:
        return b"".join(field(8, value) for value in tensor.values)
    if number in (6, 7):
        return field(number, tensor.raw)
    return field(number, b"".join(varint(int(value)) for value in tensor.values))


def grpc_request(model: str, tensors: list[Plain], *, typed: bool, id: str = "") -> bytes:
    """ModelInferRequest."""
    message = field(1, model.encode()) + field(3, id.encode())
    for tensor in tensors:
        entry = field(1, tensor.name.encode()) + field(2, tensor.datatype.encode())
        entry += field(3, b"".join(varint(size) for size in tensor.shape))
        if typed:
            entry += field(5, contents(tensor))
        message += field(5, entry)
    if not typed:
        message += b"".join(field(7, tensor.raw) for tensor in tensors)
    return message

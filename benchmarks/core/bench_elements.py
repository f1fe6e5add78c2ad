"""BYTES tensors against a careful Python version and tritonclient's, 1,000 and 100,000 strings."""

import struct
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from ksrv._native.tensor import bytes_tensor

SIZES = {"1k": 1_000, "100k": 100_000}


def strings(count: int) -> Any:
    return [f"element number {i} of the tensor".encode() for i in range(count)]


def decode_in_python(buffer: Any, count: int) -> Any:
    """Decode as a careful author writes it: bound locals, one struct, every length checked."""
    unpack, end, offset = struct.Struct("<I").unpack_from, len(buffer), 0
    found: list[bytes] = []
    append = found.append
    for _ in range(count):
        if end - offset < 4:
            raise ValueError("short")
        (length,) = unpack(buffer, offset)
        offset += 4
        if length > end - offset:
            raise ValueError("long")
        append(buffer[offset : offset + length])
        offset += length
    if offset != end:
        raise ValueError("trailing")
    return found


def encode_in_python(items: Any) -> bytes:
    pack = struct.Struct("<I").pack
    parts: list[bytes] = []
    for item in items:
        raw = item.encode() if isinstance(item, str) else item
        parts += (pack(len(raw)), raw)
    return b"".join(parts)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reader", ["ksrv", "python", "tritonclient"])
def test_decode(benchmark: Any, size: str, reader: Any) -> None:
    items = strings(SIZES[size])
    buffer = encode_in_python(items)
    run = {
        "ksrv": lambda: bytes_tensor.read(buffer, len(items), None, False, "x"),
        "python": lambda: decode_in_python(buffer, len(items)),
        "tritonclient": lambda: deserialize_bytes_tensor(buffer),
    }[reader]
    benchmark.group = f"elements decode {size}"
    assert list(benchmark(run)) == items


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("writer", ["ksrv", "python", "tritonclient"])
def test_encode(benchmark: Any, size: str, writer: Any) -> None:
    items = strings(SIZES[size])
    array = np.array(items, dtype=np.object_)
    run = {
        "ksrv": lambda: bytes_tensor.encode(items),
        "python": lambda: encode_in_python(items),
        "tritonclient": lambda: serialize_byte_tensor(array).item(),
    }[writer]
    benchmark.group = f"elements encode {size}"
    assert benchmark(run) == encode_in_python(items)

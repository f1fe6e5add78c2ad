"""Models and infer bodies that the tests of REST parsing and rendering share."""

import json
from typing import Any

import numpy as np
import pytest

from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol.rest import parse_infer
from ksrv.request import InferRequest

LIMITS = Limits()
ADD = ModelSpec("add", "3", inputs=(TensorSpec("x", "FP32", (-1, 4)),))
IMG = ModelSpec("img", inputs=(TensorSpec("image", "FP32", (-1, 8, 8, 3), ImageSpec()),))
STR = ModelSpec("str", inputs=(TensorSpec("s", "BYTES", (-1,)),))
JPEG = b"\xff\xd8\xff\xe0" + bytes(range(40))
X = np.arange(4, dtype="<f4").reshape(1, 4)


def prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def parse(
    document: Any,
    tail: bytes = b"",
    spec: Any = ADD,
    limits: Any = LIMITS,
    header: bool = True,
    **fields: Any,
) -> InferRequest:
    """Parse `document` (a mapping or raw JSON) followed by `tail`."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = str(len(text)) if header else None
    return parse_infer(text + tail, length, spec, limits, **fields)


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(*args, **kwargs)
    return str(caught.value)


def one(
    name: str = "x",
    shape: Any = (1, 4),
    datatype: str = "FP32",
    size: int | None = None,
    data: Any = None,
    **top: Any,
) -> Any:
    entry: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": datatype}
    if size is not None:
        entry["parameters"] = {"binary_data_size": size}
    if data is not None:
        entry["data"] = data
    return {"inputs": [entry], **top}

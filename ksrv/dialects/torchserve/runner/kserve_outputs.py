"""Turns the JSON answer of the `kservev2` envelope into typed tensors of KServe v2."""

import json
from typing import Any

import numpy as np

from ksrv.errors import HandlerFailed
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE, cast
from ksrv.request import Element, Tensor


def kserve_tensors(answer: Any, model: str) -> list[Tensor]:
    """Return the outputs of one answer.

    Args:
        answer: The envelope's answer to the handler's items.

    Raises:
        HandlerFailed: The answer is not an answer of KServe v2.
    """
    try:
        return [_tensor(output) for output in answer["outputs"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HandlerFailed(
            f"the handler of the model {model} returned no KServe v2 outputs: "
            f"{type(error).__name__}: {error}"
        ) from error


def _tensor(output: dict[str, Any]) -> Tensor:
    name, kind, data = str(output["name"]), output["datatype"], output["data"]
    shape = tuple(int(size) for size in output["shape"])
    if kind == "BYTES":
        return Tensor(name, kind, shape, [_element(value) for value in data])
    if kind not in NAME_BY_DTYPE.values():
        raise ValueError(
            f"the output {name} has the datatype {kind!r}; expected one of KServe v2, such as FP32"
        )
    array = np.asarray(data)
    if not array.size:
        return Tensor(name, kind, shape, np.empty(shape, DTYPES[kind]))
    found = NAME_BY_DTYPE.get(array.dtype)
    if found is None:
        raise ValueError(
            f"the data of the output {name} are not numbers of the datatype {kind}; convert them or name their datatype"
        )
    try:
        numbers = cast(array, found, kind)
    except ValueError as error:
        raise ValueError(f"the data of the output {name}: {error}") from None
    return Tensor(name, kind, shape, numbers.reshape(shape))


def _element(value: Any) -> Element:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()

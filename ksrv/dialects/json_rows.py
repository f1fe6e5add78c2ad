"""Converts the outputs of a model to rows for JSON, for dialects whose answers have rows."""

from typing import Any

import numpy as np

from ksrv.protocol.rest import json_values
from ksrv.request import Array, Tensor


def shaped_values(tensor: Tensor, *, as_base64: bool = False) -> Array:
    """Return a tensor's values as an array of its shape, texts as objects.

    Args:
        as_base64: Whether the client asked for BYTES in base64.

    Raises:
        InvalidRequest: JSON cannot represent the values.
    """
    values = json_values(tensor, as_base64=as_base64)
    if isinstance(values, list):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        values = texts
    return np.asarray(values).reshape(tensor.shape)


def orjson_form(values: Any) -> Any:
    """Return values in a form that orjson writes, which takes no arrays of texts."""
    is_text = isinstance(values, np.ndarray) and values.dtype == object
    return values.tolist() if is_text else values

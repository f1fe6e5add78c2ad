"""Classification answers: the best k classes of an output, as text.

An output asked for with `classification: k` becomes BYTES of shape [rows, k], or [k] when it has one
dimension only; an element reads `value:index` or `value:index:label`, the best first. REST and gRPC
answer with the same.
"""

from collections.abc import Sequence

import numpy as np

from ksrv.errors import InvalidRequest, quote
from ksrv.request import Array, Element, Tensor


def _values(tensor: Tensor) -> Array:
    if isinstance(tensor.data, list):
        raise InvalidRequest(
            f"output {quote(tensor.name)} is BYTES, and a classification needs numbers"
        )
    if tensor.datatype == "BF16":
        # The upper half of an FP32 value.
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)
    return tensor.data


def _best(row: Array, count: int) -> Array:
    """Indices of the largest values, the first of equal ones first; NaN counts as the smallest."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    # Ascending order of the reversed row, read backwards, is descending order that is stable.
    order: Array = row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]
    return order[:count]


def _text(value: object, index: int, labels: Sequence[str] | None) -> bytes:
    number = f"{value:f}" if isinstance(value, float) else str(int(value))  # type: ignore[call-overload]
    if labels is not None and index < len(labels):
        return f"{number}:{index}:{labels[index]}".encode()
    return f"{number}:{index}".encode()


def classify(tensor: Tensor, count: int, labels: Sequence[str] | None = None) -> Tensor:
    """Return the output as its best classes.

    Args:
        tensor: The output; its first dimension is the rows, unless it has one dimension.
        count: The number of classes wanted; fewer are answered when there are fewer.
        labels: The labels by class index, or None.

    Raises:
        InvalidRequest: The output does not hold numbers.
    """
    values = _values(tensor)
    rows = values.reshape(1, -1) if values.ndim < 2 else values.reshape(values.shape[0], -1)
    width = min(count, rows.shape[1])
    found: list[Element] = []
    for row in rows:
        best = _best(row, width)
        found += [
            _text(value, index, labels)
            for value, index in zip(row[best].tolist(), best.tolist(), strict=True)
        ]
    shape = (width,) if values.ndim < 2 else (rows.shape[0], width)
    return Tensor(tensor.name, "BYTES", shape, found, tensor.parameters)

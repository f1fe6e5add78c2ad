"""Softmax and ranking for torch tensors and arrays alike, on whichever device they lie.

The built-in handlers serve torch models and ONNX models with the same lines; torch is not imported
for a model that does not use it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.imported_torch import imported_torch
from ksrv.request import Array


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = imported_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def primary_output(outputs: Any, name: str = "") -> Any:
    """Return the primary output of a model.

    Args:
        outputs: A tensor, an array, a tuple of them, or a mapping.
        name: The entry to take of a mapping that has it.

    Returns:
        One tensor or array: the entry called `name`, else the first.
    """
    if isinstance(outputs, Mapping):
        return outputs[name] if name in outputs else next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def softmax(scores: Any) -> Any:
    """Return probabilities along dimension 1, in float32.

    Args:
        scores: A tensor or an array of at least two dimensions.
    """
    if is_tensor(scores):
        return scores.float().softmax(dim=1)
    shifted = scores.astype(np.float32)
    shifted = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def topk(probabilities: Any, count: int) -> tuple[Array, Array]:
    """Return the largest entries of each row and where they are, in falling order.

    Args:
        probabilities: A tensor or an array of two dimensions.
        count: How many; no more than there are.

    Returns:
        The entries as float32 and their indices as int64.
    """
    if is_tensor(probabilities):
        best, classes = probabilities.topk(count, dim=1)
        return to_array(best), to_array(classes)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(probabilities, order, axis=1), order.astype(np.int64)


def argmax(probabilities: Any) -> tuple[Array, Array]:
    """Return the largest entry along dimension 1 and where it is.

    Args:
        probabilities: A tensor or an array.

    Returns:
        The entries as float32 and their indices as int32.
    """
    if is_tensor(probabilities):
        largest, classes = probabilities.max(dim=1)
        return to_array(largest), to_array(classes.int())
    classes = probabilities.argmax(axis=1)
    largest = np.take_along_axis(probabilities, np.expand_dims(classes, 1), axis=1)[:, 0]
    return largest, classes.astype(np.int32)


def to_array(value: Any) -> Array:
    """Return a tensor's values as an array on the CPU; an array as it is."""
    return value.detach().cpu().numpy() if is_tensor(value) else np.asarray(value)

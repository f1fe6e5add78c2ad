"""Softmax and ranking for torch tensors, on any device, and for arrays.

So the built-in handlers have the same code for torch models and ONNX models. torch is not imported
for a model that does not use it.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ksrv.handlers.context import Context
from ksrv.request import Array
from ksrv.torch_interop import is_tensor

log = logging.getLogger("ksrv.handlers")

_ROUNDING = 1e-2
"""How much a sum of probabilities may differ from 1, in half precision and with thousands of classes."""


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


class Softmax:
    """Turns a model's scores into probabilities, unless `parameters: {softmax: false}` says that they are already.

    Raises:
        ValueError: `softmax` is neither true nor false.
    """

    def __init__(self, context: Context) -> None:
        self._wanted = context.parameters.get("softmax", True)
        if not isinstance(self._wanted, bool):
            raise ValueError(f"parameters.softmax is true or false, not {self._wanted!r}")
        self._model = context.model_name
        self._checked = False

    def __call__(self, scores: Any) -> Any:
        """Return probabilities along dimension 1, in float32.

        Args:
            scores: A tensor or an array of at least two dimensions.
        """
        scores = scores.float() if is_tensor(scores) else scores.astype(np.float32)
        if not self._wanted:
            return scores
        if not self._checked:
            self._checked = True
            if _are_probabilities(scores):
                log.warning(
                    "the outputs of the model %s look like probabilities: no value is below 0, and they add up to 1. "
                    "If the file ends in a softmax, set parameters: {softmax: false}",
                    self._model,
                )
        if is_tensor(scores):
            return scores.softmax(dim=1)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)


def _are_probabilities(scores: Any) -> bool:
    """Tell whether the classes' values look like a softmax: not below 0, with the sum 1."""
    if scores.shape[1] < 2 or 0 in scores.shape or (scores < 0).any():
        return False
    return bool((abs(scores.sum(1) - 1) < _ROUNDING).all())


def topk(probabilities: Any, count: int) -> tuple[Array, Array]:
    """Return the largest entries of each row and their indices, in falling order.

    Args:
        probabilities: A tensor or an array of two dimensions.
        count: How many entries of a row; at most the number of columns.

    Returns:
        The entries as float32 and their indices as int64.
    """
    if is_tensor(probabilities):
        best, classes = probabilities.topk(count, dim=1)
        return to_array(best), to_array(classes)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(probabilities, order, axis=1), order.astype(np.int64)


def argmax(probabilities: Any) -> tuple[Array, Array]:
    """Return the largest entry along dimension 1 and its index.

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

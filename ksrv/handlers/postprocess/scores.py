"""Scores of classes and characters: softmax, sigmoid, ranking and texts, for torch tensors on any device and for arrays.

So steps and built-in handlers have the same code for torch models and ONNX models. torch is not imported for a model
that does not use it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ksrv.model.postprocess import Argmax, Ctc, Sigmoid, Softmax, TopK
from ksrv.request import Array
from ksrv.torch_interop import is_tensor

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


def to_array(value: Any) -> Array:
    """Return a tensor's values as an array on the CPU, bfloat16 as float32; an array as it is."""
    if not is_tensor(value):
        return np.asarray(value)
    value = value.detach()
    found: Array = (value.float() if "bfloat16" in str(value.dtype) else value).cpu().numpy()
    return found


def _floats(named: Mapping[str, Any]) -> Any:
    """Return the only output, a tensor or an array, as float32."""
    [value] = named.values()
    return value.float() if is_tensor(value) else np.asarray(value, np.float32)


def softmax(step: Softmax, named: Mapping[str, Any], _: object = None) -> dict[str, Any]:
    """Return probabilities along the dimension of the classes."""
    scores = _floats(named)
    if is_tensor(scores):
        return {"": scores.softmax(dim=step.axis)}
    shifted = np.exp(scores - scores.max(axis=step.axis, keepdims=True))
    return {"": shifted / shifted.sum(axis=step.axis, keepdims=True)}


def are_probabilities(step: Softmax, scores: Any) -> bool:
    """Tell whether the classes' values look like a softmax: not below 0, with the sum 1."""
    if scores.shape[step.axis] < 2 or 0 in scores.shape or (scores < 0).any():
        return False
    return bool((abs(_floats({"": scores}).sum(step.axis) - 1) < _ROUNDING).all())


def sigmoid(step: Sigmoid, named: Mapping[str, Any], _: object = None) -> dict[str, Any]:
    """Return the probability of each score."""
    scores = _floats(named)
    return {"": scores.sigmoid() if is_tensor(scores) else np.exp(-np.logaddexp(0, -scores))}


def argmax(step: Argmax, named: Mapping[str, Any], _: object = None) -> dict[str, Array]:
    """Return the class with the largest score, and this score."""
    scores = _floats(named)
    if is_tensor(scores):
        largest, classes = scores.max(dim=step.axis)
        return {"class": to_array(classes.int()), "score": to_array(largest)}
    classes = scores.argmax(axis=step.axis).astype(np.int32)
    return {"class": classes, "score": scores.max(axis=step.axis)}


def top_k(step: TopK, named: Mapping[str, Any], _: object = None) -> dict[str, Array]:
    """Return the best classes of each row and their scores, in falling order."""
    scores = _floats(named)
    count = min(step.k, scores.shape[1])
    if is_tensor(scores):
        best, classes = map(to_array, scores.topk(count, dim=1))
        return {"class": classes, "score": best}
    classes = np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int64)
    return {"class": classes, "score": np.take_along_axis(scores, classes, axis=1)}


def labels_of(classes: Array, labels: Sequence[str]) -> Array:
    """Return the label of each class: the number of a class without a label, and "" for -1, which is not a class."""
    named = [
        "" if index < 0 else labels[index] if index < len(labels) else str(index)
        for index in classes.ravel().tolist()
    ]
    return np.array(named, object).reshape(classes.shape)


def ctc(step: Ctc, named: Mapping[str, Any], _: object = None) -> dict[str, Array]:
    """Return the text of each row, and the mean probability of its characters; 0 for an empty text."""
    [probabilities] = map(to_array, named.values())  # [rows, steps, characters + 1]
    blank = step.blank % (len(step.alphabet) + 1)
    symbols = np.array((*step.alphabet[:blank], "", *step.alphabet[blank:]), object)
    best, score = probabilities.argmax(axis=2), probabilities.max(axis=2)
    before = np.roll(best, 1, axis=1)
    before[:, :1] = blank
    kept = (best != blank) & (best != before)
    texts = ["".join(symbols[row[at]]) for row, at in zip(best, kept, strict=True)]
    mean = np.where(kept, score, 0).sum(axis=1) / np.maximum(kept.sum(axis=1), 1)
    return {"text": np.array(texts, object), "score": mean.astype(np.float32)}

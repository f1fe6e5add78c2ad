"""Classify and Regress: examples with features by name become rows, and an output becomes classes or a value.

The output `scores` of a classifier has a score for each class, and `classes` has the names of the classes. If a model
gives its outputs other names, the only output of floats has the scores, and the only output of texts has the names.
Without texts, the labels of model.yaml name the classes, or else their numbers.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from ksrv.dialects.kserve_v1.bodies import read_rows
from ksrv.errors import InvalidRequest
from ksrv.limits import Limits
from ksrv.model.datatypes import FLOATING, widened
from ksrv.model.spec import ModelSpec
from ksrv.protocol.json_data import B64
from ksrv.request import Array, InferResponse, Tensor


def examples_of(message: Any) -> list[dict[str, Any]]:
    """Return the examples of an `Input` message, as JSON would have them."""
    kind = message.WhichOneof("kind")
    if not kind:
        return []
    given = getattr(message, kind)
    context = _features(given.context) if kind == "example_list_with_context" else {}
    return [{**context, **_features(example)} for example in given.examples]


def _features(example: Any) -> dict[str, Any]:
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        texts = kind == "bytes_list"
        found[name] = [{B64: b64encode(one).decode()} for one in values] if texts else values
    return found


def example_inputs(examples: Any, context: Any, spec: ModelSpec, limits: Limits) -> list[Tensor]:
    """Return the inputs for examples. A feature has one value or a list of values.

    Args:
        context: Features of every example.

    Raises:
        InvalidRequest: They are not examples, do not have the same features, or do not fit the inputs.
    """
    objects = [context, *examples] if isinstance(examples, list) and examples else []
    if not objects or not all(isinstance(one, dict) for one in objects):
        raise InvalidRequest(
            "the request has no examples; expected 'examples' with at least one object of features by name, and 'context', "
            "if it is there, as such an object; rows go to :predict"
        )
    single = {one.name for one in spec.inputs if len(one.shape) == 1 or one.takes_files}
    rows = [
        {
            name: values[0] if name in single and values[1:] == [] else values
            for name, value in {**context, **example}.items()
            for values in [value if isinstance(value, list) and value else [value]]
        }
        for example in examples
    ]
    return read_rows(rows, spec, limits)


# ---- results ----------------------------------------------------------------------------------


def _floats(response: InferResponse, name: str, call: str) -> Array:
    """Return the output of floats, with the rows of the request first."""
    found = [tensor for tensor in response.outputs if tensor.datatype in FLOATING]
    found = [tensor for tensor in found if tensor.name == name] or found
    if len(found) != 1 or not found[0].shape:
        shown = (f"{one.name} ({one.datatype} {list(one.shape)})" for one in response.outputs)
        raise InvalidRequest(
            f"the model {response.model_name} has no output that {call} can answer: expected an output {name!r}, or one "
            f"output of floats, and it has {', '.join(shown)}; call predict"
        )
    array: Array = widened(np.asarray(found[0].data), found[0].datatype)
    return array.reshape(found[0].shape[0], -1)


def classifications(
    response: InferResponse, labels: Sequence[str] | None
) -> list[list[tuple[str, float]]]:
    """Return the label and the score of each class, for each example.

    Args:
        labels: The model's labels.

    Raises:
        InvalidRequest: The model has no scores.
    """
    scores = _floats(response, "scores", "classify")
    width = scores.shape[1]
    texts = [tensor.data for tensor in response.outputs if isinstance(tensor.data, list)]
    if len(texts) == 1 and len(texts[0]) == scores.size:
        names = [bytes(text).decode("utf-8", "replace") for text in texts[0]]
    else:
        one_row = labels if labels and len(labels) == width else map(str, range(width))
        names = [*one_row] * len(scores)
    pairs = list(zip(names, scores.ravel().tolist(), strict=True))
    return [pairs[begin : begin + width] for begin in range(0, len(pairs), width)]


def regressions(response: InferResponse) -> list[float]:
    """Return the value of each example.

    Raises:
        InvalidRequest: The model has no output with one value for each example.
    """
    values = _floats(response, "outputs", "regress")
    if values.shape[1] != 1:
        raise InvalidRequest(
            f"the model {response.model_name} answers {values.shape[1]} values for an example, and regress has one; call "
            "predict or classify"
        )
    numbers: list[float] = values[:, 0].tolist()
    return numbers

"""Batch keys of requests with variable row lengths: which requests share batches, and which are refused."""

from dataclasses import replace

import numpy as np
import pytest

from ksrv._native.tensor.padding import LENGTH_KEYS
from ksrv.engine.requests.validation import LARGEST_EMPTY, RequestValidator, buckets_of
from ksrv.errors import InvalidRequest
from ksrv.model.input_rules import with_lengths
from ksrv.model.spec import ModelSpec, Padding, TensorSpec
from ksrv.request import InferRequest, Tensor

IDS = TensorSpec("ids", "INT64", (-1, -1), pad=Padding(multiple=4, mask="mask"))
MASK = TensorSpec("mask", "BOOL", (-1, -1))
SOUND = TensorSpec(
    "sound", "FP32", (-1, -1, 2), lengths=("", "frames", ""), pad=Padding(exact=True)
)
OPEN = TensorSpec("open", "FP32", (-1, -1))


def validator(*inputs, **changes):
    spec = ModelSpec("m", inputs=with_lengths(inputs, ())[0], max_batch_size=8)
    return RequestValidator(replace(spec, **changes))


def request(explain=False, **shapes):
    kinds = {"ids": "INT64", "mask": "BOOL", "sound": "FP32", "open": "FP32"}
    dtypes = {"INT64": np.int64, "BOOL": np.bool_, "FP32": np.float32}
    tensors = [
        Tensor(name, kinds[name], shape, np.zeros(shape, dtypes[kinds[name]]))
        for name, shape in shapes.items()
    ]
    return InferRequest("m", inputs=tensors, explain=explain)


def key(made, **asked):
    return made.validate(request(**asked)).batch_key


def test_key_equals_the_native_servers_bucket():
    made = validator(IDS, MASK)
    buckets = buckets_of(made.spec)["ids"]
    for length in (1, 4, 5, 37, 52, 53, 5000):
        assert key(made, ids=(1, length)) == LENGTH_KEYS + 4 * buckets.bucket(length)
    assert key(made, ids=(2, 37)) == key(made, ids=(1, 52)) != key(made, ids=(1, 53))


def test_given_and_generated_masks_share_a_batch():
    made = validator(IDS, MASK)
    assert key(made, ids=(1, 7), mask=(1, 7)) == key(made, ids=(1, 8))


def test_key_depends_on_the_answer_form():
    made = validator(IDS, MASK)
    asked = request(ids=(1, 8), explain=True)
    asked.stream = object()
    plain = key(made, ids=(1, 8))
    assert key(made, ids=(1, 8), explain=True) == plain + 1
    assert made.validate(asked).batch_key == plain + 3
    asked.explain = False
    assert made.validate(asked).batch_key == plain + 2


def test_rows_without_values_are_bounded():
    """Lengths and masks need memory although the client sent no bytes."""
    made = validator(IDS, MASK, max_batch_size=0)
    assert made.validate(request(ids=(LARGEST_EMPTY, 0))).rows == LARGEST_EMPTY
    assert made.validate(request(ids=(1, LARGEST_EMPTY + 1))).rows == 1
    with pytest.raises(
        InvalidRequest, match=rf"the shape \[{LARGEST_EMPTY + 1}, 0\] and no values"
    ):
        made.validate(request(ids=(LARGEST_EMPTY + 1, 0)))
    assert LARGEST_EMPTY == 65_536


def test_several_lengths_have_separate_buckets():
    made = validator(IDS, MASK, SOUND)
    joined = key(made, ids=(1, 37), sound=(1, 14, 2))
    assert joined == key(made, ids=(1, 52), sound=(1, 18, 2)) < LENGTH_KEYS
    assert joined != key(made, ids=(1, 53), sound=(1, 18, 2))
    assert joined != key(made, ids=(1, 52), sound=(1, 19, 2))


def test_other_free_dimensions_must_be_equal():
    made = validator(IDS, MASK, OPEN)
    assert key(made, ids=(1, 37), open=(1, 3)) == key(made, ids=(1, 52), open=(1, 3))
    assert key(made, ids=(1, 52), open=(1, 3)) != key(made, ids=(1, 52), open=(1, 4))


def test_lengths_are_recorded_and_contradictions_refused():
    made = validator(IDS, MASK, SOUND)
    asked = request(ids=(2, 5), sound=(2, 9, 2))
    made.validate(asked)
    assert asked.lengths == {"ids": 5, "frames": 9}
    with pytest.raises(InvalidRequest, match="'mask' have the length 6, and rows of 'ids' have 5"):
        made.validate(request(ids=(2, 5), mask=(2, 6), sound=(2, 9, 2)))


def test_source_of_a_generated_mask_is_required():
    with pytest.raises(InvalidRequest, match="the input 'ids' is missing"):
        validator(IDS, MASK).validate(request(mask=(1, 3)))
    with pytest.raises(InvalidRequest, match="expects"):
        validator(IDS, MASK).validate(request(ids=(1, 3, 1)))


def test_a_row_is_no_longer_than_its_bounds():
    bounded = TensorSpec("ids", "INT64", (-1, (1, 512)), pad=Padding(multiple=100, exact=True))
    made = validator(bounded)
    assert buckets_of(made.spec)["ids"].padded(511) == 512
    with pytest.raises(InvalidRequest, match=r"expects \[-1, 1:512\]"):
        made.validate(request(ids=(1, 513)))

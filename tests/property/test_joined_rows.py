"""The rows of a batch whose requests Python parsed, compared with numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.memory import buffer_pool
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.batches.padding import RowPadding
from ksrv.engine.instances.host import InstanceHost
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.model.spec import ModelSpec, Padding, TensorSpec
from ksrv.request import InferRequest, Tensor
from tests.support.examples import examples

DATATYPES = {"INT8": "i1", "FP16": "f2", "FP32": "f4", "INT64": "i8"}


def batch_of(inputs, requests):
    spec = ModelSpec("m", inputs=inputs)
    model = InstanceHost.__new__(InstanceHost)
    model.spec, model.images, model.padding, model.queue = spec, {}, RowPadding(spec), None
    batch = RequestBatch(model, buffer_pool.lease)
    for request in requests:
        batch.add([QueuedRequest(request, request.inputs[0].shape[0], 0)])
    return batch


def tensor(name, datatype, data):
    return Tensor(name, datatype, data.shape, data)


def array(shape, dtype, random, strided):
    made = random.integers(0, 100, shape).astype(dtype)
    if not strided:
        return made
    wide = np.repeat(made, 2, axis=-1)
    return wide[..., ::2]


@examples(200)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    inner=st.integers(1, 3),
    datatype=st.sampled_from(sorted(DATATYPES)),
    value=st.sampled_from([0, 7, -1]),
    dropped=st.sets(st.integers(0, 4)),
)
def test_padded_rows_are_joined_as_numpy_does(rows, inner, datatype, value, dropped):
    spec = TensorSpec(
        "x", datatype, (-1, -1, -1, inner), pad=Padding(value=value), lengths=("", "a", "b", "")
    )
    random = np.random.default_rng(1)
    parts = [array((*one[:3], inner), DATATYPES[datatype], random, one[3]) for one in rows]
    requests = [
        InferRequest(
            "m", inputs=[tensor("x", datatype, one)], lengths={"a": one.shape[1], "b": one.shape[2]}
        )
        for one in parts
    ]
    batch = batch_of((spec,), requests)
    kept = [at for at in range(len(parts)) if at not in dropped] or [0]
    batch.keep([batch.handles[at] for at in kept])
    parts = [parts[at] for at in kept]
    largest = tuple(max(part.shape[axis] for part in parts) for axis in (1, 2))
    wanted = np.full((sum(map(len, parts)), *largest, inner), value, DATATYPES[datatype])
    row = 0
    for part in parts:
        wanted[row : row + len(part), : part.shape[1], : part.shape[2]] = part
        row += len(part)
    np.testing.assert_array_equal(batch.inputs().tensors["x"].data, wanted)


@examples(100)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=6),
    datatype=st.sampled_from(sorted(DATATYPES)),
    dropped=st.sets(st.integers(0, 5)),
)
def test_rows_and_elements_are_joined_as_numpy_does(rows, datatype, dropped):
    random = np.random.default_rng(2)
    parts = [array((count, 3), DATATYPES[datatype], random, strided) for count, strided in rows]
    requests = [
        InferRequest(
            "m",
            inputs=[
                Tensor("s", "BYTES", (len(one),), [bytes([at])] * len(one)),
                tensor("x", datatype, one),
            ],
        )
        for at, one in enumerate(parts)
    ]
    specs = (TensorSpec("x", datatype, (-1, 3)), TensorSpec("s", "BYTES", (-1,)))
    batch = batch_of(specs, requests)
    kept = [at for at in range(len(parts)) if at not in dropped] or [0]
    batch.keep([batch.handles[at] for at in kept])
    tensors = batch.inputs().tensors
    assert list(tensors) == ["x", "s"]
    np.testing.assert_array_equal(tensors["x"].data, np.concatenate([parts[at] for at in kept]))
    assert tensors["s"].data == [bytes([at]) for at in kept for _ in range(len(parts[at]))]


def test_a_mask_is_made_for_requests_without_one():
    specs = (
        TensorSpec("x", "FP32", (-1, -1), pad=Padding(), lengths=("", "n")),
        TensorSpec("mask", "FP32", (-1, -1), pad=Padding(), lengths=("", "n"), mask_of="n"),
    )
    sent = np.array([[1, 0]], np.float32)
    requests = [
        InferRequest(
            "m", inputs=[tensor("x", "FP32", np.ones((2, 1), np.float32))], lengths={"n": 1}
        ),
        InferRequest(
            "m",
            inputs=[tensor("x", "FP32", np.ones((1, 2), np.float32)), tensor("mask", "FP32", sent)],
            lengths={"n": 2},
        ),
        InferRequest(
            "m", inputs=[tensor("x", "FP32", np.ones((1, 3), np.float32))], lengths={"n": 3}
        ),
    ]
    mask = batch_of(specs, requests).inputs().tensors["mask"].data
    assert mask.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_rows_without_values_are_joined_at_once():
    """Their other dimensions may be so large that a loop over them would take hours."""
    spec = TensorSpec("x", "FP32", (-1, -1, 0), pad=Padding(), lengths=("", "n", ""))
    requests = [
        InferRequest(
            "m",
            inputs=[tensor("x", "FP32", np.empty((1 << 30, size, 0), np.float32))],
            lengths={"n": size},
        )
        for size in (3, 8)
    ]
    assert batch_of((spec,), requests).inputs().tensors["x"].data.shape == (1 << 31, 8, 0)


@pytest.mark.parametrize(
    "other", [np.zeros((2, 4), np.float32), np.zeros((2, 3)), np.zeros((2, 3, 1), np.float32)]
)
def test_rows_of_another_form_are_not_copied(other):
    """The checks of requests give such rows another batch key."""
    specs = (TensorSpec("x", "FP32", (-1, -1)),)
    requests = [
        InferRequest("m", inputs=[tensor("x", "FP32", one)])
        for one in (np.zeros((2, 3), np.float32), other)
    ]
    with pytest.raises(ValueError, match="do not fit the batch"):
        batch_of(specs, requests)

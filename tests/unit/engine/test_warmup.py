"""Warm-up: every batch size with generated data or samples, before the first request."""

import json

import cv2
import numpy as np
import pytest

from ksrv.engine.instances import warmup_requests as warmup
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from tests.support.engine.engine_models import source


def recorder(batches):
    def run(batch):
        batches.append({name: entry.data for name, entry in batch.tensors.items()})
        return np.zeros((batch.rows, 4), np.float32)

    return run


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, [1]),
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (9, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (40, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 40]),
        (64, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]),
    ],
)
def test_warm_up_sizes_follow_the_maximum(most, expected):
    assert warmup.sizes(ModelSpec("m", max_batch_size=most)) == expected


def test_open_shapes_and_undeclared_inputs_are_not_generated(engine):
    for inputs in ((), (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("x", "BYTES", (-1,)),)):
        batches = []
        served = engine(source(warmup=True, inputs=inputs), run=recorder(batches))
        assert served.ready() and not batches


def test_samples_are_run_at_every_size(engine, tmp_path):
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1] * 8}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    np.save(tmp_path / "b.npy", np.full((1, 4), 2.0))
    batches = []
    files = tuple(str(tmp_path / name) for name in ("a.json", "b.npy"))
    served = engine(source(batch=4, warmup=files), run=recorder(batches))
    assert served.ready(), served.index()
    values = [(len(batch["x"]), batch["x"][0, 0]) for batch in batches]
    assert values == [(2, 1), (4, 1), (1, 2), (2, 2), (3, 2), (4, 2)]


def test_an_image_sample_is_decoded(engine, tmp_path):
    path = tmp_path / "grey.png"
    cv2.imwrite(str(path), np.full((5, 7, 3), 9, np.uint8))
    image = TensorSpec("x", "FP32", (-1, 2, 3, 3), ImageSpec())
    batches = []
    served = engine(source(inputs=(image,), warmup=(str(path),)), run=recorder(batches))
    assert served.ready(), served.index()
    assert batches[0]["x"].shape == (1, 2, 3, 3)
    assert (batches[0]["x"] == 9).all()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"{", "cannot be read"),
        ("a.json", b'{"inputs": []}', "'x' is missing"),
        ("a.npy", b"no array", "cannot be read"),
        ("missing.json", None, "cannot be read"),
    ],
)
def test_a_sample_that_fails_fails_the_load(engine, tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    served = engine(source(warmup=(str(tmp_path / name),)), run=recorder([]))
    assert not served.ready()
    assert reason in served.index()[0].reason
    assert name in served.index()[0].reason

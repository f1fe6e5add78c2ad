"""Classifiers that skl2onnx exports by default: a label and a mapping of probabilities for each row."""

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server

pytest.importorskip("skl2onnx", reason="make test-dialects installs it")
pytest.importorskip("onnxruntime", reason="make test-dialects installs it")

import onnxruntime
import skl2onnx
from sklearn.linear_model import LogisticRegression

ROWS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
CLASSES = {"texts": ["c", "a", "b"], "numbers": [30, 10, 20]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, classes in CLASSES.items():
        model = LogisticRegression().fit(ROWS, np.array(classes)[np.arange(60) % 3])
        exported = skl2onnx.to_onnx(model, ROWS[:1]).SerializeToString()
        (folder / f"{name}.onnx").write_bytes(exported)
    with Server(folder) as running:
        running.folder = folder
        yield running


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_probabilities_are_a_matrix_in_the_order_of_the_classes(server, name, protocol):
    session = onnxruntime.InferenceSession(server.folder / f"{name}.onnx")
    labels, maps = session.run(None, {"X": ROWS})
    with Client(server.url if protocol == "rest" else f"grpc://{server.grpc}") as client:
        answer = client.infer(name, {"X": ROWS})
    got = answer["output_label"]
    assert [one.decode() if isinstance(one, bytes) else one for one in got] == labels.tolist()
    assert [sorted(one) for one in maps] == [sorted(CLASSES[name])] * 60
    expected = np.array([[one[key] for key in sorted(one)] for one in maps], np.float32)
    assert answer["output_probability"].tobytes() == expected.tobytes()
    assert answer["output_probability"].shape == (60, 3)


def test_metadata_declares_the_probabilities(server):
    with Client(server.url) as client:
        outputs = client.metadata("texts")["outputs"]
    assert outputs == [
        {"name": "output_label", "datatype": "BYTES", "shape": [-1]},
        {"name": "output_probability", "datatype": "FP32", "shape": [-1, -1]},
    ]

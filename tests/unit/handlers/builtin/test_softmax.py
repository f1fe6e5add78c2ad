"""The built-in classifiers do not silently apply softmax twice."""

import json
import logging

import numpy as np
import pytest

from ksrv.testing import LoadFailed, load
from tests.support.model_files.onnx_models import write_graph


@pytest.fixture
def folder(tmp_path):
    """A model whose file returns its input, or the softmax of its input, as three scores."""

    def write(op, parameters=""):
        row = ("FP32", ("N", 3))
        write_graph(tmp_path / "m.onnx", [(op, ["x"], ["scores"], {})], {"x": row}, {"scores": row})
        (tmp_path / "model.yaml").write_text(
            "handler: image_classifier\nmodel: m.onnx\n"
            "inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]\n"
            "outputs: [{name: output, datatype: BYTES, shape: [-1]},"
            " {name: probabilities, datatype: FP32, shape: [-1, -1]}]\n" + parameters
        )
        return tmp_path

    return write


SCORES = np.array([[1.0, 2.0, 4.0]], np.float32)
PROBABILITIES = np.exp(SCORES) / np.exp(SCORES).sum()


def test_scores_become_probabilities_without_a_warning(folder, caplog):
    caplog.set_level(logging.WARNING)
    with load(folder("Identity")) as model:
        np.testing.assert_allclose(model.infer({"x": SCORES})["probabilities"], PROBABILITIES, 1e-6)
    assert "softmax" not in caplog.text


def test_softmax_false_answers_the_probabilities_of_the_file(folder, caplog):
    caplog.set_level(logging.WARNING)
    with load(folder("Softmax", "parameters: {softmax: false}\n")) as model:
        answer = model.infer({"x": SCORES})
    np.testing.assert_allclose(answer["probabilities"], PROBABILITIES, 1e-6)
    assert list(json.loads(answer["output"][0])) == ["2", "1", "0"]
    assert "softmax" not in caplog.text


def test_a_file_that_ends_in_a_softmax_is_warned_about_once_as_it_loads(folder, caplog):
    caplog.set_level(logging.WARNING)
    with load(folder("Softmax")) as model:
        assert caplog.text.count("set parameters: {softmax: false}") == 1
        model.infer({"x": SCORES})
    assert caplog.text.count("set parameters: {softmax: false}") == 1


def test_a_softmax_that_is_no_truth_value_is_refused(folder):
    with pytest.raises(LoadFailed, match="softmax is true or false, not 'no'"):
        load(folder("Softmax", "parameters: {softmax: 'no'}\n"))

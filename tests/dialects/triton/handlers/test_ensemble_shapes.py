"""Shapes between the steps of an ensemble and in its answer, faults of its steps, and when it is ready: as in Triton."""

import re

import numpy as np
import pytest
import requests
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_scale
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        found = {names_and_values}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in found.items()])
"""
MODELS = {
    # name: max_batch_size, dims of x, outputs with their dims, the code of the answer
    "makes_scalar": (0, "[ -1 ]", {"y": ("FP32", "[ 1 ]")}, '{"y": np.array(x.sum(), np.float32)}'),
    "makes_boxes": (
        0,
        "[ -1 ]",
        {"y": ("FP32", "[ 6 ]")},
        '{"y": np.full((2, 6), x.sum(), np.float32)}',
    ),
    "makes_rows": (
        8,
        "[ -1 ]",
        {"y": ("FP32", "[ 3 ]")},
        '{"y": np.full((2, 3), x.sum(), np.float32)}',
    ),
    "makes_doubles": (0, "[ -1 ]", {"y": ("FP32", "[ -1 ]")}, '{"y": np.full(2, 1e300)}'),
    "leaves_out": (
        0,
        "[ -1 ]",
        {"y": ("FP32", "[ -1 ]"), "z": ("FP32", "[ -1 ]")},
        '{"y": x}',
    ),
    "batches": (8, "[ -1 ]", {"y": ("FP32", "[ -1 ]")}, '{"y": x * len(x.shape)}'),
    "single": (0, "[ -1 ]", {"y": ("FP32", "[ -1 ]")}, '{"y": x * len(x.shape)}'),
    "takes_rows_whole": (0, "[ -1, -1 ]", {"y": ("FP32", "[ -1, -1 ]")}, '{"y": x * len(x.shape)}'),
    "takes_four": (0, "[ 4 ]", {"y": ("FP32", "[ 4 ]")}, '{"y": x}'),
}
ENSEMBLES = {
    # name: max_batch_size, dims of the input, dims of the output, steps
    "scalar": (0, "[ -1 ]", "[ 1 ]", ["makes_scalar"]),
    "boxes": (0, "[ -1 ]", "[ 6 ]", ["makes_boxes"]),
    "rows": (8, "[ -1 ]", "[ 3 ]", ["makes_rows"]),
    "doubles": (0, "[ -1 ]", "[ -1 ]", ["makes_doubles"]),
    "batches_of_single": (0, "[ -1 ]", "[ -1 ]", ["single", "batches", "single"]),
    "single_of_batches": (8, "[ -1 ]", "[ -1 ]", ["batches", "single", "batches"]),
    "whole_of_batches": (8, "[ -1 ]", "[ -1 ]", ["batches", "takes_rows_whole"]),
    "four_of_any": (0, "[ -1 ]", "[ 4 ]", ["single", "takes_four"]),
    "four_at_once": (0, "[ -1 ]", "[ 4 ]", ["takes_four"]),
}
LEFT_OUT = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "first" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "second" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step [ { model_name: "leaves_out" model_version: -1
  input_map { key: "x" value: "x" }
  output_map { key: "y" value: "first" } output_map { key: "z" value: "second" } } ] }
"""
READS_LEFT_OUT = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step [
  { model_name: "leaves_out" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "z" value: "missing" } },
  { model_name: "single" model_version: -1
    input_map { key: "x" value: "missing" } output_map { key: "y" value: "y" } } ] }
"""


def config_of(head, size, x, outputs):
    tensors = [f'input {{ name: "x" data_type: TYPE_FP32 dims: {x} }}']
    tensors += [
        f'output {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }}'
        for name, (datatype, dims) in outputs.items()
    ]
    return f"{head}\nmax_batch_size: {size}\n" + "\n".join(tensors)


def write_ensemble(root, name, size, x, y, models):
    steps = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{"x" if not at else f"t{at}"}" }} '
        f'output_map {{ key: "y" value: "{"y" if at == len(models) - 1 else f"t{at + 1}"}" }} }}'
        for at, model in enumerate(models)
    ]
    config = config_of('platform: "ensemble"', size, x, {"y": ("FP32", y)})
    write_folder(root, name, f"{config}\nensemble_scheduling {{ step [ {', '.join(steps)} ] }}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("ensembles")
    for name, (size, x, outputs, answer) in MODELS.items():
        folder = write_folder(root, name, config_of('backend: "python"', size, x, outputs))
        (folder / "1/model.py").write_text(PYTHON.replace("{names_and_values}", answer))
    for name, (size, x, y, models) in ENSEMBLES.items():
        write_ensemble(root, name, size, x, y, models)
    write_folder(root, "left_out", LEFT_OUT)
    write_folder(root, "reads_left_out", READS_LEFT_OUT)
    with Server(root, start_timeout=240) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("scalar", np.array(6, np.float32)),
        ("boxes", np.full((2, 6), 6, np.float32)),
        ("doubles", np.full(2, 1e300)),
    ],
)
def test_the_answer_has_the_shape_and_the_datatype_of_the_step(server, model, wanted):
    answer = infer(tritonclient.grpc, server, model, {"x": np.array([1, 2, 3], np.float32)})
    found = answer.as_numpy("y")
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


def test_the_answer_may_have_more_rows_than_the_request(server):
    answer = infer(tritonclient.grpc, server, "rows", {"x": np.array([[1, 2, 3]], np.float32)})
    assert answer.as_numpy("y").tolist() == [[6] * 3] * 2


@pytest.mark.parametrize(
    ("model", "x", "wanted"),
    [
        # `batches` sees [1, 3], and multiplies by 2; `single` sees [3] before and after it
        ("batches_of_single", [1, 2, 3], [2, 4, 6]),
        # `batches` sees [1, 3], `single` sees [3]
        ("single_of_batches", [[1, 2, 3]], [[4, 8, 12]]),
        # two rows that a model without batches takes as one tensor keep the dimension
        ("whole_of_batches", [[1, 2], [3, 4]], [[4, 8], [12, 16]]),
    ],
)
def test_the_batch_dimension_is_added_and_taken_between_steps(server, model, x, wanted):
    answer = infer(tritonclient.grpc, server, model, {"x": np.array(x, np.float32)})
    assert answer.as_numpy("y").tolist() == wanted


def test_an_output_that_a_step_leaves_out_is_left_out_of_the_answer(server):
    answer = infer(tritonclient.grpc, server, "left_out", {"x": np.array([1, 2], np.float32)})
    assert answer.as_numpy("first").tolist() == [1, 2]
    assert answer.as_numpy("second") is None


@pytest.mark.parametrize(
    ("model", "x", "status", "words"),
    [
        ("four_of_any", [1, 2, 3], 500, "step takes_four refused tensors of the steps before"),
        ("reads_left_out", [1, 2, 3], 500, "step single refused tensors of the steps before"),
        ("four_at_once", [1, 2, 3], 400, "takes_four"),
        ("four_of_any", [1, 2, 3, 4], 200, ""),
    ],
)
def test_a_step_that_refuses_tensors_of_another_step_is_no_fault_of_the_client(
    server, model, x, status, words
):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(x)], "data": x}]}
    answer = requests.post(f"{server.url}/v2/models/{model}/infer", json=body)
    assert (answer.status_code, words in answer.text) == (status, True)
    grpc = tritonclient.grpc
    if status != 200:
        with pytest.raises(InferenceServerException) as caught:
            infer(grpc, server, model, {"x": np.array(x, np.float32)})
        wanted = "INVALID_ARGUMENT" if status == 400 else "INTERNAL"
        assert caught.value.status() == f"StatusCode.{wanted}"


SCALE = """
platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
SLOW_LOAD = """
import time
from pathlib import Path
from ksrv import BaseHandler

class Slow(BaseHandler):
    def initialize(self, context):
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.01)

    def inference(self, x):
        return {"y": x}
"""


def test_an_ensemble_is_ready_while_its_steps_are(tmp_path):
    write_scale(write_folder(tmp_path, "scale", SCALE) / "1/model.onnx", 2)
    slow = write_model(tmp_path, "slow", SLOW_LOAD, f"{VECTOR}executor: process\n")
    write_ensemble(tmp_path, "inner", 8, "[ 4 ]", "[ 4 ]", ["scale", "slow"])
    write_ensemble(tmp_path, "outer", 8, "[ 4 ]", "[ 4 ]", ["inner"])
    with Server(tmp_path, wait_ready=False) as server:

        def asked(path):
            answer = requests.get(f"{server.url}/v2/{path}/ready")
            return answer.status_code == 200, answer.text

        def is_ready(model):
            return asked(f"models/{model}")

        def states():
            lines = requests.post(f"{server.url}/v2/repository/index").json()
            return [line["state"] for line in lines if line["name"] in ("inner", "outer")]

        def metrics():
            return requests.get(f"{server.url}/metrics").text

        def server_is_ready():
            return asked("health")

        wait_until(lambda: is_ready("scale")[0])
        for model in ("inner", "outer"):
            wait_until(lambda model=model: "slow" in is_ready(model)[1])
            assert not is_ready(model)[0]
        assert states() == ["UNAVAILABLE", "UNAVAILABLE"]
        (slow / "go").touch()
        wait_until(lambda: is_ready("slow")[0])
        assert is_ready("inner")[0] and is_ready("outer")[0]
        wait_until(lambda: server_is_ready()[0])
        repository = f"{server.url}/v2/repository/models/scale"
        requests.post(f"{repository}/unload").raise_for_status()
        for model in ("inner", "outer"):
            assert not is_ready(model)[0] and "calls the model scale" in is_ready(model)[1]
            shown = re.search(rf'ksrv_model_ready{{model="{model}".*}} (.*)', metrics())
            assert shown and shown[1] == "0.0"
            answer = requests.post(
                f"{server.url}/v2/models/{model}/infer",
                json={
                    "inputs": [
                        {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
                    ]
                },
            )
            assert (answer.status_code, "scale" in answer.text) == (503, True), answer.text
        ready, why = server_is_ready()
        assert states() == ["UNAVAILABLE", "UNAVAILABLE"] and not ready
        assert "the model inner is not ready: it calls the model scale" in why
        requests.post(f"{repository}/load").raise_for_status()
        assert is_ready("inner")[0] and is_ready("outer")[0] and server_is_ready()[0]
        assert states() == ["READY", "READY"]

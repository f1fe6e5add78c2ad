"""Ensembles of a Triton repository: steps of several models, by composition."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_add_sub, write_graph, write_scale
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.models import ECHO, VECTOR, write_model

SCALE = """
platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
dynamic_batching {}
"""
ADD_SUB = """
backend: "onnxruntime" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
input { name: "INPUT1" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: 4 }
"""
DIAMOND = """
name: "diamond"
platform: "ensemble"
max_batch_size: 6
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "THREEFOLD" data_type: TYPE_FP32 dims: [ 4 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "add_sub" model_version: -1
      input_map { key: "INPUT0" value: "twofold" } input_map { key: "INPUT1" value: "THREEFOLD" }
      output_map { key: "OUTPUT0" value: "SUM" }
    },
    { model_name: "by_two" model_version: 1
      input_map { key: "x" value: "IN" } output_map { key: "y" value: "twofold" } },
    { model_name: "by_three" model_version: -1
      input_map { key: "x" value: "IN" } output_map { key: "y" value: "THREEFOLD" } }
  ]
}
"""
CHOOSY = """
def inference(x, batch):
    for row, values in enumerate(x):
        if values[0] < 0:
            batch.fail(row, "a row below zero", 422)
    return {"y": x}
"""
GUARDED = """
platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "choosy" input_map { key: "x" value: "x" } output_map { key: "y" value: "kept" } }
  step { model_name: "by_two" input_map { key: "x" value: "kept" } output_map { key: "y" value: "y" } }
}
"""
TEXTS = """
platform: "ensemble"
input { name: "text" data_type: TYPE_STRING dims: -1 }
output { name: "again" data_type: TYPE_STRING dims: -1 }
ensemble_scheduling {
  step { model_name: "same" input_map { key: "s" value: "text" } output_map { key: "t" value: "again" } }
}
"""

BITS = """
platform: "ensemble" max_batch_size: 4
input { name: "x" data_type: TYPE_BF16 dims: 2 } output { name: "y" data_type: TYPE_BF16 dims: 2 }
output { name: "x_again" data_type: TYPE_BF16 dims: 2 }
ensemble_scheduling {
  step { model_name: "bits" input_map { key: "x" value: "x" } output_map { key: "y" value: "middle" } }
  step { model_name: "bits" input_map { key: "x" value: "middle" } output_map { key: "y" value: "y" } }
  step { model_name: "bits" input_map { key: "x" value: "x" } output_map { key: "y" value: "x_again" } }
}
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("ensembles")
    for name, factor in (("by_two", 2), ("by_three", 3)):
        write_scale(write_folder(root, name, SCALE) / "1/model.onnx", factor)
    write_add_sub(write_folder(root, "add_sub", ADD_SUB) / "1/model.onnx")
    write_folder(root, "diamond", DIAMOND)
    write_folder(root, "guarded", GUARDED)
    write_folder(root, "texts", TEXTS)
    same = write_folder(
        root,
        "same",
        'input { name: "s" data_type: TYPE_STRING dims: -1 }'
        'output { name: "t" data_type: TYPE_STRING dims: -1 }',
    )
    write_graph(
        same / "1/model.onnx",
        [("Identity", ["s"], ["t"], {})],
        {"s": ("BYTES", ("N",))},
        {"t": ("BYTES", ("N",))},
    )
    yaml = f"{VECTOR}batching: {{max_batch_size: 8}}\nexecutor: {request.param}\n"
    write_model(root, "choosy", CHOOSY, yaml)
    bits = yaml.replace("FP32", "BF16").replace("-1, 4", "-1, 2")
    write_model(root, "bits", ECHO, bits)
    write_folder(root, "bits_twice", BITS)
    with Server(root) as running:
        yield running


def test_steps_run_in_the_order_of_their_tensors(server):
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    answer = infer(tritonclient.grpc, server, "diamond", {"IN": x})
    np.testing.assert_array_equal(answer.as_numpy("THREEFOLD"), x * 3)
    np.testing.assert_array_equal(answer.as_numpy("SUM"), x * 2 + x * 3)


def test_only_wanted_outputs_are_answered(server):
    wanted = [tritonclient.grpc.InferRequestedOutput("SUM")]
    answer = infer(
        tritonclient.grpc, server, "diamond", {"IN": np.ones((1, 4), np.float32)}, wanted
    )
    assert answer.as_numpy("SUM").tolist() == [[5] * 4] and answer.as_numpy("THREEFOLD") is None


def test_more_rows_than_the_ensemble_takes_are_refused(server):
    with pytest.raises(InferenceServerException, match=r"7 rows.*max_batch_size.*6"):
        infer(tritonclient.grpc, server, "diamond", {"IN": np.ones((7, 4), np.float32)})


def test_bfloat16_stays_what_it_is(server):
    values = np.array([[0.5, -3e38]], ml_dtypes.bfloat16)
    tensor = tritonclient.grpc.InferInput("x", [1, 2], "BF16")
    tensor.set_data_from_numpy(values)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        answer = client.infer("bits_twice", [tensor])
    for name in ("y", "x_again"):
        assert (
            answer.as_numpy(name).astype(np.float32).tolist() == values.astype(np.float32).tolist()
        )


def test_texts_pass_through_models_without_batches(server):
    text = np.array([b"one", "zwölf".encode(), b""], object)
    answer = infer(tritonclient.grpc, server, "texts", {"text": text})
    assert answer.as_numpy("again").tolist() == text.tolist()


def test_a_row_that_fails_in_a_step_fails_its_own_request(server):
    def call(number):
        sign = -1 if number % 4 == 0 else 1
        x = [sign * number] * 4 if number else [-1] * 4
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x}]}
        answer = requests.post(f"{server.url}/v2/models/guarded/infer", json=body)
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(24) as pool:
        outcomes = list(pool.map(call, range(24)))
    for number, (status, answer) in enumerate(outcomes):
        if number % 4 == 0:
            assert (status, answer["error"]) == (422, "a row below zero")
        else:
            assert status == 200 and answer["outputs"][0]["data"] == [2 * number] * 4


def test_models_of_an_ensemble_join_its_requests_in_statistics(server):
    before = requests.get(f"{server.url}/v2/models/by_three/stats").json()["model_stats"][0]
    infer(tritonclient.http, server, "diamond", {"IN": np.ones((3, 4), np.float32)})
    after = requests.get(f"{server.url}/v2/models/by_three/stats").json()["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 3


SLOW = """
import time

def inference(x):
    if x[0, 0] == 1:
        time.sleep(0.6)
    return {"y": x}
"""


@pytest.mark.parametrize("quick", [0, 1200], ids=["at first", "after many quick runs"])
def test_steps_behind_a_deadline_are_not_run(tmp_path, quick):
    write_model(tmp_path, "slow", SLOW, f"{VECTOR}batching: {{max_batch_size: 8}}\nwarmup: false\n")
    write_scale(write_folder(tmp_path, "by_two", SCALE) / "1/model.onnx", 2)
    write_folder(tmp_path, "late", GUARDED.replace("choosy", "slow"))
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}
    with Server(tmp_path) as running, requests.Session() as session:
        for _ in range(quick):
            session.post(f"{running.url}/v2/models/late/infer", json={"inputs": [tensor]})
        before = requests.get(f"{running.url}/v2/models/by_two/stats").json()["model_stats"][0]
        tensor["data"] = [1, 2, 3, 4]
        body = {"inputs": [tensor], "parameters": {"timeout": 100_000}}
        answer = requests.post(f"{running.url}/v2/models/late/infer", json=body)
        assert answer.status_code == 504, answer.text
        body.pop("parameters")
        answer = requests.post(f"{running.url}/v2/models/late/infer", json=body)
        assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]
        after = requests.get(f"{running.url}/v2/models/by_two/stats").json()["model_stats"][0]
        assert after["inference_count"] == before["inference_count"] + 1

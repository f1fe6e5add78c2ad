"""`batching: off`: requests have no rows, and shapes are whole, as in a model of Triton's without max_batch_size."""

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_graph
from tests.support.model_files.triton_repository import infer
from tests.support.models import write_model

SUM = """
def inference(x, y):
    return {"sum": x.sum(keepdims=True), "all": (y * 2).tolist()}
"""
DECLARED = """
inputs: [{name: x, datatype: FP32, shape: [-1]}, {name: y, datatype: INT64, shape: [-1, 2]}]
outputs: [{name: sum, datatype: FP32, shape: [1]}, {name: all, datatype: INT64, shape: [-1, 2]}]
batching: off
"""
HINTED = """
from ksrv import Float32, settings


@settings(batching=False)
def inference(x: Float32[-1, 3]) -> Float32[3]:
    return x.sum(0)
"""
REPEATED = """
def inference(values, times):
    for value in values:
        for _ in range(int(times)):
            yield {"value": value.reshape(1)}
"""
REPEATS = """
inputs: [{name: values, datatype: INT32, shape: [-1]}, {name: times, datatype: UINT32, shape: []}]
outputs: [{name: value, datatype: INT32, shape: [1]}]
batching: "off"
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    executor = f"executor: {request.param}\n"
    write_model(root, "declared", SUM, DECLARED + executor)
    write_model(
        root, "undeclared", "def inference(x): return x[:1]\n", "batching: off\n" + executor
    )
    write_model(root, "repeats", REPEATED, REPEATS + executor)
    (root / "file").mkdir()
    write_graph(
        root / "file/model.onnx",
        [("ReduceMean", ["x"], ["mean"], {"axes": [0], "keepdims": 0})],
        {"x": ("FP32", ("N", 3))},
        {"mean": ("FP32", (3,))},
    )
    (root / "file/model.yaml").write_text("model: model.onnx\nbatching: off\n" + executor)
    with Server(root) as running:
        yield running


both = pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])


@both
@pytest.mark.parametrize(("sizes", "rows"), [((3,), 2), ((1,), 4), ((7,), 1)])
def test_inputs_and_outputs_may_have_different_sizes(module, server, sizes, rows):
    x = np.arange(sizes[0], dtype=np.float32)
    y = np.arange(rows * 2).reshape(rows, 2)
    answer = infer(module, server, "declared", {"x": x, "y": y})
    assert answer.as_numpy("sum").tolist() == [x.sum()]
    assert answer.as_numpy("all").tolist() == (y * 2).tolist()


@both
def test_undeclared_inputs_reach_the_handler(module, server):
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    answer = infer(module, server, "undeclared", {"x": x})
    [name] = [one["name"] for one in outputs(answer)]
    assert answer.as_numpy(name).tolist() == [[1, 2]]


def outputs(answer):
    found = answer.get_response()
    return (
        found["outputs"]
        if isinstance(found, dict)
        else [{"name": one.name} for one in found.outputs]
    )


@both
def test_sizes_of_a_model_file(module, server):
    x = np.float32([[1, 2, 3], [3, 4, 5]])
    assert infer(module, server, "file", {"x": x}).as_numpy("mean").tolist() == [2, 3, 4]


def test_metadata_and_configuration_show_whole_shapes(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    metadata = client.get_model_metadata("declared")
    assert [one["shape"] for one in metadata["inputs"]] == [[-1], [-1, 2]]
    config = client.get_model_config("declared")
    assert config["max_batch_size"] == 0
    assert [one["dims"] for one in config["input"]] == [[-1], [-1, 2]]


@both
def test_shapes_that_do_not_fit_are_refused(module, server):
    with pytest.raises(InferenceServerException, match=r"'y' has the shape \[2, 3\]"):
        infer(module, server, "declared", {"x": np.float32([1]), "y": np.zeros((2, 3), np.int64)})


def test_a_stream_of_whole_tensors(server):
    found = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        values = tritonclient.grpc.InferInput("values", [3], "INT32")
        values.set_data_from_numpy(np.int32([4, 5, 6]))
        times = tritonclient.grpc.InferInput("times", [], "UINT32")
        times.set_data_from_numpy(np.array(2, np.uint32))
        client.start_stream(
            lambda result, error: found.append(error or result.as_numpy("value").tolist())
        )
        client.async_stream_infer("repeats", [values, times])
        client.stop_stream()
    assert found == [[4], [4], [5], [5], [6], [6]]


def test_sizes_of_hints_are_whole(tmp_path):
    (tmp_path / "hinted.py").write_text(HINTED)
    with Server(f"{tmp_path}/hinted.py:inference") as server:
        document = requests.get(f"{server.url}/v2/models/inference", timeout=10).json()
        assert [one["shape"] for one in document["inputs"]] == [[-1, 3]]
        assert [one["shape"] for one in document["outputs"]] == [[3]]
        body = {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
            ]
        }
        answer = requests.post(f"{server.url}/v2/models/inference/infer", json=body, timeout=10)
        assert answer.json()["outputs"][0]["data"] == [5, 7, 9]

"""The answers that perf_analyzer reads, and NaN in JSON."""

import numpy as np
import orjson
import pytest
import requests
import tritonclient.http

from ksrv.testing import Server
from tests.support.models import write_double, write_echo, write_mean, write_model

BATCHED = 'def inference(x, image): return {"y": x + image.mean()}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("dialects")
    for write in (write_double, write_echo, write_mean):
        write(root)
    write_model(
        root,
        "batched",
        BATCHED,
        "inputs:\n"
        "  - {name: x, datatype: FP32, shape: [-1, 4]}\n"
        "  - {name: image, datatype: UINT8, shape: [-1, 8, 8, 3]}\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]\n"
        "batching: {max_batch_size: 8}\n"
        "parameters: {threshold: 0.5, name: cats}\n",
    )
    with Server(root, nan_literals=True) as running:
        yield running


@pytest.mark.parametrize("model", ["double", "batched"])
def test_perf_analyzers_metadata_calls_are_answered(server, model):
    """Its calls over HTTP in their order, and every member that it takes without looking first."""

    def get(path):
        answer = requests.get(server.url + path, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()

    extensions = get("/v2")["extensions"]
    assert type(extensions) is list and all(type(name) is str for name in extensions)
    metadata = get(f"/v2/models/{model}")
    config = get(f"/v2/models/{model}/config")
    limit = config["max_batch_size"]
    assert type(limit) is int and limit == (8 if model == "batched" else 0)
    assert ("dynamic_batching" in config) == (limit > 0)
    assert not {"sequence_batching", "ensemble_scheduling", "response_cache"} & config.keys()
    assert config["model_transaction_policy"]["decoupled"] is False
    assert config["name"] == metadata["name"] == model and config["platform"]
    for kind, declared in (("inputs", "input"), ("outputs", "output")):
        configured = {entry["name"]: entry for entry in config[declared]}
        assert len(configured) == len(metadata[kind]) > 0
        for tensor in metadata[kind]:
            entry = configured[tensor["name"]]
            assert entry["data_type"] == "TYPE_" + tensor["datatype"]
            assert all(type(size) is int for size in [*tensor["shape"], *entry["dims"]])
            # If the model batches, metadata has the batch dimension in front and the configuration has not.
            assert entry["dims"] == (tensor["shape"][1:] if limit else tensor["shape"])
            assert not entry.get("is_shape_tensor") and not entry.get("optional")
    statistics(get, model)


def statistics(get, model):
    assert "statistics" in get("/v2")["extensions"]
    (found,) = get(f"/v2/models/{model}/stats")["model_stats"]
    assert found["name"] == model and type(found["version"]) is str
    for name in ("inference_count", "execution_count", "last_inference"):
        assert type(found[name]) is int
    for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
                 "cache_hit", "cache_miss"):  # fmt: skip
        duration = found["inference_stats"][name]
        assert type(duration["count"]) is int and type(duration["ns"]) is int
    assert any(entry["name"] == model for entry in get("/v2/models/stats")["model_stats"])


def test_the_configuration_carries_the_models_parameters(server):
    config = requests.get(f"{server.url}/v2/models/batched/config", timeout=10).json()
    assert config["parameters"] == {
        "threshold": {"string_value": "0.5"},
        "name": {"string_value": "cats"},
    }
    assert config["input"][1]["format"] == "FORMAT_NHWC"


def test_nan_literals_are_sent_if_requested(server, tmp_path):
    values = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    body = '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[NaN,Infinity,-Infinity,1.5]}]}'
    url = f"{server.url}/v2/models/echo/infer"
    answer = requests.post(url, data=body, timeout=10)
    assert b"[NaN,Infinity,-Infinity,1.5]" in answer.content
    with tritonclient.http.InferenceServerClient(server.http) as client:
        tensor = tritonclient.http.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(values, binary_data=False)
        wanted = tritonclient.http.InferRequestedOutput("y", binary_data=False)
        got = client.infer("echo", [tensor], outputs=[wanted]).as_numpy("y")
    np.testing.assert_array_equal(got, values)
    write_echo(tmp_path)
    with Server(tmp_path) as plain:
        answer = requests.post(f"{plain.url}/v2/models/echo/infer", data=body, timeout=10)
        assert orjson.loads(answer.content)["outputs"][0]["data"] == [None, None, None, 1.5]
        with tritonclient.http.InferenceServerClient(plain.http) as client:
            got = client.infer("echo", [tensor], outputs=[wanted]).as_numpy("y")
    assert np.isnan(got[0, :3]).all() and got[0, 3] == 1.5

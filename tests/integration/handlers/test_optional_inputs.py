"""Inputs that a request may leave out: the handler gets None, over every protocol and in both executors."""

import threading

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc

from ksrv.client import Client
from ksrv.testing import Server

HANDLER = """
from ksrv import BaseHandler, Bytes, Float32


class Scale(BaseHandler):
    def inference(self, x: Float32[2], k: Float32[1] | None = None) -> Float32[2]:
        return x if k is None else x * k


class Own(BaseHandler):
    def preprocess(self, batch):
        assert ("k" in batch) == (batch["k"] is not None)
        return {"x": batch["x"], "k": batch["k"]}

    def inference(self, x, k):
        return x if k is None else x * k


def join(text: Bytes, more: Bytes | None = None) -> Bytes:
    return [one + (b"" if more is None else more[row]) for row, one in enumerate(text)]


def pick(a: Float32[1] | None, b: Float32[1] | None) -> Float32[1]:
    return b if a is None else a
"""
YAML = {
    "scale": "handler: ../handlers.py:Scale\nbatching: {max_batch_size: 8, max_delay_ms: 200}\n",
    "aside": "handler: ../handlers.py:Scale\nexecutor: process\n",
    "own": (
        "handler: ../handlers.py:Own\ninputs: [{name: x, datatype: FP32, shape: [-1, 2]}, "
        "{name: k, datatype: FP32, shape: [-1, 1], optional: true}]\n"
    ),
    "join": "handler: ../handlers.py:join\n",
    "pick": "handler: ../handlers.py:pick\n",
}
X = np.array([[1, 2]], np.float32)
K = np.array([[3]], np.float32)
NUMBERS = ["scale", "aside", "own"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("optional")
    for name, yaml in YAML.items():
        (root / name).mkdir()
        (root / name / "handler.py").write_text(HANDLER)
        (root / name / "model.yaml").write_text(yaml.replace("../handlers.py", "handler.py"))
    with Server(root, start_timeout=120) as server:
        yield server


def given(k):
    return {"x": X} if k is None else {"x": X, "k": k}


def entry(name, array):
    return {
        "name": name,
        "datatype": "FP32",
        "shape": array.shape,
        "data": array.ravel().tolist(),
    }


def over_json(server, model, inputs):
    body = {"inputs": [entry(name, array) for name, array in inputs.items()]}
    answer = requests.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=30).json()
    return answer["outputs"][0]["data"]


def over_binary(server, model, inputs):
    with Client(server.url) as client:
        (output,) = client.infer(model, inputs).values()
    return output.ravel().tolist()


def over_grpc(server, model, inputs):
    asked = []
    for name, array in inputs.items():
        asked.append(triton_grpc.InferInput(name, array.shape, "FP32"))
        asked[-1].set_data_from_numpy(array)
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        return client.infer(model, asked).as_numpy("output").ravel().tolist()


def over_v1(server, model, inputs):
    row = {name: array[0].tolist() for name, array in inputs.items()}
    url = f"{server.url}/v1/models/{model}:predict"
    answer = requests.post(url, json={"instances": [row]}, timeout=30).json()
    return answer["predictions"][0]


def over_plain_json(server, model, inputs):
    body = {name: array[0].tolist() for name, array in inputs.items()}
    url = f"{server.url}/v2/models/{model}/generate"
    answer = requests.post(url, json=body, timeout=30).json()
    return np.ravel(answer["output"]).tolist()


WAYS = [over_json, over_binary, over_grpc, over_v1, over_plain_json]


@pytest.mark.parametrize("model", NUMBERS)
@pytest.mark.parametrize("way", WAYS)
def test_an_absent_input_is_none(server, way, model):
    assert way(server, model, given(None)) == [1.0, 2.0]
    assert way(server, model, given(K)) == [3.0, 6.0]


def test_null_is_absent_in_plain_json_and_v1(server):
    body = {"x": [1, 2], "k": None}
    answer = requests.post(f"{server.url}/v2/models/scale/generate", json=body, timeout=30)
    assert answer.json()["output"] == [1.0, 2.0]
    url = f"{server.url}/v1/models/scale:predict"
    answer = requests.post(url, json={"instances": [body, body]}, timeout=30)
    assert answer.json()["predictions"] == [[1.0, 2.0], [1.0, 2.0]]
    assert requests.post(url, json={"instances": [[1, 2]]}, timeout=30).json()["predictions"] == [
        [1.0, 2.0]
    ]


def test_a_form_and_a_bare_body(server):
    url = f"{server.url}/v2/models/join/infer"
    alone = requests.post(url, files={"text": b"a"}, timeout=30).json()
    both = requests.post(url, files={"text": b"a", "more": b"b"}, timeout=30).json()
    assert [one["outputs"][0]["data"] for one in (alone, both)] == [["a"], ["ab"]]
    bare = requests.post(
        f"{server.url}/v2/models/scale/infer",
        data=X.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
        timeout=30,
    )
    assert bare.content.endswith(X.tobytes()) or bare.json()["outputs"][0]["data"] == [1.0, 2.0]


def test_each_of_several_may_be_absent(server):
    with Client(server.url) as client:
        assert client.infer("pick", {"b": K})["output"].tolist() == [[3.0]]
        assert client.infer("pick", {"a": K, "b": K * 2})["output"].tolist() == [[3.0]]


def test_requests_with_and_without_it_are_answered_side_by_side(server):
    answers = {}
    start = threading.Barrier(8)

    def ask(number):
        k = None if number % 2 else np.full((1, 1), number, np.float32)
        with Client(server.url) as client:
            start.wait(60)
            answers[number] = client.infer("scale", given(k))["output"].tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert answers == {
        number: [[1.0, 2.0]] if number % 2 else [[1.0 * number, 2.0 * number]]
        for number in range(8)
    }


def test_an_absent_input_that_is_needed_is_named(server):
    body = {"inputs": [entry("k", K)]}
    answer = requests.post(f"{server.url}/v2/models/scale/infer", json=body, timeout=30)
    assert answer.status_code == 400
    assert "the input 'x' is missing" in answer.json()["error"]


def test_metadata_configuration_and_openapi_say_which_are_optional(server):
    url = f"{server.url}/v2/models/scale"
    assert requests.get(url, timeout=30).json()["properties"]["k.optional"] == "true"
    inputs = requests.get(f"{url}/config", timeout=30).json()["input"]
    assert [one["optional"] for one in inputs] == [False, True]
    client = triton_grpc.InferenceServerClient(server.grpc)
    config = client.get_model_config("scale").config
    assert [one.optional for one in config.input] == [False, True]
    client.close()
    document = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    body = document["paths"]["/v2/models/scale/infer"]["post"]["requestBody"]["content"]
    schema = body["application/json"]["schema"]["properties"]["inputs"]
    assert (schema["minItems"], schema["maxItems"]) == (1, 2)

"""A config.json of an OpenVINO Model Server, and Triton's OpenVINO backend, served as they are."""

import json

import cv2
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_add_sub
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.wait_until import wait_until

pytest.importorskip("openvino", reason="make test-openvino installs it")

from tests.support.model_files.openvino_models import (
    ops,
    parameter,
    run,
    write_convolution,
    write_ir,
    write_saved_model,
    write_scale,
    write_tflite,
)

IMAGE = 'name: "image" data_type: TYPE_FP32'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("ovms")
    for version in ("1", "2", "3"):
        write_scale(root / f"models/scale/{version}/model.xml", float(version))
    write_convolution(root / "models/net/1/model.xml")
    write_add_sub(root / "models/add_sub/1/model.onnx")
    write_tflite(root / "models/lite/1/double.tflite")
    write_saved_model(root / "models/saved/1")
    x = parameter("image", [1, 3, 4, 4], layout="NCHW")
    mean = ops.reduce_mean(x, ops.constant(np.array([2, 3])), keep_dims=False)
    write_ir(root / "models/mean/1/model.xml", [x], {"mean": mean})
    mapping = {"inputs": {"x": "numbers"}, "outputs": {"y": "scaled"}}
    (root / "models/scale/3/mapping_config.json").write_text(json.dumps(mapping))
    every = {"specific": {"versions": [1, 3]}}
    models = [
        {"name": "scale", "base_path": "models/scale", "model_version_policy": every},
        {"name": "fixed", "base_path": "models/net"},
        {"name": "batched", "base_path": "models/net", "batch_size": "auto", "nireq": 4},
        {"name": "wide", "base_path": "models/net", "shape": {"image": "(2,3,8:16,10)"}},
        {"name": "free", "base_path": "models/net", "shape": "(-1,3,-1,-1)",
         "plugin_config": {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 1}},
        {"name": "pictures", "base_path": "models/mean", "layout": "NHWC:NCHW", "batch_size": -1},
        {"name": "onnx", "base_path": str(root / "models/add_sub")},
        {"name": "lite", "base_path": "models/lite"},
        {"name": "saved", "base_path": "models/saved", "batch_size": 3},
        {"name": "gpu", "base_path": "models/net", "target_device": "GPU"},
        {"name": "bad", "base_path": "models/net", "shape": "(1,4,8,8)"},
    ]  # fmt: skip
    config = {"model_config_list": [{"config": one} for one in models]}
    (root / "config.json").write_text(json.dumps(config, indent="\t"))
    return root


def states(server):
    index = requests.post(f"{server.url}/v2/repository/index").json()
    return {one["name"]: (one["state"], one["reason"]) for one in index}


@pytest.fixture(scope="module")
def server(root):
    with Server(root / "config.json", wait_ready=False, start_timeout=120) as running:
        wait_until(lambda: "models loaded" in running.log)
        yield running


def test_models_that_cannot_be_served_are_named_and_the_others_serve(server):
    found = states(server)
    bad = {name: reason for name, (state, reason) in found.items() if state != "READY"}
    assert set(bad) == {"gpu", "bad"}
    assert "OpenVINO's models run on the CPU" in bad["gpu"]
    assert "cannot be loaded by OpenVINO" in bad["bad"]


def test_versions_and_mapped_names(server):
    x = np.float32([[1, 2, 3, 4]])
    first = infer(tritonclient.grpc, server, "scale", {"x": x}, model_version="1")
    assert first.as_numpy("y").tolist() == x.tolist()
    last = infer(tritonclient.grpc, server, "scale", {"numbers": x})
    assert last.as_numpy("scaled").tolist() == (x * 3).tolist()


@pytest.mark.parametrize(
    ("model", "shape"), [("fixed", (1, 3, 8, 8)), ("batched", (5, 3, 8, 8)), ("wide", (2, 3, 12, 10)),
                         ("free", (3, 3, 9, 7))],
)  # fmt: skip
def test_batches_and_shapes(server, root, model, shape):
    image = np.random.default_rng(6).random(shape, np.float32)
    (expected,) = run(root / "models/net/1/model.xml", image, shapes={"image": shape})
    answer = infer(tritonclient.grpc, server, model, {"image": image})
    np.testing.assert_allclose(answer.as_numpy("scores"), expected, rtol=1e-5, atol=1e-6)


def test_a_layout_lets_pictures_in(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    metadata = client.get_model_metadata("pictures")
    assert metadata["platform"] == "OpenVINO"
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 4, 4, 3]}]
    rows = np.random.default_rng(1).random((2, 4, 4, 3), np.float32)
    answer = infer(tritonclient.grpc, server, "pictures", {"image": rows})
    np.testing.assert_allclose(answer.as_numpy("mean"), rows.mean(axis=(1, 2)), rtol=1e-5)
    _, encoded = cv2.imencode(".png", np.full((9, 7, 3), (10, 20, 30), np.uint8))
    files = np.array([encoded.tobytes()] * 2, object)
    answer = infer(tritonclient.grpc, server, "pictures", {"image": files})
    assert answer.as_numpy("mean").tolist() == [[10, 20, 30]] * 2


def test_onnx_files_run_by_openvino_too(server):
    x = np.float32([[1, 2, 3, 4]])
    answer = infer(tritonclient.grpc, server, "onnx", {"INPUT0": x, "INPUT1": x})
    assert answer.as_numpy("OUTPUT0").tolist() == (x * 2).tolist()
    client = tritonclient.http.InferenceServerClient(server.http)
    assert client.get_model_metadata("onnx")["platform"] == "OpenVINO"


def test_wrong_requests_are_the_clients_error(server):
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    answer = requests.post(f"{server.url}/v2/models/wide/infer", json=body)
    assert answer.status_code == 400 and "expects [2, 3, 8:16, 10]" in answer.json()["error"]


def test_a_change_of_the_config_is_loaded(root, tmp_path):
    path = tmp_path / "config.json"
    config = {"name": "m", "base_path": str(root / "models/net")}
    path.write_text(json.dumps({"model_config_list": [{"config": config}]}))
    with Server(path) as server:
        shape = requests.get(f"{server.url}/v2/models/m").json()["inputs"][0]["shape"]
        assert shape == [1, 3, 8, 8]
        config["batch_size"] = 7
        path.write_text(json.dumps({"model_config_list": [{"config": config}]}))
        assert requests.post(f"{server.url}/v1/config/reload").status_code in (200, 201)
        shape = requests.get(f"{server.url}/v2/models/m").json()["inputs"][0]["shape"]
        assert shape == [7, 3, 8, 8]


def test_tritons_openvino_backend(tmp_path, root):
    folder = write_folder(
        tmp_path,
        "net",
        f'backend: "openvino" max_batch_size: 4 input {{ {IMAGE} dims: [ 3, 64 ] reshape '
        '{ shape: [ 3, 8, 8 ] } } output { name: "scores" data_type: TYPE_FP32 dims: [ 5 ] } '
        'parameters { key: "INFERENCE_NUM_THREADS" value { string_value: "1" } }',
    )
    write_convolution(folder / "1/model.xml")
    image = np.random.default_rng(8).random((3, 3, 64), np.float32)
    rows = image.reshape(3, 3, 8, 8)
    (expected,) = run(folder / "1/model.xml", rows, shapes={"image": rows.shape})
    with Server(tmp_path, start_timeout=120) as server:
        answer = infer(tritonclient.grpc, server, "net", {"image": image})
    np.testing.assert_allclose(answer.as_numpy("scores"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "given", "answered", "rows"),
    [("lite", "x", "y", 2), ("saved", "input", "output", 3)],
)
def test_files_of_tensorflow_that_openvino_reads(server, model, given, answered, rows):
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    answer = infer(tritonclient.grpc, server, model, {given: x})
    np.testing.assert_array_equal(answer.as_numpy(answered), x + x)


def test_a_model_that_cannot_be_loaded_leaves_the_others_and_says_what_ready_means(server, root):
    assert requests.get(f"{server.url}/v2/models/lite/ready", timeout=10).status_code == 200
    answer = requests.get(f"{server.url}/v2/health/ready", timeout=10)
    assert answer.status_code == 503 and "the model gpu is unavailable" in answer.json()["error"]
    assert "the server is not ready, because" in server.log
    assert "--ready-when any has them make the server ready" in server.log
    with Server(root / "config.json", ready_when="any", start_timeout=120) as running:
        assert requests.get(f"{running.url}/v2/health/ready", timeout=10).status_code == 200
        assert "the server is not ready" not in running.log


def test_tensorflows_files_without_settings(root, tmp_path):
    write_tflite(tmp_path / "lite/1/model.tflite")
    write_saved_model(tmp_path / "saved/1")
    (tmp_path / "named").mkdir()
    write_saved_model(tmp_path / "named")
    (tmp_path / "named/model.yaml").write_text("model: saved_model.pb\n")
    with Server(tmp_path, start_timeout=120) as running:
        x = np.ones((2, 4), np.float32)
        for model, given, answered in (
            ("lite", "x", "y"), ("saved", "input", "output"), ("named", "input", "output"),
        ):  # fmt: skip
            answer = infer(tritonclient.http, running, model, {given: x})
            assert answer.as_numpy(answered).tolist() == [[2] * 4] * 2

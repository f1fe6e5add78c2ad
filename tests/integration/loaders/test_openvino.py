"""OpenVINO's IR, served; answers are compared with OpenVINO itself."""

import cv2
import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http

from ksrv.testing import Server
from tests.support.model_files.triton_repository import infer

pytest.importorskip("openvino", reason="make test-openvino installs it")

from tests.support.model_files.openvino_models import (
    ops,
    parameter,
    run,
    write_convolution,
    write_ir,
    write_mean,
    write_scale,
)

both = pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
KINDS = {
    "BOOL": ("boolean", np.array([[True, False]])),
    "UINT8": ("u8", np.uint8([[0, 255]])),
    "UINT16": ("u16", np.uint16([[0, 65535]])),
    "UINT32": ("u32", np.uint32([[0, 2**32 - 1]])),
    "UINT64": ("u64", np.uint64([[0, 2**64 - 1]])),
    "INT8": ("i8", np.int8([[-128, 127]])),
    "INT16": ("i16", np.int16([[-(2**15), 2**15 - 1]])),
    "INT32": ("i32", np.int32([[-(2**31), 2**31 - 1]])),
    # The CPU plugin itself computes INT64 in 32 bits and FP64 in FP32.
    "INT64": ("i64", np.int64([[-(2**31), 2**31 - 1]])),
    "FP16": ("f16", np.float16([[0.5, -65504.0]])),
    "BF16": ("bf16", np.array([[0.5, -3e38]], ml_dtypes.bfloat16)),
    "FP32": ("f32", np.float32([[0.1, -3e38]])),
    "FP64": ("f64", np.float64([[0.5, -(2.0**120)]])),
    "BYTES": ("string", np.array([[b"a\xff", "zwölf".encode()]], object)),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("openvino")
    write_scale(root / "scale/1/model.xml", 2)
    write_scale(root / "scale/4/model.xml", 4)
    write_convolution(root / "fixed/1/model.xml")
    write_convolution(root / "batched/model.xml")
    (root / "batched/model.yaml").write_text(
        "model: model.xml\nbatching: {max_batch_size: 4}\ninstances: 2\n"
        "inputs:\n  - name: image\n    datatype: FP32\n    shape: [-1, 8, 8, 3]\n"
        "    image: {color: RGB, channels: convert, scale: 255, model_layout: NCHW}\n"
    )
    write_mean(root / "mean/1/model.xml")
    write_scale(root / "alone.xml", 10)
    for datatype, (kind, _) in KINDS.items():
        x = parameter("x", [-1, -1], kind)
        write_ir(root / f"echo_{datatype}/1/model.xml", [x], {"y": ops.reshape(x, [0, -1], True)})
    left, right = parameter("in/left:0", [-1, (2, 5)]), parameter("in right", [-1, (2, 5)])
    write_ir(
        root / "two/1/model.xml",
        [left, right],
        {"sum": ops.add(left, right), "difference": ops.subtract(left, right)},
    )
    return root


@pytest.fixture(scope="module")
def server(repository):
    with Server(repository, start_timeout=120) as running:
        yield running


@both
def test_an_ir_answers_as_openvino(module, server, repository):
    image = np.random.default_rng(1).random((1, 3, 8, 8), np.float32)
    (expected,) = run(repository / "fixed/1/model.xml", image)
    answer = infer(module, server, "fixed", {"image": image})
    np.testing.assert_array_equal(answer.as_numpy("scores"), expected)


@both
def test_declared_shapes_reshape_the_model(module, server, repository):
    image = np.random.default_rng(1).random((3, 8, 8, 3), np.float32)
    (expected,) = run(
        repository / "batched/model.xml",
        np.ascontiguousarray(image.transpose(0, 3, 1, 2)),
        shapes={"image": (-1, 3, 8, 8)},
    )
    answer = infer(module, server, "batched", {"image": image})
    np.testing.assert_allclose(answer.as_numpy("scores"), expected, rtol=1e-5)


def test_versions_metadata_and_a_bare_file(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    scale = client.get_model_metadata("scale")
    assert (scale["platform"], scale["versions"]) == ("OpenVINO", ["4"])
    assert scale["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert client.get_model_metadata("fixed")["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [1, 5]}
    ]
    two = client.get_model_metadata("two")
    assert {one["name"]: one["shape"] for one in two["inputs"]} == {
        "in/left:0": [-1, -1],
        "in right": [-1, -1],
    }
    x = np.float32([[1, 2, 3, 4]])
    answer = infer(tritonclient.http, server, "alone", {"x": x})
    assert answer.as_numpy("y").tolist() == [[10, 20, 30, 40]]


@both
def test_several_tensors_with_names_that_are_no_identifiers(module, server):
    left, right = np.random.default_rng(4).random((2, 3, 5), np.float32)
    answer = infer(module, server, "two", {"in/left:0": left, "in right": right})
    np.testing.assert_array_equal(answer.as_numpy("sum"), left + right)
    np.testing.assert_array_equal(answer.as_numpy("difference"), left - right)


@both
def test_a_size_outside_of_the_files_range_is_the_clients_error(module, server):
    rows = np.zeros((1, 6), np.float32)
    with pytest.raises(module.InferenceServerException, match=r"\[1, 6\].*expects.*2:5"):
        infer(module, server, "two", {"in/left:0": rows, "in right": rows})


@both
@pytest.mark.parametrize("datatype", KINDS)
def test_every_datatype_goes_in_and_out(module, server, datatype):
    value = KINDS[datatype][1]
    tensor = module.InferInput("x", list(value.shape), datatype)
    tensor.set_data_from_numpy(value)
    client = module.InferenceServerClient(
        server.http if module is tritonclient.http else server.grpc
    )
    answer = client.infer(f"echo_{datatype}", [tensor])
    assert answer.as_numpy("y").tolist() == value.tolist()
    described = client.get_model_metadata(f"echo_{datatype}")
    output = described["outputs"][0] if isinstance(described, dict) else described.outputs[0]
    kind = output["datatype"] if isinstance(output, dict) else output.datatype
    assert kind == datatype


def test_a_layout_of_the_file_takes_pictures(server):
    picture = np.full((100, 200, 3), (10, 20, 30), np.uint8)
    _, encoded = cv2.imencode(".png", picture)
    answer = requests.post(
        f"{server.url}/v2/models/mean/infer",
        data=encoded.tobytes(),
        headers={"Content-Type": "image/png"},
    ).json()
    assert answer["outputs"][0]["data"] == [10, 20, 30]


def test_a_model_file_that_is_replaced_while_it_serves_changes_nothing(repository, tmp_path):
    path = write_scale(tmp_path / "m/1/model.xml", 2)
    with Server(tmp_path) as server:
        path.with_suffix(".bin").write_bytes(np.float32([9]).tobytes())
        x = np.float32([[1, 1, 1, 1]])
        answer = infer(tritonclient.http, server, "m", {"x": x})
        assert answer.as_numpy("y").tolist() == [[2, 2, 2, 2]]

"""Repositories of Triton, served as they are; answers equal the runtime's."""

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.onnx_models import run, write_add_sub, write_graph, write_scale
from tests.support.model_files.triton_repository import infer, write_folder
from tests.support.wait_until import wait_until

ADD_SUB = """
name: "add_sub"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] }
]
version_policy: { all {} }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("triton")
    folder = write_folder(root, "add_sub", ADD_SUB)
    (folder / "labels.txt").write_text("one\ntwo\nthree\nfour\n")
    write_add_sub(folder / "1/model.onnx")
    write_add_sub(folder / "3/model.onnx")
    folder = write_folder(
        root,
        "reshaped",
        """
        backend: "onnxruntime"
        max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: 6 reshape: { shape: [ 2, 3 ] } }
        output { name: "flat" data_type: TYPE_FP32 dims: [ 3, 2 ] reshape { shape: 6 } }
        output { name: "count" data_type: TYPE_INT64 dims: 1 reshape { shape: [] } }
        """,
    )
    write_graph(
        folder / "1/model.onnx",
        [
            ("Flatten", ["x"], ["flat"], {"axis": 1}),
            ("ReduceSum", ["x", "axes"], ["sum"], {"keepdims": 0}),
            ("Cast", ["sum"], ["count"], {"to": 7}),
            ("Identity", ["x"], ["unused"], {}),
        ],
        {"x": ("FP32", ("N", 2, 3))},
        {
            "flat": ("FP32", ("N", 6)),
            "count": ("INT64", ("N",)),
            "unused": ("FP32", ("N", 2, 3)),
        },
        {"axes": np.int64([1, 2])},
    )
    folder = write_folder(root, "completed", 'backend: "onnxruntime" dynamic_batching {}')
    write_scale(folder / "1/model.onnx", 3)
    folder = write_folder(
        root,
        "lengths",
        """
        input { name: "text" data_type: TYPE_FP32 dims: -1 }
        output { name: "twice" data_type: TYPE_FP32 dims: -1 }
        """,
    )
    write_graph(
        folder / "1/model.onnx",
        [("Concat", ["text", "text"], ["twice"], {"axis": 0})],
        {"text": ("FP32", ("L",))},
        {"twice": ("FP32", ("M",))},
    )
    return root


@pytest.fixture(scope="module")
def server(repository):
    with Server(repository) as running:
        yield running


def test_an_onnx_model_answers_as_its_runtime(server, repository):
    rows = np.random.default_rng(5).standard_normal((2, 3, 4)).astype(np.float32)
    given = {"INPUT0": rows[0], "INPUT1": rows[1]}
    expected = run(repository / "add_sub/1/model.onnx", **given)
    answer = infer(tritonclient.grpc, server, "add_sub", given, model_version="1")
    for name, array in expected.items():
        np.testing.assert_array_equal(answer.as_numpy(name), array)


def test_statistics_have_the_time_of_outputs(server, repository):
    row = np.float32([[1, 2, 3, 4]])
    infer(tritonclient.http, server, "add_sub", {"INPUT0": row, "INPUT1": row})
    client = tritonclient.http.InferenceServerClient(server.http)

    def durations():
        [found] = client.get_inference_statistics("add_sub", "3")["model_stats"]
        return found["inference_stats"]

    wait_until(lambda: durations()["compute_output"]["count"])  # it is counted after the answer
    assert durations()["compute_output"]["ns"] > 0


def test_classes_have_the_labels_of_the_file(server):
    row = np.float32([[1, 4, 3, 2]])
    wanted = [tritonclient.grpc.InferRequestedOutput("OUTPUT0", class_count=2)]
    answer = infer(tritonclient.grpc, server, "add_sub", {"INPUT0": row, "INPUT1": row}, wanted)
    classes = answer.as_numpy("OUTPUT0").reshape(-1).tolist()
    assert [one.decode().split(":")[-1] for one in classes] == ["two", "three"]


def test_reshapes_hold_and_undeclared_outputs_are_left_out(server, repository):
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    expected = run(repository / "reshaped/1/model.onnx", x=x.reshape(2, 2, 3))
    answer = infer(tritonclient.grpc, server, "reshaped", {"x": x})
    assert answer.as_numpy("flat").tolist() == expected["flat"].reshape(2, 3, 2).tolist()
    assert answer.as_numpy("count").tolist() == expected["count"].reshape(2, 1).tolist()
    assert answer.as_numpy("unused") is None


def test_what_a_config_leaves_out_is_the_files(server):
    x = np.float32([[1, 2, 3, 4]])
    assert (
        infer(tritonclient.grpc, server, "completed", {"x": x}).as_numpy("y").tolist()
        == (x * 3).tolist()
    )
    client = tritonclient.http.InferenceServerClient(server.http)
    assert client.get_model_config("completed")["max_batch_size"] == 4


def test_without_batches_the_first_dimension_is_a_size_like_others(server):
    text = np.float32([1, 2, 3])
    answer = infer(tritonclient.grpc, server, "lengths", {"text": text})
    assert answer.as_numpy("twice").tolist() == [1, 2, 3, 1, 2, 3]
    client = tritonclient.http.InferenceServerClient(server.http)
    assert client.get_model_metadata("lengths")["inputs"][0]["shape"] == [-1]


def test_more_rows_than_a_batch_holds_are_refused(server):
    rows = np.zeros((9, 4), np.float32)
    with pytest.raises(InferenceServerException, match="max_batch_size"):
        infer(tritonclient.grpc, server, "add_sub", {"INPUT0": rows, "INPUT1": rows})

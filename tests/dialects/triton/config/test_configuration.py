"""A Triton model answers with its config.pbtxt. The test reads both with Triton's messages and compares them."""

import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from ksrv.testing import Server
from tests.support.model_files.onnx_models import write_graph
from tests.support.model_files.triton_repository import write_folder

IMAGES = """
name: "images"
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ {
  name: "data" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ] reshape { shape: [ 12 ] }
} ]
output [ {
  name: "scores" data_type: TYPE_FP32 dims: [ 12 ] reshape { shape: [ 12 ] } label_filename: "labels.txt"
} ]
version_policy { specific { versions: [ 1 ] } }
instance_group [ { count: 2 kind: KIND_CPU profile: "low" rate_limiter {
  resources [ { name: "R" count: 2 global: true } ] priority: 3 } } ]
dynamic_batching {
  preferred_batch_size: [ 2, 4 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: t
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000 max_queue_size: 9 }
  priority_queue_policy { key: 2 value { max_queue_size: 3 } }
}
optimization {
  graph { level: -1 }
  priority: PRIORITY_MAX
  input_pinned_memory { enable: false }
  cuda { graphs: true graph_spec { batch_size: 1 input { key: "data" value { dim: [ 3, 2 ] } } } }
}
model_warmup [ { name: "one" batch_size: 1 inputs { key: "data" value {
  data_type: TYPE_FP32 dims: [ 3, 2, 2 ] random_data: true } } } ]
metric_tags { key: "owner" value: "vision" }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
model_metrics { metric_control [ { metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 0.1, 2 ] } } ] }
response_cache { enable: true }
"""
FILLED_IMAGES = """
backend: "onnxruntime" default_model_filename: "model.onnx"
"""
SEQUENCES = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
sequence_batching {
  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 0.1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
FILLED_SEQUENCES = """
name: "sums" platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx"
version_policy { latest { num_versions: 1 } }
instance_group { name: "sums" kind: KIND_CPU count: 1 }
sequence_batching { max_sequence_idle_microseconds: 1000000 oldest { preferred_batch_size: 8 } }
"""
COMPLETED = """
input { name: "data" format: FORMAT_NCHW }
dynamic_batching {}
"""
FILLED_COMPLETED = """
name: "completed" platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx"
version_policy { latest { num_versions: 1 } }
max_batch_size: 4
dynamic_batching { preferred_batch_size: 4 }
input { name: "data" data_type: TYPE_FP32 format: FORMAT_NCHW dims: 12 }
output { name: "scores" data_type: TYPE_FP32 dims: 12 }
instance_group { name: "completed" kind: KIND_CPU count: 1 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("configurations")
    for name, config in (("images", IMAGES), ("completed", COMPLETED)):
        folder = write_folder(root, name, config)
        (folder / "labels.txt").write_text("\n".join("abcdefghijkl"))
        write_graph(
            folder / "1/model.onnx",
            [("Softmax", ["data"], ["scores"], {})],
            {"data": ("FP32", ("N", 12))},
            {"scores": ("FP32", ("N", 12))},
        )
    write_graph(
        write_folder(root, "sums", SEQUENCES) / "1/model.onnx",
        [
            ("Add", ["x", "START"], ["sum"], {}),
            ("Cast", ["CORRID"], ["id"], {"to": 1}),
            ("Add", ["sum", "id"], ["y"], {}),
        ],
        {"x": ("FP32", ("N", 2)), "START": ("FP32", ("N", 1)), "CORRID": ("UINT64", ("N", 1))},
        {"y": ("FP32", ("N", 2))},
    )
    with Server(root) as running:
        yield running


def expected(config, filled):
    """The message of a config.pbtxt, completed by a second text."""
    message = text_format.Parse(config, model_config_pb2.ModelConfig())
    return text_format.Merge(filled, message)


def answers(server, model):
    over_grpc = tritonclient.grpc.InferenceServerClient(server.grpc).get_model_config(model).config
    document = tritonclient.http.InferenceServerClient(server.http).get_model_config(model)
    return over_grpc, json_format.ParseDict(document, model_config_pb2.ModelConfig())


def test_every_key_of_the_file_is_answered(server):
    wanted = expected(IMAGES, FILLED_IMAGES)
    wanted.instance_group[0].name = "images_0"
    for found in answers(server, "images"):
        assert found == wanted


def test_sequences_and_controls_are_those_of_the_file(server):
    for found in answers(server, "sums"):
        assert found == expected(SEQUENCES, FILLED_SEQUENCES)


def test_what_the_file_leaves_out_is_that_of_the_model(server):
    for found in answers(server, "completed"):
        assert found == expected(FILLED_COMPLETED, "")


def test_json_has_numbers_and_every_field_as_triton_prints_it(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    [tensor] = client.get_model_config("images")["input"]
    assert tensor == {
        "name": "data",
        "data_type": "TYPE_FP32",
        "format": "FORMAT_NCHW",
        "dims": [3, 2, 2],
        "reshape": {"shape": [12]},
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    sequences = client.get_model_config("sums")["sequence_batching"]
    assert sequences["oldest"]["max_queue_delay_microseconds"] == 10000
    assert sequences["control_input"][0]["control"][0]["fp32_false_true"] == [0.0, 0.1]

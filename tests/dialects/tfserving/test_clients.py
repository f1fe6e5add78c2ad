"""The clients of TensorFlow Serving and OpenVINO Model Server, unmodified: tensorflow-serving-api and ovmsclient.

`make test-dialects` installs them. OVMS_SAMPLES names the folder of OpenVINO Model Server's samples for TensorFlow
Serving's API (client/python/tensorflow-serving-api/samples of a checkout up to release 2026.2), which are then run, too.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ksrv.model.datatypes import DTYPES
from ksrv.testing import Server
from tests.dialects.tfserving.conftest import write_models
from tests.dialects.tfserving.test_predict import edge_values
from tests.support.images import files
from tests.support.models import write_model

IMAGES = [files.jpeg(60, 90, seed=1), files.jpeg(8, 8, seed=2), files.png(33, 57, seed=3)]
SAMPLES = os.environ.get("OVMS_SAMPLES", "")
SCORES = """
import numpy as np

def inference(image):
    scores = np.zeros((len(image), 1000), np.float32)
    scores[np.arange(len(image)), image.mean(axis=(1, 2, 3)).astype(int)] = 1
    return {"scores": scores}
"""
SCORES_YAML = """
inputs: [{name: image, datatype: FP32, shape: [-1, 224, 224, 3]}]
outputs: [{name: scores, datatype: FP32, shape: [-1, 1000]}]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("clients")
    write_models(root)
    write_model(root, "resnet", SCORES, SCORES_YAML)
    with Server(root) as server:
        yield server


@pytest.fixture
def stubs(served):
    grpc = pytest.importorskip("grpc")
    apis = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
    from tensorflow_serving.apis import model_service_pb2_grpc

    with grpc.insecure_channel(served.grpc) as channel:
        yield apis.PredictionServiceStub(channel), model_service_pb2_grpc.ModelServiceStub(channel)


def predict(stub, name, **inputs):
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = "serving_default"
    for key, proto in inputs.items():
        request.inputs[key].CopyFrom(proto)
    return stub.Predict(request, 30).outputs


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_tensorflow_reads_every_datatype_as_it_wrote_it(stubs, datatype):
    tf = pytest.importorskip("tensorflow")
    values = edge_values(datatype)
    if datatype == "BF16":
        values = values.view(tf.bfloat16.as_numpy_dtype)
    found = predict(stubs[0], datatype.lower(), x=tf.make_tensor_proto(values))["y"]
    back = tf.make_ndarray(found)
    assert (back.dtype, back.tobytes()) == (values.dtype, values.tobytes())
    one = predict(stubs[0], datatype.lower(), x=tf.make_tensor_proto(values[0, 1], shape=(2, 2)))
    assert tf.make_ndarray(one["y"]).tobytes() == np.full((2, 2), values[0, 1]).tobytes()


def test_tensorflow_sends_texts_and_pictures(stubs):
    tf = pytest.importorskip("tensorflow")
    texts = predict(stubs[0], "text", x=tf.make_tensor_proto(["a", "é"]))["y"]
    assert tf.make_ndarray(texts).tolist() == [b"a", "é".encode()]
    pictures = tf.make_tensor_proto(IMAGES, shape=[len(IMAGES)])
    found = predict(stubs[0], "mean", image=pictures)["mean"]
    assert tf.make_ndarray(found).shape == (3, 3)
    assert np.reshape(found.float_val, (3, 3)).tolist() == tf.make_ndarray(found).tolist()
    alone = predict(stubs[0], "mean", image=tf.make_tensor_proto(IMAGES[1], shape=[1]))["mean"]
    assert list(alone.float_val) == list(found.float_val)[3:6]


def test_tensorflow_classifies_and_regresses(stubs):
    tf = pytest.importorskip("tensorflow")
    from tensorflow_serving.apis import classification_pb2, regression_pb2

    def example(**features):
        made = tf.train.Example()
        for name, values in features.items():
            made.features.feature[name].float_list.value.extend(values)
        return made

    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "classes"
    request.input.example_list.examples.extend([example(x=[1, 1, 2]), example(x=[1, 0, 0])])
    rows = stubs[0].Classify(request, 30).result.classifications
    assert [one.label for one in rows[0].classes] == ["ant", "bee", "cow"]
    assert [one.score for one in rows[0].classes] == [0.25, 0.25, 0.5]
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "sum"
    row = example(a=[1.5])
    row.features.feature["b"].int64_list.value.append(2)
    request.input.example_list.examples.append(row)
    assert [one.value for one in stubs[0].Regress(request, 30).result.regressions] == [3.5]


def test_tensorflow_reads_metadata_and_states(stubs):
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = "two"
    request.metadata_field.append("signature_def")
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert stubs[0].GetModelMetadata(request, 30).metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def["serving_default"].inputs) == {"a", "b"}
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "two"
    (version,) = stubs[1].GetModelStatus(request, 30).model_version_status
    assert version.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE


@pytest.fixture(params=["grpc", "http"])
def ovms(request, served):
    ovmsclient = pytest.importorskip("ovmsclient")
    if request.param == "grpc":
        return ovmsclient.make_grpc_client(served.grpc)
    return ovmsclient.make_http_client(served.url.removeprefix("http://"))


OVMS_DATATYPES = sorted(set(DTYPES) - {"BF16"})  # the client has no bfloat16


@pytest.mark.parametrize("datatype", OVMS_DATATYPES)
def test_ovmsclient_reads_every_datatype_as_it_wrote_it(ovms, datatype):
    if datatype == "FP16" and type(ovms).__name__ == "HttpClient":
        pytest.skip("JSON carries no FP16")
    values = edge_values(datatype)
    if datatype == "UINT64":
        values = values // 2  # the client's numpy reads larger numbers in JSON as floats
    found = ovms.predict({"x": values}, datatype.lower())
    assert np.asarray(found, values.dtype).tolist() == values.tolist()
    assert ovms.predict({"x": values}, datatype.lower(), model_version=1) is not None


def test_ovmsclient_sends_texts_and_pictures(ovms):
    pictures = ovms.predict({"image": np.array(IMAGES, np.bytes_)}, "mean")
    assert np.shape(pictures) == (3, 3)
    assert len(ovms.predict({"x": ["a", "é"]}, "text")) == 2


def test_ovmsclient_reads_metadata_and_states(ovms):
    found = ovms.get_model_metadata("two")
    assert found["model_version"] == 1
    assert found["inputs"]["a"] == {"dtype": "DT_INT32", "shape": [-1, 2]}
    assert ovms.get_model_status("two")[1]["state"] == "AVAILABLE"


def test_ovmsclient_names_what_is_missing(ovms):
    with pytest.raises(Exception, match="nobody"):
        ovms.predict({"x": [1.0]}, "nobody")


def sample_arguments(served, folder):
    """Return the arguments of each sample."""
    pictures = folder / "pictures.txt"
    for number, image in enumerate(IMAGES):
        (folder / f"{number}.jpg").write_bytes(image)
    pictures.write_text("".join(f"{folder}/{number}.jpg 128\n" for number in range(len(IMAGES))))
    pixels = np.random.default_rng(1).integers(0, 255, (4, 224, 224, 3)).astype(np.float32)
    np.save(folder / "images.npy", pixels)
    np.save(folder / "labels.npy", np.full(4, 127))
    port = served.grpc.rpartition(":")[2]
    rest = served.url.rpartition(":")[2]
    named = ["--input_name", "image", "--output_name", "scores"]
    numpy = [*named, "--images_numpy_path", f"{folder}/images.npy", "--labels_numpy_path",
             f"{folder}/labels.npy", "--transpose_input", "False", "--batchsize", "2"]  # fmt: skip
    binary = [*named, "--images_list", str(pictures), "--batchsize", "3"]
    yield "grpc_get_model_metadata.py", ["--grpc_port", port], "DT_FLOAT"
    yield "grpc_get_model_status.py", ["--grpc_port", port], "State AVAILABLE"
    yield "grpc_predict_resnet.py", ["--grpc_port", port, *numpy], "Classification accuracy"
    yield "grpc_predict_binary_resnet.py", ["--grpc_port", port, *binary], "Overall accuracy"
    yield "rest_get_model_metadata.py", ["--rest_port", rest], '"modelSpec"'
    yield "rest_get_model_status.py", ["--rest_port", rest], '"AVAILABLE"'
    for form in ("row_name", "row_noname", "column_name", "column_noname"):
        chosen = ["--request_format", form]
        url = ["--rest_url", served.url]
        yield "rest_predict_binary_resnet.py", [*url, *binary, *chosen], "Overall accuracy"
        numbers = [*numpy[:-1], "1"]
        yield "rest_predict_resnet.py", ["--rest_port", rest, *numbers, *chosen], "accuracy"


@pytest.mark.skipif(not SAMPLES, reason="OVMS_SAMPLES names no folder with the samples")
def test_samples_of_openvino_model_server(served, tmp_path):
    pytest.importorskip("tensorflow_serving")
    folder = Path(SAMPLES).absolute()
    for name, arguments, text in sample_arguments(served, tmp_path):
        done = subprocess.run(
            [sys.executable, folder / name, *arguments],
            cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        shown = f"{name} {arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0 and text in done.stdout, shown


def test_messages_have_the_numbers_of_the_package():
    pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2")
    from google.protobuf import descriptor_pool
    from tensorflow_serving.apis import model_service_pb2

    from ksrv.protocol.protobuf import pool

    assert model_service_pb2.DESCRIPTOR is not None  # registers the package's messages
    theirs = descriptor_pool.Default()
    compared = 0
    for file in ("tensorflow.proto", "tensorflow_serving.proto"):
        described = pool().FindFileByName(file)
        waiting = list(described.message_types_by_name.values())
        while waiting:
            ours = waiting.pop()
            waiting += ours.nested_types
            other = theirs.FindMessageTypeByName(ours.full_name)
            for field in ours.fields:
                twin = other.fields_by_name[field.name]
                assert (field.number, field.type) == (twin.number, twin.type), field.full_name
                assert field.is_repeated == twin.is_repeated
                compared += 1
            for enum in ours.enum_types:
                values = other.enum_types_by_name[enum.name].values_by_name
                assert all(values[one.name].number == one.number for one in enum.values)
        for service in described.services_by_name.values():
            methods = theirs.FindServiceByName(service.full_name).methods_by_name
            for method in service.methods:
                assert method.input_type.full_name == methods[method.name].input_type.full_name
                assert method.output_type.full_name == methods[method.name].output_type.full_name
    assert compared > 60

"""Predict over gRPC: every datatype, typed fields, pictures, versions, and what is refused."""

import grpc
import numpy as np
import pytest
import requests

from ksrv.dialects.tfserving.predict_message import FIELDS
from ksrv.model.datatypes import DTYPES
from ksrv.protocol.protobuf import message_class
from ksrv.testing import Server
from tests.dialects.tfserving.conftest import write_models
from tests.support.images import files
from tests.support.tfserving import (
    PREDICTION,
    connected,
    content,
    predict_request,
    tensor_proto,
    values_of,
)

ROWS = np.array([[1.5, 2], [3, 4]], np.float32)
X = {"x": content(ROWS, "FP32")}


def edge_values(datatype):
    """Return the smallest and the largest value of a datatype, 0 and 1."""
    dtype = DTYPES[datatype]
    if datatype == "BOOL":
        return np.array([[False, True], [True, False]])
    if datatype == "BF16":
        return np.array([[0x3F80, 0xC000], [0x7F80, 0]], np.uint16)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array([[limits.min, limits.max], [0, 1]], dtype)


def typed(array, datatype):
    """Return an array as a TensorProto with the typed field of its datatype."""
    descriptor = message_class("tensorflow.TensorProto").DESCRIPTOR
    field = descriptor.fields_by_number[FIELDS[datatype]].name
    bits = array.view(np.uint16) if datatype in ("FP16", "BF16") else array
    return tensor_proto(datatype, array.shape, **{field: bits.ravel().tolist()})


@pytest.mark.parametrize("datatype", sorted(DTYPES))
@pytest.mark.parametrize("write", [content, typed], ids=["content", "typed"])
def test_every_datatype_comes_back_in_its_typed_field(client, datatype, write):
    values = edge_values(datatype)
    found = client.predict(datatype.lower(), {"x": write(values, datatype)})
    assert found["y"].dtype == DTYPES[datatype]
    assert found["y"].tobytes() == values.tobytes()
    # A version leaves the call to Python, and the default version may need none.
    again = client.predict(datatype.lower(), {"x": write(values, datatype)}, version=1)
    assert again["y"].tobytes() == values.tobytes()


def test_one_value_fills_the_shape(client):
    one = tensor_proto("FP32", (2, 2), float_val=[1.5])
    assert client.predict("fp32", {"x": one})["y"].tolist() == [[1.5, 1.5], [1.5, 1.5]]
    three = tensor_proto("INT8", (2, 2), int_val=[1, -2, 3])
    assert client.predict("int8", {"x": three})["y"].tolist() == [[1, -2], [3, 3]]


def test_several_inputs_and_requested_outputs(client):
    inputs = {
        "a": tensor_proto("INT32", (1, 2), int_val=[-1, 2]),
        "b": content(np.array([[3, 4]], np.int32), "INT32"),
    }
    assert {k: v.tolist() for k, v in client.predict("two", inputs).items()} == {
        "sum": [[2, 6]],
        "first": [-1],
    }
    assert list(client.predict("two", inputs, outputs=["first"])) == ["first"]


def test_texts(client):
    texts = tensor_proto("BYTES", (2,), string_val=[b"a", "é".encode()])
    assert client.predict("text", {"x": texts})["y"].tolist() == [b"a", "é".encode()]


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_pictures_are_decoded_as_over_kserve_v2(client, served, shape):
    images = [files.jpeg(60, 90, seed=1), files.png(33, 57, seed=5)]
    sent = {"image": tensor_proto("BYTES", shape, string_val=images)}
    found = client.predict("mean", sent)["mean"]
    uploads = [("image", ("a", image)) for image in images]
    v2 = requests.post(f"{served.url}/v2/models/mean/infer", files=uploads, timeout=60)
    assert found.ravel().tolist() == np.float32(v2.json()["outputs"][0]["data"]).tolist()


def test_empty_tensor(client):
    assert client.predict("fp32", {"x": tensor_proto("FP32", (0, 2))})["y"].shape == (0, 2)


def test_a_model_has_one_signature_whatever_a_client_calls_it(client):
    found = client.predict("fp32", X, signature_name="predict_images")
    assert found["y"].tolist() == ROWS.tolist()


def test_unusual_encodings_mean_the_same(client):
    request = predict_request("fp32", {})
    whole = predict_request("fp32", {"x": tensor_proto("FP32", (1, 2))}).SerializeToString()
    # float_val that is not packed (5, fixed32), and an unknown field.
    floats = b"".join(b"\x2d" + np.float32(value).tobytes() for value in (1, 2))
    tensor = tensor_proto("FP32", (1, 2)).SerializeToString() + floats + b"\xa0\x06\x01"
    entry = b"\x0a\x01x\x12" + bytes([len(tensor)]) + tensor
    message = request.SerializeToString() + b"\x12" + bytes([len(entry)]) + entry
    answer = client.call(PREDICTION, "Predict", message)
    assert values_of(answer.outputs["y"]).tolist() == [[1.0, 2.0]]
    # Of two entries with one name the later counts.
    answer = client.call(PREDICTION, "Predict", whole + b"\x12" + bytes([len(entry)]) + entry)
    assert values_of(answer.outputs["y"]).tolist() == [[1.0, 2.0]]


INVALID, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "inputs", "spec", "code", "text"),
    [
        ("", X, {}, INVALID, "names no model; set model_spec.name"),
        ("nobody", X, {}, UNKNOWN, "'nobody' is not found"),
        ("fp32", X, {"version": 7}, UNKNOWN, "version '7' is not found"),
        ("fp32", X, {"version": -1}, UNKNOWN, "version '-1' is not found"),
        ("fp32", X, {"version_label": "canary"}, UNKNOWN, "no label 'canary'; it has none"),
        ("fp32", X, {"outputs": ["z"]}, INVALID, "'z'"),
        ("fp32", {}, {}, INVALID, "'x' is missing"),
        ("fp32", {"z": X["x"]}, {}, INVALID, "unknown input 'z'"),
        ("fp64", X, {}, INVALID, "FP32"),
        ("fp32", {"x": tensor_proto("FP32", (2,), float_val=[1, 2])}, {}, INVALID, "shape"),
        ("fp32", {"x": tensor_proto("FP32", (-1, 2), float_val=[1, 2])}, {}, INVALID, "is negative"),
        ("fp32", {"x": tensor_proto("FP32", (1, 2))}, {}, INVALID, "tensor_content or float_val"),
        (
            "fp32",
            {"x": tensor_proto("FP32", (1, 2), tensor_content=b"abc")},
            {},
            INVALID,
            "tensor_content has 3 bytes; DT_FLOAT of the shape [1, 2] has 8",
        ),
        (
            "fp32",
            {"x": tensor_proto("FP32", (1, 2), float_val=[1, 2, 3])},
            {},
            INVALID,
            "asks for 2 values, but float_val has 3",
        ),
        (
            "fp32",
            {"x": tensor_proto("FP32", (1, 2), int_val=[1, 2])},
            {},
            INVALID,
            "is DT_FLOAT and its values are in int_val; expected tensor_content or float_val",
        ),
        (
            "fp32",
            {"x": tensor_proto("FP32", (1, 2), float_val=[1, 2], tensor_content=bytes(8))},
            {},
            INVALID,
            "tensor_content and float_val",
        ),
        ("int8", {"x": tensor_proto("INT8", (1, 2), int_val=[1, 128])}, {}, INVALID, "value 1 of"),
        ("uint8", {"x": tensor_proto("UINT8", (1, 2), int_val=[-1, 1])}, {}, INVALID, "value 0 of"),
        ("bool", {"x": tensor_proto("BOOL", (1, 2), tensor_content=b"\0\2")}, {}, INVALID, "0 or 1"),
        ("fp32", {"x": tensor_proto(8, (1, 2), float_val=[1])}, {}, INVALID, "one of DT_BOOL"),
        ("fp32", {"x": tensor_proto(99, (1, 2), float_val=[1])}, {}, INVALID, "one of DT_BOOL"),
        (
            "fp32",
            {"x": tensor_proto("FP32", (20_000_000, 2), float_val=[1])},
            {},
            INVALID,
            "at most 4194304 bytes, so send every value",
        ),
        (
            "fp32",
            {"x": tensor_proto("FP32", (2**31 - 1, 2**31 - 1), float_val=[1])},
            {},
            INVALID,
            "'x' (index 0)",
        ),
        ("fp32", {"x": tensor_proto("FP32", [1] * 40, float_val=[1])}, {}, INVALID, "limits-rank"),
        ("mean", {"image": tensor_proto("BYTES", (1,), string_val=[b"no"])}, {}, INVALID, "image"),
        ("mean", {"image": tensor_proto("BYTES", (1,), string_val=[b""])}, {}, INVALID, "image"),
        (
            "mean",
            {"image": tensor_proto("BYTES", (3,), string_val=[files.jpeg(8, 8)] * 4)},
            {},
            INVALID,
            "asks for 3 values, but string_val has 4",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_names_cause_and_remedy(client, name, inputs, spec, code, text):
    with pytest.raises(grpc.RpcError) as caught:
        client.predict(name, inputs, **spec)
    assert caught.value.code() is code
    assert text in caught.value.details()


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x12\x02\x0a\x7f", b"\x0b" * 300])
def test_bytes_that_are_no_request(client, message):
    with pytest.raises(grpc.RpcError) as caught:
        client.call(PREDICTION, "Predict", message)
    assert caught.value.code() is INVALID
    assert "is not a PredictRequest" in caught.value.details()


def test_too_many_inputs(client):
    inputs = {f"x{number}": X["x"] for number in range(300)}
    with pytest.raises(grpc.RpcError) as caught:
        client.predict("fp32", inputs)
    assert "--limits-inputs" in caught.value.details()


def test_grpcio_serves_it_as_well(tmp_path):
    write_models(tmp_path)
    with Server(tmp_path, grpc_server="grpcio") as server, connected(server) as client:
        assert client.predict("fp32", X)["y"].tolist() == ROWS.tolist()
        assert client.predict("int8", {"x": tensor_proto("INT8", (1, 2), int_val=[-1, 1])})


def test_a_token_is_asked_for(tmp_path):
    write_models(tmp_path)
    (tmp_path / "token").write_text("secret")
    with Server(tmp_path, token_file=str(tmp_path / "token")) as server:
        with connected(server) as client, pytest.raises(grpc.RpcError) as caught:
            client.predict("fp32", X)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

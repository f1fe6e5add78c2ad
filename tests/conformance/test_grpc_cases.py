"""The cases K33 to K42 and K49 to K55 of cases.md, over gRPC."""

import struct
import subprocess
import sys

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.conformance.conformance_models import FIXED_DATATYPES
from tests.conformance.test_rest_cases import FILES, RAW, RESULT, oracle, prefixed

CONTENTS = {
    "BOOL": ("bool_contents", [True, False, True, False]),
    "UINT8": ("uint_contents", [0, 1, 200, 255]),
    "UINT16": ("uint_contents", [0, 1, 300, 65535]),
    "UINT32": ("uint_contents", [0, 1, 2, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 0, 1, 127]),
    "INT16": ("int_contents", [-32768, 0, 1, 32767]),
    "INT32": ("int_contents", [-(2**31), 0, 1, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 0, 1, 2**63 - 1]),
    "FP32": ("fp32_contents", [0.5, -1.25, 3e38, 0.0]),
    "FP64": ("fp64_contents", [0.1, -1e300, 5e-324, 0.0]),
}
DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as connected:
        yield connected


@pytest.fixture
def stub(server):
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=unlimited) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def message(model, datatype, shape, *, name="x", raw=None, **contents):
    built = service_pb2.ModelInferRequest(model_name=model)
    entry = built.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(entry.contents, field).extend(values)
    if raw is not None:
        built.raw_input_contents.append(raw)
    return built


def refused(stub, request):
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details()


def pixels(stub, request):
    answer = stub.ModelInfer(request)
    return np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(-1, 8, 8, 3)


def test_k49_health_metadata_and_infer(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("add")
    assert list(metadata.inputs[0].shape) == [-1, 4]
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.frombuffer(RAW, "<f4").reshape(1, 4))
    answer = client.infer("add", [tensor], request_id="42")
    assert answer.get_response().id == "42"
    assert answer.as_numpy("y").ravel().tolist() == RESULT["y"]
    assert answer.as_numpy("z").tolist() == RESULT["z"]
    assert len(answer.get_response().raw_output_contents) == 2


@pytest.mark.parametrize("datatype", FIXED_DATATYPES)
def test_k49_every_datatype(client, datatype):
    if datatype == "BF16":
        values = np.array([[1.0, -2.0, 0.5, 3.0]], ml_dtypes.bfloat16)
    elif datatype == "FP16":
        values = np.array([[1.0, -2.0, 0.5, 3.0]], np.float16)
    else:
        values = np.array([CONTENTS[datatype][1]], DTYPES[datatype])
    tensor = triton.InferInput("x", [1, 4], datatype)
    tensor.set_data_from_numpy(values)
    np.testing.assert_array_equal(client.infer(f"echo_{datatype}", [tensor]).as_numpy("y"), values)


@pytest.mark.parametrize("datatype", CONTENTS)
def test_k50_typed_contents_equal_raw(stub, datatype):
    field, values = CONTENTS[datatype]
    raw = np.array(values, DTYPES[datatype]).tobytes()
    typed = stub.ModelInfer(message(f"echo_{datatype}", datatype, [1, 4], **{field: values}))
    plain = stub.ModelInfer(message(f"echo_{datatype}", datatype, [1, 4], raw=raw))
    assert typed.raw_output_contents == plain.raw_output_contents == [raw]


def test_k50_wrong_field(stub):
    request = message("echo_INT32", "INT32", [1, 4], fp32_contents=[1, 2, 3, 4])
    assert "INT32" in refused(stub, request)


@pytest.mark.parametrize(("datatype", "field", "value"), [
    ("INT8", "int_contents", 128), ("INT16", "int_contents", -32769),
    ("UINT8", "uint_contents", 256), ("UINT16", "uint_contents", 65536),
])  # fmt: skip
def test_k50_out_of_range(stub, datatype, field, value):
    text = refused(stub, message(f"echo_{datatype}", datatype, [1, 4], **{field: [0, value, 0, 0]}))
    assert f"value 1 of {field} is out of range, {value}; {datatype} takes " in text


def test_k51_contradictions(stub):
    refused(stub, message("add", "FP32", [1, 4], raw=RAW, fp32_contents=[1, 2, 3, 4]))
    request = message("pair", "FP32", [1, 4], name="a", raw=RAW)
    request.inputs.add(name="b", datatype="FP32", shape=[1, 4])
    refused(stub, request)
    request = message("add", "FP32", [1, 4], raw=RAW)
    request.raw_input_contents.append(RAW)
    refused(stub, request)


def test_empty_contents_beside_raw_ones(stub):
    """MLServer's client sets `contents` in each input."""
    for field in ("fp32_contents", "bytes_contents"):
        request = message("add", "FP32", [1, 4], raw=RAW, **{field: []})
        request.inputs[0].contents.SetInParent()
        assert stub.ModelInfer(request).raw_output_contents


def test_k52_images(stub):
    expected = [oracle(file) for file in FILES]
    contents = message("pixels", "BYTES", [3], name="image", bytes_contents=FILES)
    raw = message("pixels", "BYTES", [3], name="image", raw=prefixed(*FILES))
    np.testing.assert_array_equal(pixels(stub, contents), expected)
    np.testing.assert_array_equal(pixels(stub, raw), expected)
    bare = message("pixels", "BYTES", [1], name="image", raw=FILES[0])
    np.testing.assert_array_equal(pixels(stub, bare), expected[:1])


def test_k53_twenty_megabytes(stub):
    values = np.arange(5_000_000, dtype="<f4")
    answer = stub.ModelInfer(message("free", "FP32", [1, 5_000_000], raw=values.tobytes()))
    assert answer.raw_output_contents[0] == values.tobytes()


def test_k54_health_service(server):
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"


@pytest.mark.parametrize("order", ["ksrv, tritonclient.grpc", "tritonclient.grpc, ksrv"])
def test_k55_one_process(order):
    code = f"import {order}\nfrom ksrv.protocol import protobuf\nprotobuf.message_class('inference.ModelInferRequest')()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_string_elements(client):
    tensor = triton.InferInput("x", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"a", struct.pack("<I", 7)], dtype=object))
    assert client.infer("str", [tensor]).as_numpy("y").tolist() == [b"a", struct.pack("<I", 7)]


def test_unknown_model(client):
    with pytest.raises(InferenceServerException) as caught:
        client.get_model_metadata("nope")
    assert caught.value.status() == "StatusCode.NOT_FOUND"

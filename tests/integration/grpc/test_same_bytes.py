"""If the content of an answer is fixed, both gRPC servers send the same bytes, statuses and
metadata.

The native server ends a failed call with a single head, grpcio with a head and trailers: the
combined fields are compared. Maps have no order on the wire, so trace settings are compared as
messages. grpcio itself refuses unknown methods, without a request id.
"""

import grpc
import numpy as np
import pytest

from ksrv.protocol.protobuf import INFERENCE, message_class
from ksrv.testing import Server
from tests.support.models import write_all
from tests.support.wire.grpc_calls import infer_request

ROW = np.arange(4, dtype=np.float32)
RAW = ("x", "FP32", [1, 4])
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
OF_TRANSPORT = {"grpc-accept-encoding", "accept-encoding", "user-agent", "date", "server"}


@pytest.fixture(scope="module")
def channels(tmp_path_factory):
    models = write_all(tmp_path_factory.mktemp("models"))
    with (
        Server(models, grpc_server="native") as native,
        Server(models, grpc_server="grpcio") as grpcio,
        grpc.insecure_channel(native.grpc) as one,
        grpc.insecure_channel(grpcio.grpc) as other,
    ):
        yield one, other


def message(kind, /, **fields):
    return message_class(f"inference.{kind}")(**fields).SerializeToString()


def infer(*tensors, model="double", **fields):
    return infer_request(model, *tensors, **fields).SerializeToString()


def with_contents():
    made = infer_request("double", RAW)
    made.inputs[0].contents.fp32_contents.extend(ROW)
    return made.SerializeToString()


def with_output(name, **parameters):
    made = infer_request("double", RAW, raw=[ROW.tobytes()])
    wanted = made.outputs.add(name=name)
    for key, value in parameters.items():
        wanted.parameters[key].int64_param = value
    return made.SerializeToString()


CALLS = {
    "live": ("ServerLive", b""),
    "model": ("ModelMetadata", message("ModelMetadataRequest", name="double")),
    "no model": ("ModelMetadata", message("ModelMetadataRequest", name="none")),
    "raw": ("ModelInfer", infer(RAW, raw=[ROW.tobytes()])),
    "id": ("ModelInfer", infer(RAW, raw=[ROW.tobytes()], id="seven")),
    "parameters": ("ModelInfer", infer(RAW, raw=[ROW.tobytes()], parameters={"a": 1})),
    "contents": ("ModelInfer", with_contents()),
    "classes": ("ModelInfer", with_output("y", classification=2)),
    "rows without values": (
        "ModelInfer",
        infer(("x", "FP32", [2**30, 0]), raw=[b""], model="echo"),
    ),
    "no such model": ("ModelInfer", infer(RAW, raw=[ROW.tobytes()], model="none")),
    "short": ("ModelInfer", infer(RAW, raw=[ROW.tobytes()[:-1]])),
    "malformed": ("ModelInfer", b"\xff\xff"),
    "empty": ("ModelInfer", b""),
    "memory": ("SystemSharedMemoryStatus", b""),
}


def kept(metadata):
    return sorted(pair for pair in metadata or () if pair[0] not in OF_TRANSPORT)


def outcome(channel, path, sent):
    given = [("x-request-id", "fixed")]
    call = channel.unary_unary(path).future(sent, timeout=60, metadata=given)
    try:
        answer = call.result()
    except grpc.RpcError:
        answer = None
    head, end = kept(call.initial_metadata()), kept(call.trailing_metadata())
    return answer, call.code(), call.details() or "", {*head, *end}


@pytest.mark.parametrize("name", CALLS)
def test_unary_calls_have_equal_bytes(channels, name):
    method, sent = CALLS[name]
    native, grpcio = (outcome(one, f"/{INFERENCE}/{method}", sent) for one in channels)
    assert native == grpcio


def test_unknown_method_has_equal_status(channels):
    native, grpcio = (outcome(one, f"/{INFERENCE}/NoSuchMethod", b"") for one in channels)
    assert native[:3] == grpcio[:3]


def test_map_settings_are_equal(channels):
    native, grpcio = (outcome(one, f"/{INFERENCE}/TraceSetting", b"") for one in channels)
    read = message_class("inference.TraceSettingResponse").FromString
    assert read(native[0]) == read(grpcio[0])
    assert native[1:] == grpcio[1:]


@pytest.mark.parametrize("service", ["", "double", "none", INFERENCE])
def test_health_answers_have_equal_bytes(channels, service):
    sent = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    native, grpcio = (outcome(one, f"/{HEALTH}/Check", sent) for one in channels)
    assert native == grpcio


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (
            f"/{INFERENCE}/ModelStreamInfer",
            [
                CALLS[name][1]
                for name in ("raw", "id", "contents", "no such model", "short", "classes")
            ],
        ),
        (f"/{REFLECTION}/ServerReflectionInfo", [b"\x3a\x00", b"\x22\x04none"]),
    ],
    ids=["inference", "reflection"],
)
def test_streams_have_equal_bytes(channels, path, sent):
    def answers(channel):
        metadata = [("x-request-id", "fixed")]
        call = channel.stream_stream(path)(iter(sent), timeout=60, metadata=metadata)
        return list(call), call.code(), call.details() or "", kept(call.trailing_metadata())

    native, grpcio = map(answers, channels)
    assert native == grpcio
    assert len(native[0]) == len(sent)

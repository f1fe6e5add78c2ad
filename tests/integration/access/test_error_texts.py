"""Every text that a client's mistake brings back: bounded, escaped, and silent about this machine.

The corpus is sent to a real server over REST and gRPC. No mistake in it is a 5xx, INTERNAL or UNKNOWN.
"""

import http.client
import json
import urllib.parse

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ksrv.testing import Server
from tests.support.error_texts import check_text
from tests.support.images import files as image_files
from tests.support.models import write_double, write_mean, write_text

Z = "Z" * 5000
ESCAPES = "é\n\r\t\x00\x1b[31m\u202e\U0001f600" * 200
STRANGE = (Z, ESCAPES, '"' * 3000, "\\" * 3000, "../../etc/passwd", "%s%n{0}", "<script>", "")
X = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
HEADER = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    write_double(root)
    write_mean(root)
    write_text(root)
    with Server(root, allow_shared_memory=True, limits={"body": 1 << 20}) as running:
        yield running


def with_input(**fields):
    return {"inputs": [{**X, **fields}]}


def without_data(**fields):
    return {"inputs": [{**{key: X[key] for key in ("name", "shape", "datatype")}, **fields}]}


def strange_documents(s):
    """One document for each place where a client may write a text."""
    yield with_input(name=s)
    yield with_input(datatype=s)
    yield with_input(shape=[s])
    yield with_input(shape=s)
    yield with_input(data=s)
    yield with_input(data=[s, s, s, s])
    yield with_input(parameters={s: {s: s}})
    yield with_input(parameters={"binary_data_size": s})
    yield without_data(parameters={"shared_memory_region": s, "shared_memory_byte_size": 16})
    yield {**with_input(), "id": [s]}
    yield {**with_input(), "parameters": {s: [s]}}
    yield {**with_input(), "parameters": {"triton_" + s: 1}}
    yield {**with_input(), "parameters": {"timeout": s}}
    yield {**with_input(), "parameters": {"sequence_id": [s]}}
    yield {**with_input(), "parameters": s}
    yield {**with_input(), "outputs": [{"name": s}]}
    yield {**with_input(), "outputs": [{"name": "y"}, {"name": s}, {"name": s}]}
    yield {**with_input(), "outputs": [{"name": "y", "parameters": {"binary_data": s}}]}
    yield {**with_input(), "outputs": [{"name": "y", "parameters": {"classification": s}}]}
    region = {"shared_memory_region": s, "shared_memory_byte_size": 16}
    yield {**with_input(), "outputs": [{"name": "y", "parameters": region}]}
    yield {**with_input(), "outputs": s}
    yield {"inputs": s}
    yield {"inputs": [X, {**X, "name": s}]}
    yield {"inputs": [{**X, "name": s}, {**X, "name": s}]}
    yield s


def bodies():
    """Path, headers and body of bad requests."""
    double = "/v2/models/double/infer"
    for s in STRANGE:
        for document in strange_documents(s):
            yield double, {}, json.dumps(document).encode()
        yield double, {}, s.encode()
        yield double, {}, b'{"inputs":' + s.encode()
        quoted = urllib.parse.quote(s[:1000], safe="")
        if s and "%2F" not in quoted:
            yield f"/v2/models/{quoted}/infer", {}, b"{}"
            yield f"/v2/models/double/versions/{quoted}/infer", {}, b"{}"
            yield f"/v2/{quoted}", {}, b"{}"
            yield f"/v2/repository/models/{quoted}/load", {}, b"{}"
            yield (
                f"/v2/systemsharedmemory/region/{quoted}/register",
                {},
                json.dumps({"key": s, "byte_size": 4}).encode(),
            )
        yield "/v2/repository/models/double/load", {}, json.dumps({"parameters": {s: s}}).encode()
        yield "/v2/repository/index", {}, json.dumps({"ready": s}).encode()
        header = s[:500].encode("ascii", "ignore").decode()
        header = "".join(c for c in header if c.isprintable())
        yield double, {HEADER: header or "-"}, json.dumps(with_input()).encode()
        yield double, {"Content-Encoding": header or "br"}, b"{}"
    for shape in (
        [-1, 4],
        [2**40],
        [2**31 - 1] * 3,
        [1] * 40,
        [0, 4],
        [1, 3],
        [4],
        [],
        [1.5],
        [True],
        None,
    ):
        yield double, {}, json.dumps(with_input(shape=shape)).encode()
    for data in (
        None,
        [],
        [1],
        [1, 2, 3, 4, 5],
        [1, 2, 3, "4"],
        {"a": 1},
        [None] * 4,
        [[1], 2, 3],
        [10**400] * 4,
    ):
        yield double, {}, json.dumps(with_input(data=data)).encode()
    for depth in (65, 5000):
        yield double, {}, b'{"inputs":' + b"[" * depth
        yield "/v2/repository/index", {}, b"[" * depth
    for value in ("-1", "5", "999999999", "99999999999999999999"):
        yield double, {HEADER: value}, json.dumps(with_input()).encode()
    yield double, {}, b"\xff\xfe\xff"
    yield double, {}, bytes(range(256))
    yield double, {"Content-Encoding": "gzip"}, b"\x1f\x8b nothing of the kind"
    yield double, {}, b" " * (1 << 20) + b"{}"
    files = {
        "cut": image_files.jpeg(30, 30)[:300],
        "noise": np.random.default_rng(1).bytes(2000),
        "grey": image_files.png(8, 8, "L"),
        "text": b"a text",
        "empty": b"",
        "gif": b"GIF89a" + bytes(50),
        "bomb": image_files.png_claiming(60_000, 60_000),
        "jpeg bomb": image_files.jpeg_claiming(65_000, 65_000),
    }
    for file in files.values():
        for count in (1, 2):
            entry = {"name": "image", "shape": [count], "datatype": "BYTES"}
            for size in (len(file), str(len(file)), ",".join([str(len(file))] * count)):
                entry["parameters"] = {"binary_data_size": size}
                head = json.dumps({"inputs": [entry]}).encode()
                yield "/v2/models/mean/infer", {HEADER: str(len(head))}, head + file * count


def test_rest(server):
    host, port = server.http.rsplit(":", 1)
    statuses = {}
    texts = set()
    for path, headers, body in bodies():
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        assert response.status < 500, (answer, path, body[:100])
        statuses[response.status] = statuses.get(response.status, 0) + 1
        if response.status != 200:
            assert response.headers["Content-Type"] == "application/json"
            text = json.loads(answer)["error"]
            check_text(text, marker="Z")
            texts.add(text)
    assert statuses[400] > 200 and {404, 413, 415} <= statuses.keys(), statuses
    assert len(texts) > 100


def messages():
    """Bad ModelInferRequests."""

    def made(model="double", name="x", datatype="FP32", shape=(1, 4), values=(1, 2, 3, 4)):
        built = service_pb2.ModelInferRequest(model_name=model)
        entry = built.inputs.add(name=name, datatype=datatype, shape=shape)
        entry.contents.fp32_contents.extend(values)
        return built

    for s in STRANGE:
        for fields in ({"model": s}, {"name": s}, {"datatype": s}):
            yield made(**fields)
        built = made()
        built.model_version = s or "x"
        yield built
        for owner in (lambda b: b, lambda b: b.inputs[0], lambda b: b.outputs.add(name="y")):
            for name, value in (("triton_" + s, "1"), ("timeout", s), ("sequence_start", s),
                                ("shared_memory_region", s)):  # fmt: skip
                built = made()
                owner(built).parameters[name].string_param = value
                yield built
        built = made()
        built.outputs.add(name=s)
        yield built
        built = made()
        built.inputs.add(name=s, datatype="FP32", shape=[1, 4])
        yield built
        built = made("mean", "image", "BYTES", [1], ())
        built.inputs[0].contents.bytes_contents.append(s.encode())
        yield built
        built = made(values=())
        built.inputs[0].ClearField("contents")
        built.raw_input_contents.append(s.encode())
        yield built
    yield made(shape=[-1, 4])
    yield made(shape=[2**62, 4])
    yield made(shape=[1] * 40)
    yield made(values=[1])
    yield made(values=[])


def test_grpc(server):
    codes = {}
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [(stub.ModelInfer, message) for message in messages()]
        calls += [(raw, bytes([byte]) * 40) for byte in range(0, 256, 5)]
        for s in (Z, ESCAPES):
            calls += [
                (stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=s)),
                (stub.ModelConfig, service_pb2.ModelConfigRequest(name="double", version=s)),
                (stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name=s)),
                (stub.ModelReady, service_pb2.ModelReadyRequest(name=s)),
                (stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(repository_name=s)),
                (stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest(model_name=s)),
                (
                    stub.SystemSharedMemoryRegister,
                    service_pb2.SystemSharedMemoryRegisterRequest(name=s[:99], key=s, byte_size=4),
                ),
                (
                    stub.SystemSharedMemoryStatus,
                    service_pb2.SystemSharedMemoryStatusRequest(name=s),
                ),
            ]
        for call, message in calls:
            code, text = grpc.StatusCode.OK, ""
            try:
                call(message, timeout=60)
            except grpc.RpcError as error:
                code, text = error.code(), error.details()
            assert code.name not in ("INTERNAL", "UNKNOWN"), (text, message)
            codes[code.name] = codes.get(code.name, 0) + 1
            if code.name != "OK":
                check_text(text, marker="Z")
    assert codes["INVALID_ARGUMENT"] > 50 and {"NOT_FOUND", "UNIMPLEMENTED"} <= codes.keys(), codes

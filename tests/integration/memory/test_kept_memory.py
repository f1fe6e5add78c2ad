"""Handlers that keep their memory and overwrite it, and clients that read late: each reads the right numbers.

The first client reads only the beginning of its answer until a second client has its answer, which the
handler has put into the same memory.
"""

import json
import shutil
import socket
import struct

import numpy as np
import pytest
import requests
from tritonclient.grpc import service_pb2

from ksrv.protocol.protobuf import INFERENCE
from ksrv.testing import Server
from tests.support import memory_owners
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request
from tests.support.wire.http2_client import Http2Client
from tests.support.wire.http_reader import read_message

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch")

KINDS = sorted(memory_owners.KEPT)
MEBIBYTE = 1 << 18
"""In numbers of FP32."""
REST_SIZE, GRPC_SIZE, CHUNK_SIZE = 8 * MEBIBYTE, MEBIBYTE, MEBIBYTE // 4
"""More than the kernel takes of a connection, and more than a window of HTTP/2."""

KEEPER = '''
from pathlib import Path

import owners

from ksrv import BaseHandler


class Memory(BaseHandler):
    """Keeps memory: the first two numbers of x are its kind and what is written there, the third its size."""

    def initialize(self, context):
        self.asked = self.kept = None

    def fill(self, x):
        kind, number, size = x[0].tolist()
        name = sorted(owners.KEPT)[int(kind)]
        if self.asked != (name, size):
            self.asked, self.kept = (name, size), owners.KEPT[name](int(size))
        writer, show = self.kept
        writer[:] = number
        return {"y": show().reshape(1, -1)}

    def chunks(self, x):
        """Yield 1 to 8 out of the same memory; tell when half of them are made."""
        made = Path(self.context.batch.requests[0].parameters["made"])
        for number in range(1, 9):
            x[0, 1] = number
            yield self.fill(x)
            if number == 4:
                made.touch()


class Keeper(Memory):
    def inference(self, x):
        way = self.context.batch.requests[0].parameters.get("way")
        if way == "generator":
            return self.chunks(x)
        if way == "sender":
            for chunk in self.chunks(x):
                last = chunk
                if x[0, 1] < 8:
                    self.context.batch.send(chunk)
            return last
        return self.fill(x)


class Coroutine(Memory):
    async def inference(self, x):
        way = self.context.batch.requests[0].parameters.get("way")
        return self.later(x) if way == "generator" else self.fill(x)

    async def later(self, x):
        for chunk in self.chunks(x):
            yield chunk
'''
YAML = """
handler: handler.py:{}
executor: {}
inputs: [{{name: x, datatype: FP32, shape: [-1, 3]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, {}]}}]
warmup: false
"""
MODELS = {
    f"{name}_{executor}": YAML.format(name.capitalize(), executor, -1)
    for name in ("keeper", "coroutine")
    for executor in ("inline", "process")
} | {"fixed_inline": YAML.format("Keeper", "inline", REST_SIZE)}
REPRESENTATIVES = [
    "array", "capsule", "__array_interface__", "mmap", "tensor", "array of a tensor over an array",
    "attribute of TorchScript",
]  # fmt: skip
"""Of the kinds of owners. The plain handler in the worker has all: its answers could be sent from where they lie."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("keepers")
    for name, yaml in MODELS.items():
        folder = root / name
        folder.mkdir()
        (folder / "handler.py").write_text(KEEPER)
        (folder / "model.yaml").write_text(yaml)
        shutil.copy(memory_owners.__file__, folder / "owners.py")
    with Server(root) as running:
        yield running


def document(kind, number, size):
    data = [KINDS.index(kind), number, size]
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": data}],
        "parameters": {"binary_data_output": True},
    }


def numbers_of(raw):
    return set(np.unique(np.frombuffer(raw, "<f4")).tolist())


class LateRest:
    """A request over HTTP/1.1 whose answer has begun."""

    def __init__(self, server, model, kind, number):
        host, _, port = server.http.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.socket.settimeout(60)
        self.socket.connect((host, int(port)))
        body = json.dumps(document(kind, number, REST_SIZE)).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: k\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        self.socket.recv(1, socket.MSG_PEEK)

    def numbers(self):
        """Read the answer; return the numbers in it."""
        head, body, _ = read_message(self.socket)
        self.socket.close()
        assert head.startswith(b"HTTP/1.1 200 "), (head, body[:500])
        return numbers_of(body[-4 * REST_SIZE :])


class LateGrpc:
    """A call whose answer has begun."""

    def __init__(self, server, model, kind, number):
        raw = np.array([KINDS.index(kind), number, GRPC_SIZE], "<f4").tobytes()
        asked = infer_request(model, ("x", "FP32", [1, 3]), raw=[raw]).SerializeToString()
        self.client = Http2Client(server.grpc, window=1 << 16, reads=False)
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        self.stream = self.client.begin("POST", f"/{INFERENCE}/ModelInfer", fields)
        self.client.send(self.stream, b"\0" + struct.pack(">I", len(asked)) + asked, end=True)
        while not self.client.answers[self.stream].body:
            self.client.read()

    def numbers(self):
        """Open the windows and read the answer; return the numbers in it."""
        self.client.h2.increment_flow_control_window(1 << 24)
        self.client.h2.increment_flow_control_window(1 << 24, self.stream)
        self.client.flush()
        message = self.client.wait(self.stream).body
        self.client.socket.close()
        answer = service_pb2.ModelInferResponse.FromString(message[5:])
        return numbers_of(answer.raw_output_contents[0])


LATE = {"rest": LateRest, "grpc": LateGrpc}


def ask(server, model, kind, number, size):
    """Ask and read at once; return the numbers in the answer."""
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer", json=document(kind, number, size), timeout=60
    )
    assert answer.status_code == 200, answer.text
    return numbers_of(answer.content[-4 * size :])


def check(server, model, kind, protocol):
    size = REST_SIZE if protocol == "rest" else GRPC_SIZE
    for number in (1.0, 3.0):
        late = LATE[protocol](server, model, kind, number)
        assert ask(server, model, kind, number + 1, size) == {number + 1}
        assert late.numbers() == {number}


@pytest.mark.parametrize("protocol", LATE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_in_the_worker(server, kind, protocol):
    check(server, "keeper_inline", kind, protocol)


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_a_handler_with_declared_dimensions(server, kind):
    check(server, "fixed_inline", kind, "rest")


@pytest.mark.parametrize("protocol", LATE)
@pytest.mark.parametrize("kind", REPRESENTATIVES)
@pytest.mark.parametrize("model", ["keeper_process", "coroutine_inline", "coroutine_process"])
def test_coroutines_and_handlers_in_processes(server, model, kind, protocol):
    check(server, model, kind, protocol)


@pytest.mark.parametrize("kind", REPRESENTATIVES)
@pytest.mark.parametrize(
    ("model", "way"),
    [("keeper", "generator"), ("keeper", "sender"), ("coroutine", "generator")],
)
@pytest.mark.parametrize("executor", ["inline", "process"])
def test_streams(server, tmp_path, model, way, executor, kind):
    """The client takes nothing until the handler has overwritten its first chunks."""
    made = tmp_path / "made"
    raw = np.array([KINDS.index(kind), 0, CHUNK_SIZE], "<f4").tobytes()
    asked = infer_request(
        f"{model}_{executor}",
        ("x", "FP32", [1, 3]),
        raw=[raw],
        parameters={"made": str(made), "way": way},
    ).SerializeToString()
    with Http2Client(server.grpc, window=0, reads=False) as client:
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        stream = client.begin("POST", f"/{INFERENCE}/ModelStreamInfer", fields)
        client.send(stream, b"\0" + struct.pack(">I", len(asked)) + asked, end=True)
        wait_until(made.exists)
        client.h2.increment_flow_control_window(1 << 24)
        client.h2.increment_flow_control_window(1 << 24, stream)
        client.flush()
        body = client.wait(stream).body
    found = []
    while body:
        length = 5 + int.from_bytes(body[1:5], "big")
        answer = service_pb2.ModelStreamInferResponse.FromString(body[5:length])
        assert not answer.error_message
        found += [numbers_of(one) for one in answer.infer_response.raw_output_contents]
        body = body[length:]
    assert found == [{float(number)} for number in range(1, 9)]

"""Mixed requests to handlers that keep, share, overwrite and stream their memory: each client reads what it asked for.

Every request has special numbers, an id, a parameter and a header, and each of them is looked for in its answer. Some
clients read late, and small requests are joined in batches of several clients.
"""

import http.client
import json
import random
import socket
import struct
import threading
from collections import Counter

import numpy as np
import pytest

from ksrv.protocol.protobuf import INFERENCE, message_class
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.grpc_calls import connect, infer_request, method, stub_infer
from tests.support.wire.http2_wire import WINDOW_UPDATE, Wire, frame
from tests.support.wire.http_reader import read_message

HANDLER = '''
import asyncio

import numpy as np

from ksrv import BaseHandler


class Memory(BaseHandler):
    """Answers 2 * x in memory of a kind that changes from batch to batch, and writes -1 to the memory of earlier answers."""

    def initialize(self, context):
        self.batches = 0
        self.kept = []
        self.buffers = {}

    def buffer(self, x):
        found = self.buffers.get(x.size)
        if found is None:
            if len(self.buffers) > 50:
                self.buffers.clear()
            found = self.buffers[x.size] = np.empty(x.size + 16, np.float32)
        found[:] = -1
        return found[8:-8].reshape(x.shape)

    def echo(self, batch):
        """Send each client's header and parameter back."""
        for request in batch.requests:
            pattern = request.headers.get("x-pattern")
            if pattern is not None:
                batch.set_header(request.slice.start, "x-pattern", pattern)
            if "pattern" in request.parameters:
                batch.set_parameter(request.slice.start, "pattern", request.parameters["pattern"])

    def answer(self, x):
        self.batches += 1
        for one in self.kept:
            one.fill(-1)
        del self.kept[:-4]
        kind = self.batches % 8
        if kind == 0:
            return x * 2
        if kind == 1:
            self.kept.append(x * 2)
            return self.kept[-1]
        if kind in (2, 3):  # the memory of the request
            if not x.flags.writeable:
                x = x.copy()
            x *= 2
            if kind == 3:
                self.kept.append(x)
            return x
        y = self.buffer(x)
        np.multiply(x, 2, out=y)
        if kind == 4:
            return np.from_dlpack(y)
        if kind == 5:
            return np.asarray(memoryview(y))
        return y if kind == 6 else y[:, ::-1][:, ::-1]

    def chunks(self, x):
        x = x.copy()
        y = self.buffer(x)
        for number in range(3):
            np.multiply(x, 2, out=y)
            y += number
            yield y
        y.fill(-1)


class Plain(Memory):
    def handle(self, batch, context):
        self.echo(batch)
        return {"y": self.answer(batch["x"])}


class Coroutine(Memory):
    async def handle(self, batch, context):
        self.echo(batch)
        await asyncio.sleep(0)
        return {"y": self.answer(batch["x"])}


class Stream(Memory):
    def handle(self, batch, context):
        self.echo(batch)
        for chunk in self.chunks(batch["x"]):
            yield {"y": chunk}


class CoroutineStream(Memory):
    async def handle(self, batch, context):
        self.echo(batch)
        x = batch["x"].copy()
        for number in range(3):
            await asyncio.sleep(0)
            y = self.buffer(x)
            np.multiply(x, 2, out=y)
            y += number
            yield {"y": y}
'''
YAML = """
handler: handler.py:{}
executor: {}
inputs: [{{name: x, datatype: FP32, shape: [-1, {width}]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, {width}]}}]
batching: {{max_batch_size: 16, max_delay_ms: 1}}
queue_size: 1000
warmup: false
"""
FIXED = 256
PLAIN = [
    f"{kind}_{executor}"
    for executor in ("inline", "process")
    for kind in ("fixed", "open", "coroutine")
]
STREAMS = [
    f"{kind}_{executor}" for executor in ("inline", "process") for kind in ("stream", "later")
]
CLASSES = {
    "fixed": "Plain",
    "open": "Plain",
    "coroutine": "Coroutine",
    "stream": "Stream",
    "later": "CoroutineStream",
}
LATE_REST, LATE_GRPC = 1 << 21, 1 << 18
"""Numbers of FP32: more than the kernel takes of a connection, and more than a window of HTTP/2."""
WAYS = {
    "binary": 45,
    "json": 20,
    "grpc": 25,
    "rest stream": 5,
    "grpc stream": 4.5,
    "late rest": 0.2,
    "late grpc": 0.3,
}
"""Of a hundred requests."""
CLIENTS = 8
UNREAD = 20
"""Requests that a client makes before it reads an earlier answer. The server closes connections that stall."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    for name in PLAIN + STREAMS:
        kind, _, executor = name.partition("_")
        folder = write_model(root, name, HANDLER, "")
        width = FIXED if kind == "fixed" else -1
        (folder / "model.yaml").write_text(YAML.format(CLASSES[kind], executor, width=width))
    with Server(root) as running:
        yield running


class Asked:
    """One request, and what its answer must be."""

    def __init__(self, number, choice, way):
        self.id = f"request {number}"
        self.model = choice.choice(STREAMS if "stream" in way else PLAIN)
        rows = choice.choice([1, 1, 1, 2, 3])
        width = choice.choice([1, 5, 64, 64, 64, 1000, 4000])
        if way == "late rest":
            self.model, rows, width = choice.choice(PLAIN[1:3] + PLAIN[4:]), 1, LATE_REST
        elif way == "late grpc":
            self.model, rows, width = choice.choice(PLAIN[1:3] + PLAIN[4:]), 1, LATE_GRPC
        elif self.model.startswith("fixed"):
            width = FIXED
        self.x = (np.arange(rows * width) % 8 + number * 8).astype("<f4").reshape(rows, width)
        self.pattern = f"{self.id} by {way}" if choice.random() < 0.5 else None

    @property
    def parameters(self):
        return {} if self.pattern is None else {"pattern": self.pattern}

    def document(self, binary):
        entry = {"name": "x", "datatype": "FP32", "shape": list(self.x.shape)}
        parameters = self.parameters
        if binary:
            entry["parameters"] = {"binary_data_size": self.x.nbytes}
            parameters = {**parameters, "binary_data_output": True}
        else:
            entry["data"] = self.x.reshape(-1).tolist()
        return json.dumps({"id": self.id, "inputs": [entry], "parameters": parameters}).encode()

    def body(self):
        """Return the body in the binary form, and its header fields."""
        head = self.document(True)
        fields = {"Inference-Header-Content-Length": str(len(head)), **self.fields}
        return head + self.x.tobytes(), fields

    @property
    def fields(self):
        return {} if self.pattern is None else {"x-pattern": self.pattern}

    def message(self):
        return infer_request(
            self.model,
            ("x", "FP32", self.x.shape),
            raw=[self.x.tobytes()],
            id=self.id,
            parameters=self.parameters,
        )

    def faults(self, y, id, parameters, pattern, add=0):
        """Return what of an answer is not this request's."""
        found = []
        if y.size != self.x.size or not (y.reshape(self.x.shape) == self.x * 2 + add).all():
            found.append(f"{self.id} to {self.model} has the numbers {np.unique(y)[:20]}")
        if (id, pattern) != (self.id, self.pattern) or parameters.get("pattern") != self.pattern:
            found.append(f"{self.id} ({self.pattern}) has {id!r}, {pattern!r}, {parameters}")
        return found


def http_answer(response):
    """Return the numbers, id, parameters and pattern of an answer over HTTP."""
    status, headers, body = response
    assert status == 200, body[:500]
    length = headers.get("inference-header-content-length")
    document = json.loads(body[: int(length)] if length else body)
    y = document["outputs"][0].get("data")
    y = np.frombuffer(body[int(length) :], "<f4") if length else np.array(y, np.float32)
    return y, document["id"], document.get("parameters", {}), headers.get("x-pattern")


def grpc_answer(message, metadata):
    parameters = {
        name: one.string_param
        for name, one in message.parameters.items()
        if name != "triton_final_response"
    }
    y = np.frombuffer(message.raw_output_contents[0], "<f4")
    return y, message.id, parameters, dict(metadata or ()).get("x-pattern")


class LateRest:
    """A request over HTTP/1.1 whose answer is not read yet."""

    def __init__(self, server, asked):
        self.asked = asked
        host, _, port = server.http.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.socket.settimeout(120)
        self.socket.connect((host, int(port)))
        body, fields = asked.body()
        lines = {"Host": "k", "Content-Length": len(body), **fields}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.socket.sendall(f"POST /v2/models/{asked.model}/infer HTTP/1.1\r\n{head}\r\n".encode())
        self.socket.sendall(body)

    def faults(self):
        with self.socket:
            head, body, _ = read_message(self.socket)
        lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): text for name, text in (one.split(": ", 1) for one in lines[1:])}
        answer = int(lines[0].split()[1]), headers, bytes(body)
        return self.asked.faults(*http_answer(answer))


class LateGrpc:
    """A call whose answer has begun, and waits for its window."""

    def __init__(self, server, asked):
        self.asked = asked
        message = asked.message().SerializeToString()
        self.client = Wire(server.grpc)
        self.stream = self.client.call(f"/{INFERENCE}/ModelInfer", fields=asked.fields)
        self.client.send(self.stream, b"\0" + struct.pack(">I", len(message)) + message, last=True)

    def faults(self):
        with self.client:
            for stream in (0, self.stream):
                self.client.socket.sendall(
                    frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1 << 24))
                )
            lines = self.client.until_ended(self.stream).decode().split("\n")
        content = b"".join(self.client.data)[5:]
        message = message_class("inference.ModelInferResponse").FromString(content)
        trailers = dict(line.split(": ", 1) for line in lines)
        return self.asked.faults(*grpc_answer(message, trailers))


class Client:
    """A client on a separate thread: its requests follow each other, except for late reads."""

    def __init__(self, server, numbers, seed):
        self._server = server
        self._numbers = numbers
        self._choice = random.Random(seed)
        host, _, port = server.http.rpartition(":")
        self._http = http.client.HTTPConnection(host, int(port), timeout=120)
        self._late = []
        self.faults = []
        self.sent = Counter()
        self.failure = None

    def run(self):
        try:
            with connect(self._server.grpc) as self._channel:
                self._infer = stub_infer(self._channel)
                self._stream_infer = method(self._channel, "ModelStreamInfer", kind="stream_stream")
                for number in self._numbers:
                    [way] = self._choice.choices(list(WAYS), list(WAYS.values()))
                    ask = getattr(self, "_" + way.replace(" ", "_"))
                    self.faults += ask(Asked(number, self._choice, way))
                    self.sent[way] += 1
                    while self._late and self._late[0][0] <= self.sent.total() - UNREAD:
                        self.faults += self._late.pop(0)[1].faults()
                for _, late in self._late:
                    self.faults += late.faults()
        except BaseException as error:
            self.failure = error

    def _post(self, asked, body, fields):
        self._http.request("POST", f"/v2/models/{asked.model}/infer", body, fields)
        response = self._http.getresponse()
        headers = {name.lower(): text for name, text in response.getheaders()}
        return response.status, headers, response.read()

    def _binary(self, asked):
        return asked.faults(*http_answer(self._post(asked, *asked.body())))

    def _json(self, asked):
        return asked.faults(*http_answer(self._post(asked, asked.document(False), asked.fields)))

    def _grpc(self, asked):
        message, call = self._infer.with_call(
            asked.message(), timeout=120, metadata=list(asked.fields.items())
        )
        return asked.faults(*grpc_answer(message, call.trailing_metadata()))

    def _rest_stream(self, asked):
        fields = {**asked.fields, "Accept": "application/jsonl"}
        status, headers, body = self._post(asked, asked.document(False), fields)
        assert status == 200, body[:500]
        found = [json.loads(line) for line in body.splitlines()]
        faults = [] if len(found) == 3 else [f"{asked.id} has {len(found)} chunks"]
        for number, one in enumerate(found):
            # Parameters are on the last answer of a stream.
            own = one.get("parameters", {}) or asked.parameters
            y = np.array(one["outputs"][0]["data"], np.float32)
            faults += asked.faults(y, one["id"], own, headers.get("x-pattern"), number)
        return faults

    def _grpc_stream(self, asked):
        metadata = list(asked.fields.items())
        faults, count = [], 0
        for answer in self._stream_infer(iter([asked.message()]), timeout=120, metadata=metadata):
            assert not answer.error_message
            y, id, parameters, _ = grpc_answer(answer.infer_response, None)
            own = parameters or asked.parameters
            faults += asked.faults(y, id, own, asked.pattern, count)
            count += 1
        return faults if count == 3 else [*faults, f"{asked.id} has {count} chunks"]

    def _late_rest(self, asked):
        return self._begun(LateRest(self._server, asked))

    def _late_grpc(self, asked):
        return self._begun(LateGrpc(self._server, asked))

    def _begun(self, late):
        """Keep an answer unread while others are made."""
        self._late.append((self.sent.total(), late))
        return []


@pytest.mark.parametrize(
    "count",
    [2_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_each_client_reads_the_right_answers(server, count):
    clients = [Client(server, range(one, count, CLIENTS), one) for one in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        if client.failure is not None:
            raise client.failure
    assert [fault for client in clients for fault in client.faults][:5] == []
    sent = sum((client.sent for client in clients), Counter())
    assert sum(sent.values()) == count
    assert set(sent) == set(WAYS)

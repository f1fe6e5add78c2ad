"""Streaming models for the tests, and a client that reads their answers piece by piece."""

import http.client
import json
import socket
import ssl
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wire.grpc_calls import infer_request
from tests.support.wire.http2_wire import Wire

WORDS = '''
import itertools
import time
from pathlib import Path

from ksrv import BaseHandler, InferenceError


class Panic(BaseException):
    """An exception that no handler should raise."""


class Words(BaseHandler):
    """Answers a text word by word, a generator for each row."""

    def inference(self, text):
        batch = self.context.batch
        return [
            self.words(bytes(one).decode(), batch.requests[batch.request_of(row)].parameters)
            for row, one in enumerate(text)
        ]

    def words(self, text, parameters):
        closed, pause = parameters.get("closed"), float(parameters.get("pause", 0))
        try:
            words = itertools.cycle(text.split())
            count = len(text.split()) * int(parameters.get("times", 1))
            for word in itertools.islice(words, count):
                if pause:
                    time.sleep(pause)
                if word == "refuse":
                    raise InferenceError("this word is refused", 422)
                if word == "panic":
                    raise Panic("secret")
                if word == "exit":
                    raise SystemExit(3)
                yield word + " "
        finally:
            if closed:
                Path(closed).touch()
'''

COUNT = '''
import asyncio

import numpy as np

from ksrv import BaseHandler


class Count(BaseHandler):
    """Counts to n, for all rows together."""

    def inference(self, n):
        for value in range(1, int(n.max()) + 1):
            yield {"value": np.where(n >= value, value, 0)}

    def postprocess(self, outputs):
        for row, (value,) in enumerate(self.context.batch["n"]):
            if outputs["value"][row, 0] == value:
                self.context.batch.end(row)
        return outputs
'''

LATER = '''
import asyncio
from pathlib import Path

from ksrv import BaseHandler


class Later(BaseHandler):
    """Answers a text letter by letter, from an event loop; at a full stop it is silent for a minute."""

    async def inference(self, text):
        parameters = self.context.batch.requests[0].parameters
        try:
            for letter in bytes(text[0]).decode():
                await asyncio.sleep(60 if letter == "." else float(parameters.get("pause", 0)))
                if letter == "!":
                    raise RuntimeError("secret")
                yield [letter] * len(text)
        finally:
            if "closed" in parameters:
                Path(parameters["closed"]).touch()
'''

TEXT = """
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs: [{name: piece, datatype: BYTES, shape: [-1]}]
warmup: false
"""
NUMBER = """
inputs: [{name: n, datatype: INT64, shape: [-1, 1]}]
outputs: [{name: value, datatype: INT64, shape: [-1, 1]}]
batching: {max_batch_size: 4, max_delay_ms: 500}
warmup: false
"""


def write_words(root: Path, name: str = "words", yaml: str = "") -> Path:
    """A model that answers a text word by word."""
    return write_model(root, name, WORDS, TEXT + yaml)


def write_count(root: Path, name: str = "count", yaml: str = "") -> Path:
    """A model that counts, in joined batches."""
    return write_model(root, name, COUNT, NUMBER + yaml)


def write_later(root: Path, name: str = "later", yaml: str = "") -> Path:
    """A model whose inference is an asynchronous generator."""
    return write_model(root, name, LATER, TEXT + yaml)


def text_request(text: str, id: str = "", **parameters: Any) -> dict[str, Any]:
    """Return the JSON of an infer request with one text."""
    document: dict[str, Any] = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]
    }
    return (
        document | ({"id": id} if id else {}) | ({"parameters": parameters} if parameters else {})
    )


def number_request(*numbers: int) -> dict[str, Any]:
    """Return the JSON of an infer request to the model that counts."""
    shape = [len(numbers), 1]
    return {"inputs": [{"name": "n", "datatype": "INT64", "shape": shape, "data": numbers}]}


class StreamedResponse:
    """A response that is read event by event; also a context that closes its connection."""

    def __init__(
        self,
        server: Server,
        path: str,
        document: Any,
        accept: str | None = "text/event-stream",
        *,
        context: ssl.SSLContext | None = None,
        headers: dict[str, str] | None = None,
        receive_buffer: int = 0,
    ) -> None:
        host, _, port = server.http.rpartition(":")
        made: http.client.HTTPConnection
        if context is None:
            made = http.client.HTTPConnection(host, int(port), timeout=60)
        else:
            made = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        if receive_buffer:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.settimeout(60)
            sock.connect((host, int(port)))
            made.sock = sock
        self.connection = made
        sent = dict(headers or {}) | ({"Accept": accept} if accept else {})
        made.request("POST", path, json.dumps(document), sent)
        self.response = made.getresponse()
        self.status = self.response.status
        self.type = self.response.headers["Content-Type"]

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield name and document of each event, "" if it has no name."""
        name = ""
        for line in iter(self.response.readline, b""):
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
                name = ""

    def lines(self) -> Iterator[Any]:
        """Yield the document of each line."""
        for line in iter(self.response.readline, b""):
            if line.strip():
                yield json.loads(line)

    def __enter__(self) -> "StreamedResponse":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def ask_rest_unread(server: Server, model: str, parameters: dict[str, Any]) -> StreamedResponse:
    """Ask a model of one number for a stream, and read nothing of it; it is a context that leaves."""
    given = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    asked = {"inputs": [given], "parameters": parameters}
    return StreamedResponse(server, f"/v2/models/{model}/infer", asked, receive_buffer=4096)


def ask_grpc_unread(server: Server, model: str, parameters: dict[str, Any]) -> Wire:
    """The same over gRPC; the window of the stream stays as it is."""
    raw = [struct.pack("<f", 1)]
    asked = infer_request(model, ("x", "FP32", [1, 1]), raw=raw, parameters=parameters)
    message = asked.SerializeToString()
    client = Wire(server.grpc)
    stream = client.call("/inference.GRPCInferenceService/ModelStreamInfer")
    client.send(stream, b"\0" + struct.pack(">I", len(message)) + message)
    return client


ASK_UNREAD = {"rest": ask_rest_unread, "grpc": ask_grpc_unread}


def pieces(documents: Iterable[Any]) -> list[Any]:
    """Return the data of the first output of each document, flat."""
    return [value for document in documents for value in document["outputs"][0]["data"]]

"""The requests of the workloads in the forms that the servers read, and the check of an answer."""

import base64
import http.client
import json
import re
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from work import WORDS, OnnxModel, first_ten, padded

from ksrv.protocol.protobuf import message_class

METHOD = "/inference.GRPCInferenceService/ModelInfer"
WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
LOADGEN = {"picture": "W5", "text": "W8", "tree": "W6"}
"""Models of MLPerf's LoadGen, and the workload whose route they use."""
CLIENTS = {"W1": 16, "W2": 8, "W3": 4, "W4": 1, "W5": 16, "W6": 16, "W7": 16}
VOCABULARY, LONGEST = 30522, 512
GREY_LEVELS = 6
"""How far pixels of other decoders and resizes may be from the expected pixels, on average."""


@cache
def jpegs() -> tuple[bytes, ...]:
    """Return eight JPEGs of 640x427."""
    y, x = np.mgrid[0:427, 0:640]
    planes = [128 + 90 * np.sin(x / (9 + i)) * np.cos(y / (7 + i)) for i in range(3)]
    noise = np.random.default_rng(0).normal(0, 14, (427, 640, 3))
    picture = (np.stack(planes, -1) + noise).clip(0, 255).astype(np.uint8)
    quality = [cv2.IMWRITE_JPEG_QUALITY, 90]
    return tuple(
        cv2.imencode(".jpg", np.roll(picture, 16 * i, axis=1), quality)[1].tobytes()
        for i in range(8)
    )


@cache
def tensor(workload: str, seed: int = 2) -> np.ndarray:
    """Return an input of a workload; W3 has its pictures as objects."""
    rng = np.random.default_rng(seed)
    shapes = {"W1": (1, 16), "W2": (1, 224, 224, 3), "W4": (1, 16 << 20), "W5": (1, 3, 224, 224)}
    if workload == "W3":
        return np.array(jpegs(), object)
    if workload == "W7":
        return np.array([b"Once"], object)
    if workload == "W8":
        lengths = sentence_lengths()
        return rng.integers(0, VOCABULARY, (1, lengths[seed % len(lengths)]))
    return rng.random(shapes.get(workload, (1, 30)), np.float32)


@cache
def sentence_lengths() -> list[int]:
    """Return how many words and marks the sentences of the documents have, in random order."""
    found = []
    for page in sorted((Path(__file__).parents[2] / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\|", text):
            length = len(re.findall(r"\w+|[^\w\s]", sentence))
            if length > 1:
                found.append(min(length, LONGEST))
    np.random.default_rng(0).shuffle(found)
    return found


@cache
def _model(name: str) -> OnnxModel:
    return OnnxModel(name)


def expected(workload: str, x: np.ndarray) -> np.ndarray:
    """Return the values that answer an input of a workload."""
    if workload == "W3":
        decoded: list[Any] = [
            cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR_RGB) for file in x
        ]
        resized = np.stack([cv2.resize(image, (224, 224)) for image in decoded])
        return first_ten(resized.astype(np.float32))
    if workload in ("W5", "W6"):
        return _model("network" if workload == "W5" else "forest").run(x)
    if workload == "W7":
        return np.ones(WORDS)
    if workload == "W8":
        return _model("text").run(*padded([x]))
    return first_ten(x) if workload == "W2" else x


def check(workload: str, x: np.ndarray, found: np.ndarray) -> None:
    """Raise ValueError unless these are the values that answer an input of a workload."""
    right = expected(workload, x)
    tolerance = GREY_LEVELS if workload == "W3" else 1e-3
    if found.size != right.size or np.abs(found.reshape(right.shape) - right).mean() > tolerance:
        raise ValueError(
            f"{workload} was answered with {found.ravel()[:10]}, not {right.ravel()[:10]}"
        )


def _raw_values(body: bytes) -> np.ndarray:
    return np.frombuffer(body, np.float32)


def _base64_values(body: bytes) -> np.ndarray:
    return _raw_values(base64.b64decode(json.loads(body)["tensor"]))


def _v2_values(body: bytes) -> np.ndarray:
    """Return the tensor of a response of KServe v2, which is in the JSON or follows it."""
    document, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    output = document["outputs"][0]
    if "data" in output:
        return np.array(output["data"], np.float32)
    return np.frombuffer(body[end:], np.float32)


def _predictions(body: bytes) -> np.ndarray:
    return np.array(json.loads(body)["predictions"], np.float32)


def _events(body: bytes) -> np.ndarray:
    """Return how often each word was streamed."""
    return np.array([body.count(f"word{index} ".encode()) for index in range(WORDS)])


def _grpc_values(body: bytes) -> np.ndarray:
    found = message_class("inference.ModelInferResponse").FromString(body)
    if found.raw_output_contents:
        return np.frombuffer(found.raw_output_contents[0], np.float32)
    return np.array(found.outputs[0].contents.fp32_contents, np.float32)


@dataclass(frozen=True)
class Call:
    """A request of a workload in one form.

    Attributes:
        path: Of HTTP: its path.
        fields: Of HTTP: its header fields.
        body: Its body; for gRPC the prefix and the message.
        values: Returns the values in an answer's body.
        is_grpc: Whether it is a call of gRPC.
    """

    path: str
    fields: dict[str, str]
    body: bytes
    values: Callable[[bytes], np.ndarray]
    is_grpc: bool = False

    def file(self) -> bytes:
        """Return what `client.cpp` reads."""
        if self.is_grpc:
            block = b"".join(b"\0" + _literal(n) + _literal(v) for n, v in self.fields.items())
            return len(block).to_bytes(4, "big") + block + self.body
        fields = "".join(f"{name}: {value}\r\n" for name, value in self.fields.items())
        head = f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\n{fields}"
        return f"{head}content-length: {len(self.body)}\r\n\r\n".encode() + self.body


def _literal(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def _prefixed(items: Any) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


OCTETS = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}


def raw(workload: str, x: np.ndarray, path: str) -> Call:
    """Return a tensor as the bytes of a body, W6 and W7 as JSON."""
    if workload == "W6":
        return predict(x, path)
    if workload == "W7":
        return Call(path, JSON, b'{"prompt": "Once"}', _events)
    return Call(path, OCTETS, _octets(x), _raw_values)


def base64_json(workload: str, x: np.ndarray, path: str) -> Call:
    """Return the bytes of `raw` as base64 in JSON, for servers that read nothing else."""
    if workload in ("W6", "W7"):
        return raw(workload, x, path)
    body = json.dumps({"tensor": base64.b64encode(_octets(x)).decode()})
    return Call(path, JSON, body.encode(), _base64_values)


def predict(x: np.ndarray, path: str) -> Call:
    """Return rows as `instances`, as TensorFlow Serving and KServe v1 have them."""
    return Call(path, JSON, json.dumps({"instances": x.tolist()}).encode(), _predictions)


def _octets(x: np.ndarray) -> bytes:
    return _prefixed(x.ravel()) if x.dtype == object else x.tobytes()


def _datatype(x: np.ndarray) -> str:
    return {"O": "BYTES", "f": "FP32", "i": "INT64"}[x.dtype.kind]


def v2_binary(x: np.ndarray, path: str) -> Call:
    """Return a request of KServe v2 with the tensor after its JSON."""
    data = _octets(x)
    entry = {"name": "x", "datatype": _datatype(x), "shape": x.shape,
             "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    asked = {"inputs": [entry], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    header = json.dumps(asked, separators=(",", ":")).encode()
    fields = OCTETS | {"inference-header-content-length": str(len(header))}
    return Call(path, fields, header + data, _v2_values)


def v2_json(x: np.ndarray, path: str) -> Call:
    """Return a request of KServe v2 whose tensor is JSON."""
    entry = {"name": "x", "datatype": _datatype(x), "shape": x.shape, "data": x.ravel().tolist()}
    return Call(path, JSON, json.dumps({"inputs": [entry]}).encode(), _v2_values)


def generate(path: str) -> Call:
    """Return a prompt in the form of Triton's generate extension."""
    return Call(path, JSON, b'{"text_input": "Once"}', _events)


def grpc_call(x: np.ndarray, model: str) -> Call:
    """Return a call of ModelInfer."""
    made = message_class("inference.ModelInferRequest")(model_name=model)
    made.inputs.add(name="x", datatype=_datatype(x), shape=x.shape)
    made.raw_input_contents.append(_octets(x))
    message = made.SerializeToString()
    fields = {
        ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    prefix = b"\0" + len(message).to_bytes(4, "big")
    return Call(METHOD, fields, prefix + message, _grpc_values, is_grpc=True)


def ask(call: Call, port: int, certificate: str | None) -> bytes:
    """Make a call by an ordinary client and return the body of its answer.

    Args:
        call: The call.
        port: The server's port on this machine.
        certificate: The file of its certificate; None for cleartext.

    Raises:
        ValueError: The answer has another status than 200.
    """
    if call.is_grpc:
        import grpc

        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        if certificate is None:
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        else:
            with open(certificate, "rb") as file:
                trusted = grpc.ssl_channel_credentials(file.read())
            options.append(("grpc.ssl_target_name_override", "localhost"))
            channel = grpc.secure_channel(f"127.0.0.1:{port}", trusted, options)
        with channel:
            answer: bytes = channel.unary_unary(call.path)(call.body[5:], timeout=120)
            return answer
    if certificate is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    else:
        trust = ssl.create_default_context(cafile=certificate)
        trust.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=trust)
    connection.request("POST", call.path, call.body, call.fields)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        raise ValueError(f"the server answers {response.status}: {body[:500]!r}")
    return body

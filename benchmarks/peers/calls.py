"""The requests of the workloads in the forms that the servers read, and the check of an answer."""

import base64
import http.client
import json
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
from work import WORDS, OnnxModel, first_ten

from ksrv.protocol.protobuf import message_class

METHOD = "/inference.GRPCInferenceService/ModelInfer"
WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
CLIENTS = {"W1": 16, "W2": 8, "W3": 4, "W4": 1, "W5": 16, "W6": 16, "W7": 16}
GREY_LEVELS = 6
"""How far pixels of other decoders and resizes may be from the expected ones, on average."""


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
def tensor(workload: str) -> np.ndarray:
    """Return the input of a workload; W3 has its pictures as objects."""
    rng = np.random.default_rng(2)
    shapes = {"W1": (1, 16), "W2": (1, 224, 224, 3), "W4": (1, 16 << 20), "W5": (1, 3, 224, 224)}
    if workload == "W3":
        return np.array(jpegs(), object)
    if workload == "W7":
        return np.array([b"Once"], object)
    return rng.random(shapes.get(workload, (1, 30)), np.float32)


@cache
def expected(workload: str) -> np.ndarray:
    """Return the values that answer a workload."""
    x = tensor(workload)
    if workload == "W3":
        decoded: list[Any] = [
            cv2.imdecode(np.frombuffer(one, np.uint8), cv2.IMREAD_COLOR_RGB) for one in x
        ]
        resized = np.stack([cv2.resize(one, (224, 224)) for one in decoded])
        return first_ten(resized.astype(np.float32))
    if workload in ("W5", "W6"):
        return OnnxModel("network" if workload == "W5" else "forest").run(x)
    return first_ten(x) if workload == "W2" else x


def check_values(workload: str, found: np.ndarray) -> None:
    """Raise ValueError unless these are the values that answer a workload."""
    right = expected(workload)
    tolerance = GREY_LEVELS if workload == "W3" else 1e-3
    if found.size != right.size or np.abs(found.reshape(right.shape) - right).mean() > tolerance:
        raise ValueError(
            f"{workload} was answered with {found.ravel()[:10]}, not {right.ravel()[:10]}"
        )


def _raw_answer(workload: str, body: bytes) -> None:
    check_values(workload, np.frombuffer(body, np.float32))


def _v2_answer(workload: str, body: bytes) -> None:
    """Check a response of KServe v2, with its tensor in the JSON or behind it."""
    document, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    output = document["outputs"][0]
    if "data" in output:
        check_values(workload, np.array(output["data"], np.float32))
    else:
        check_values(workload, np.frombuffer(body[end:], np.float32))


def _predictions(workload: str, body: bytes) -> None:
    check_values(workload, np.array(json.loads(body)["predictions"], np.float32))


def _events(workload: str, body: bytes) -> None:
    found = [body.count(f"word{index} ".encode()) for index in range(WORDS)]
    if found != [1] * WORDS:
        raise ValueError(f"{workload} was answered with {len(body)} bytes: {body[:200]!r}")


@dataclass(frozen=True)
class Call:
    """A request of a workload in one form.

    Attributes:
        path: Of HTTP: its path.
        fields: Of HTTP: its header fields.
        body: Its body; of gRPC the message behind its prefix.
        check: Raises ValueError or KeyError unless an answer's body is right.
        is_grpc: Whether it is a call of gRPC.
    """

    path: str
    fields: dict[str, str]
    body: bytes
    check: Callable[[str, bytes], None]
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
    return b"".join(struct.pack("<I", len(one)) + one for one in items)


OCTETS = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}


def raw(workload: str, path: str) -> Call:
    """Return a tensor as the bytes of a body, W6 and W7 as JSON."""
    x = tensor(workload)
    if workload == "W6":
        return predict(workload, path)
    if workload == "W7":
        return Call(path, JSON, b'{"prompt": "Once"}', _events)
    body = _prefixed(x) if workload == "W3" else x.tobytes()
    return Call(path, OCTETS, body, _raw_answer)


def base64_json(workload: str, path: str) -> Call:
    """Return the bytes of `raw` as base64 in JSON, for servers that read nothing else."""
    if workload in ("W6", "W7"):
        return raw(workload, path)
    text = base64.b64encode(raw(workload, path).body).decode()
    return Call(path, JSON, json.dumps({"tensor": text}).encode(), _base64_answer)


def _base64_answer(workload: str, body: bytes) -> None:
    _raw_answer(workload, base64.b64decode(json.loads(body)["tensor"]))


def predict(workload: str, path: str) -> Call:
    """Return rows as `instances`, as TensorFlow Serving and KServe v1 have them."""
    body = json.dumps({"instances": tensor(workload).tolist()}).encode()
    return Call(path, JSON, body, _predictions)


def v2_binary(workload: str, path: str, shape: tuple[int, ...] | None = None) -> Call:
    """Return a request of KServe v2 with the tensor behind its JSON."""
    x = tensor(workload)
    data = _prefixed(x) if workload == "W3" else x.tobytes()
    entry = {"name": "x", "datatype": "BYTES" if workload == "W3" else "FP32",
             "shape": shape or x.shape, "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    asked = {"inputs": [entry], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    header = json.dumps(asked, separators=(",", ":")).encode()
    fields = OCTETS | {"inference-header-content-length": str(len(header))}
    return Call(path, fields, header + data, _v2_answer)


def v2_json(workload: str, path: str) -> Call:
    """Return a request of KServe v2 whose tensor is JSON."""
    x = tensor(workload)
    entry = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return Call(path, JSON, json.dumps({"inputs": [entry]}).encode(), _v2_answer)


def generate(workload: str, path: str) -> Call:
    """Return a prompt in the form of Triton's generate extension."""
    return Call(path, JSON, b'{"text_input": "Once"}', _events)


def grpc_call(workload: str, model: str, shape: tuple[int, ...] | None = None) -> Call:
    """Return a call of ModelInfer."""
    x = tensor(workload)
    made = message_class("inference.ModelInferRequest")(model_name=model)
    made.inputs.add(
        name="x", datatype="BYTES" if workload == "W3" else "FP32", shape=shape or x.shape
    )
    made.raw_input_contents.append(_prefixed(x) if workload == "W3" else x.tobytes())
    message = made.SerializeToString()
    fields = {
        ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    prefix = b"\0" + len(message).to_bytes(4, "big")
    return Call(METHOD, fields, prefix + message, _grpc_answer, is_grpc=True)


def _grpc_answer(workload: str, body: bytes) -> None:
    found = message_class("inference.ModelInferResponse").FromString(body)
    output = found.outputs[0]
    if found.raw_output_contents:
        check_values(workload, np.frombuffer(found.raw_output_contents[0], np.float32))
    else:
        check_values(workload, np.array(output.contents.fp32_contents, np.float32))


def ask(call: Call, port: int, certificate: str | None) -> bytes:
    """Make a call by an ordinary client and return the body of its answer.

    Args:
        call: What to ask.
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
            answer: bytes = channel.unary_unary(call.path)(call.body[5:], timeout=30)
            return answer
    if certificate is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    else:
        trust = ssl.create_default_context(cafile=certificate)
        trust.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trust)
    connection.request("POST", call.path, call.body, call.fields)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        raise ValueError(f"the server answers {response.status}: {body[:500]!r}")
    return body

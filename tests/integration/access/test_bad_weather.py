"""Everything at once: TLS, a token, every framing, REST and gRPC, handlers here and in processes, slow peers."""

import json
import socket
import ssl

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import VECTOR, write_model

HANDLER = """
from ksrv import BaseHandler

class Doubles(BaseHandler):
    def inference(self, x):
        if x[0, 0] < 0:
            raise SystemExit("no")
        return {"y": x * 2}
"""
TOKEN = {"Authorization": "Bearer good"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("certificate"), "server")


@pytest.fixture(scope="module")
def server(tmp_path_factory, certificate):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "inline", HANDLER, VECTOR)
    write_model(folder, "process", HANDLER, VECTOR + "executor: process\n")
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("good\n")
    key, cert = certificate
    with Server(folder, tls_cert=str(cert), tls_key=str(key), token_file=str(tokens)) as running:
        yield running


def document(first=1.0):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [first, 2, 3, 4]}
    return json.dumps({"inputs": [entry]}).encode()


def post(server, certificate, model, body, **headers):
    return requests.post(
        f"{server.url}/v2/models/{model}/infer", data=body, headers=TOKEN | headers,
        verify=str(certificate[1]), timeout=60,
    )  # fmt: skip


def pieces(body):
    return (body[at : at + 7] for at in range(0, len(body), 7))


MODELS = pytest.mark.parametrize("model", ["inline", "process"])


@MODELS
@pytest.mark.parametrize("frame", [bytes, pieces], ids=["length", "chunks"])
def test_any_exception_of_a_handler_fails_one_request(server, certificate, model, frame):
    for first, status in ((1.0, 200), (-1.0, 500), (1.0, 200)):
        answer = post(server, certificate, model, frame(document(first)))
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]


@MODELS
def test_grpc_answers_beside_it(server, certificate, model):
    with triton.InferenceServerClient(
        server.grpc, ssl=True, root_certificates=str(certificate[1])
    ) as client:
        tensor = triton.InferInput("x", [1, 4], "FP32")
        headers = {"authorization": "Bearer good"}
        for first in (1, -1, 1):
            tensor.set_data_from_numpy(np.array([[first, 2, 3, 4]], np.float32))
            if first < 0:
                with pytest.raises(InferenceServerException):
                    client.infer(model, [tensor], headers=headers)
            else:
                answer = client.infer(model, [tensor], headers=headers).as_numpy("y")
                assert answer.tolist() == [[2, 4, 6, 8]]
        with pytest.raises(InferenceServerException, match="token"):
            client.infer(model, [tensor])


@MODELS
def test_a_client_that_sends_a_byte_keeps_nobody_waiting(server, certificate, model):
    context = ssl.create_default_context(cafile=str(certificate[1]))
    host, port = server.http.rsplit(":", 1)
    body = document()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with (
        socket.create_connection((host, int(port)), 60) as silent,
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as slow,
    ):
        silent.sendall(b"\x16")
        slow.sendall(head[:1])
        assert post(server, certificate, model, body).status_code == 200
        slow.sendall(head[1:])
        assert slow.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        slow.sendall(body[:1])
        assert post(server, certificate, model, pieces(body)).status_code == 200
        slow.sendall(body[1:])
        answer = b""
        while b"\r\n\r\n{" not in answer:  # a client skips any interim answer
            answer += slow.recv(1 << 16)
        assert b"HTTP/1.1 200 OK\r\n" in answer

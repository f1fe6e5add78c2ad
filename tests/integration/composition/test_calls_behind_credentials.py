"""Calls between models behind TLS and a token, over REST and gRPC: answered as without, and no handler sees the token."""

import numpy as np
import pytest

from ksrv.client import AccessDenied, Client, StatusError
from ksrv.testing import Server
from tests.integration.composition.test_calls import LATER, TWICE
from tests.support.certificates import self_signed
from tests.support.models import VECTOR, write_model

DOUBLE = """
from ksrv import BaseHandler, InferenceError


class Double(BaseHandler):
    def inference(self, x):
        if any("authorization" in one.headers for one in self.context.batch.requests):
            raise InferenceError("a handler sees the token", 500)
        if (x < 0).any():
            raise InferenceError("negative rows are refused", 422)
        return {"y": x * 2}
"""
CALLERS = ["twice", "twice-process", "later-process"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "double", DOUBLE, VECTOR)
    write_model(root, "twice", TWICE, VECTOR)
    write_model(root, "twice-process", TWICE, VECTOR + "executor: process\n")
    write_model(root, "later-process", LATER, VECTOR + "executor: process\n")
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("good\n")
    key, cert = authority
    with Server(root, tls_cert=str(cert), tls_key=str(key), token_file=str(tokens)) as running:
        yield running


@pytest.fixture(params=["https", "grpcs"])
def client_with(request, server, authority):
    def made(token):
        address = server.http if request.param == "https" else server.grpc
        return Client(f"{request.param}://{address}", token=token, ca=str(authority[1]))

    return made


@pytest.mark.parametrize("model", CALLERS)
@pytest.mark.parametrize("rows", [1, 5000], ids=["in the message", "in blocks"])
def test_calls_are_answered(client_with, model, rows):
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    expected = x * 4 + (2 if model == "later-process" else 0)
    with client_with("good") as client:
        for _ in range(2):
            assert np.array_equal(client.infer(model, {"x": x})["y"], expected)


@pytest.mark.parametrize("model", CALLERS)
def test_refusal_of_the_called_model_reaches_the_client(client_with, model):
    with client_with("good") as client:
        with pytest.raises(StatusError, match="negative rows are refused"):
            client.infer(model, {"x": np.full((1, 4), -3, np.float32)})
        assert client.infer(model, {"x": np.zeros((1, 4), np.float32)})["y"].shape == (1, 4)


def test_a_caller_without_a_token_reaches_no_model(client_with):
    with client_with("bad") as client, pytest.raises(AccessDenied):
        client.infer("twice-process", {"x": np.zeros((1, 4), np.float32)})

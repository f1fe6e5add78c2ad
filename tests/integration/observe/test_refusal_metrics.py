"""Every refusal is on the metrics page, by reason, whichever way the request came."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.support.models import DOUBLE, HELD, VECTOR, write_model
from tests.support.native.gunicorn_server import infer, infer_head
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_message

WIDE = """
inputs: [{name: x, datatype: FP32, shape: [-1, 16]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 16]}]
"""


def page(server):
    answer = requests.get(f"{server.url}/metrics", headers=BEARER, timeout=30)
    samples = re.findall(r"^(ksrv_\w+(?:\{.*\})?) (\S+)$", answer.text, re.M)
    return {name: float(value) for name, value in samples}


BEARER = {"Authorization": "Bearer secret"}


class Counts:
    """The growth of a server's counters since this was made."""

    def __init__(self, server):
        self._server = server
        self._before = page(server)

    def more(self, name, **labels):
        inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        full = f"ksrv_{name}{{{inside}}}" if inside else f"ksrv_{name}"
        return page(self._server).get(full, 0.0) - self._before.get(full, 0.0)

    def refused(self, reason, protocol="http"):
        return self.more("refused_requests_total", protocol=protocol, reason=reason)

    def errors(self, status, protocol="http"):
        return self.more("error_answers_total", protocol=protocol, status=status)


@contextlib.contextmanager
def full(server, folder):
    """The queue is full: one request runs, one waits."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_connection(server.http)) for _ in range(2)]
        try:
            clients[0].sendall(infer(16))
            wait_until((folder / "began").exists)
            clients[1].sendall(infer(16))
            wait_until(lambda: page(server)['ksrv_pending_requests{model="add",version=""}'] == 1)
            yield
        finally:
            (folder / "go").touch()
        for client in clients:
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


def test_a_full_queue_on_every_way(tmp_path):
    folder = write_model(tmp_path, "add", HELD, WIDE + "warmup: false\nqueue_size: 1\n")
    sent = 40
    with Server(tmp_path) as server, full(server, folder):
        counts = Counts(server)
        with open_connection(server.http) as client:
            for _ in range(sent):  # by the HTTP server, by the Falcon app
                for message in (infer(16), infer(16, "TE: trailers")):
                    client.sendall(message)
                    assert read_message(client)[0].startswith(b"HTTP/1.1 503 ")
        tensor = triton.InferInput("x", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
        with triton.InferenceServerClient(server.grpc) as client:
            for _ in range(sent):
                with pytest.raises(triton.InferenceServerException, match="RESOURCE_EXHAUSTED"):
                    client.infer("add", [tensor])
        wait_until(lambda: counts.refused("queue_full") == counts.errors(503) == 2 * sent)
        wait_until(lambda: counts.refused("queue_full", "grpc") == sent)
        assert counts.errors("RESOURCE_EXHAUSTED", "grpc") == sent
        model = {"model": "add", "version": ""}
        assert counts.more("rejected_requests_total", reason="full", **model) == 3 * sent
        assert counts.more("requests_total", outcome="rejected", **model) == 3 * sent


def test_requests_that_meet_in_front_of_a_queue_are_counted_once(tmp_path):
    """Those that are refused behind the HTTP server's look at the queue take the general way."""
    folder = write_model(tmp_path, "add", HELD, WIDE + "warmup: false\nqueue_size: 1\n")
    with Server(tmp_path, grpc="off") as server, full(server, folder):
        counts = Counts(server)

        def ask(_):
            with open_connection(server.http) as client:
                client.sendall(infer(16))
                return read_message(client)[0].startswith(b"HTTP/1.1 503 ")

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(ask, range(200)))
        wait_until(lambda: counts.refused("queue_full") == 200)
        model = {"model": "add", "version": ""}
        assert counts.more("rejected_requests_total", reason="full", **model) == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, VECTOR)
    token = folder.parent / f"{folder.name}.token"
    token.write_text("secret\n")
    settings = {"limits": {"body": 200_000, "in_flight": 300_000}, "token_file": str(token)}
    with Server(folder, torchserve_api=True, head_timeout=1, transfer_grace=1, **settings) as one:
        yield one


def answer(server, message):
    with open_connection(server.http) as client:
        client.sendall(message)
        return int(read_message(client)[0].split()[1])


TOKEN = "Authorization: Bearer secret"


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        (infer(4, model="double"), 401, "unauthenticated"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 401, "unauthenticated"),
        (b"GET /ping/no HTTP/1.1\r\nHost: x\r\n\r\n", 401, "unauthenticated"),
        (b"GET /v3 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n", 404, ""),
        (b"POST /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n", 405, ""),
        (infer_head(None, 200_001, TOKEN, model="double"), 413, "too_large"),
        (infer_head(None, 2, TOKEN, model="double") + b"{}", 400, ""),
        (infer_head(None, 2, TOKEN, model="double") + b"{", 408, "too_slow"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400, ""),
        (infer_head(None, 2, TOKEN, "Content-Encoding: br", model="double") + b"{}", 415, ""),
    ],
    ids=["native 401", "app 401", "TorchServe 401", "404", "405", "413", "400", "408", "framing", "415"],
)  # fmt: skip
def test_errors_by_status_and_refusals_by_reason(server, message, status, reason):
    counts = Counts(server)
    assert answer(server, message) == status
    wait_until(lambda: counts.errors(status) == 1)
    if reason:
        assert counts.refused(reason) == 1


def test_a_client_that_gets_no_answer_for_it_is_too_slow_as_well(server):
    counts = Counts(server)
    with open_connection(server.http) as client:
        client.sendall(
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n"
        )
        wait_until(lambda: counts.refused("too_slow") == 1)


@pytest.mark.parametrize("fields", [(), ("TE: trailers",)], ids=["native", "app"])
def test_bytes_in_flight(tmp_path, fields):
    write_model(tmp_path, "double", DOUBLE, VECTOR)
    limits = {"body": 200_000, "in_flight": 300_000}
    message = infer_head(None, 190_000, *fields, model="double") + b" " * 190_000
    with Server(tmp_path, grpc="off", limits=limits) as server:
        counts = Counts(server)
        with open_connection(server.http) as first:
            first.sendall(message[:-1])
            # Else the second could take the room that the rest of the first needs.
            wait_until(lambda: page(server)["ksrv_bytes_in_flight"] >= 189_999)
            wait_until(lambda: answer(server, message) == 503)
            wait_until(lambda: counts.refused("bytes_in_flight") == counts.errors(503) == 1)


def test_grpc_calls_without_a_token(server):
    counts = Counts(server)
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")(b"", timeout=30)
    assert counts.errors("UNAUTHENTICATED", "grpc") == 1
    assert counts.refused("unauthenticated", "grpc") == 1


def test_connections_are_counted(server):
    def connections():
        return page(server)["ksrv_connections"] - 1  # without the connection of this request

    accepted = Counts(server)
    # Connections of earlier tests, and of earlier pages, may end late.
    wait_until(lambda: connections() == 0)
    with open_connection(server.http) as client:
        wait_until(lambda: accepted.more("accepted_connections_total") >= 1)
        wait_until(lambda: connections() == 1)
        client.sendall(b"G")
    wait_until(lambda: connections() == 0)

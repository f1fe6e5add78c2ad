"""The memory of requests and answers: only received bytes count, on every path, and the metrics show them."""

import contextlib
import gzip
import json
import random
import socket
import time

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.servers.metrics import bytes_in_flight, metric
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_answer

pytestmark = pytest.mark.long

MIB = 1 << 20
IN_FLIGHT = 64 * MIB
BODY = 31 * MIB

HANDLER = """
import time
from pathlib import Path

import numpy as np

from ksrv import BaseHandler


class Sizes(BaseHandler):
    def inference(self, x):
        if x[0, 0] < 0:  # waits until it is let go
            while not Path({go!r}).exists():
                time.sleep(0.005)
        assert x[0, 2] == 5 and x[0, -1] == x.shape[1] % 1000  # the whole body came as it was sent
        return {{"y": np.zeros((1, max(1, int(x[0, 1]))), np.uint8)}}
"""
YAML = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [1, -1]}]
outputs: [{name: y, datatype: UINT8, shape: [1, -1]}]
"""

WAYS = {
    "native": (),
    "app": ("TE: trailers",),
    "chunked": ("Transfer-Encoding: chunked",),
}
"""Header fields that select the fast path, and the Falcon app with and without a length."""
KNOWN = ["native", "app"]


def write(folder):
    model = folder / "models" / "sizes"
    model.mkdir(parents=True)
    (model / "handler.py").write_text(HANDLER.format(go=str(folder / "go")))
    (model / "model.yaml").write_text(YAML)
    return folder / "models"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    limits = {"in_flight": IN_FLIGHT, "body": BODY}
    with Server(write(folder), limits=limits, grpc="off") as running:
        running.folder = folder
        yield running
        wait_until(lambda: bytes_in_flight(running) == 0)


def message(nbytes, *, wanted=0, waits=False, fields=()):
    """Head and body of a request with a tensor of about `nbytes` bytes, for an answer of `wanted` bytes."""
    x = np.zeros((1, max(4, nbytes // 4)), np.float32)
    x[0, :3], x[0, -1] = (-1 if waits else 1, wanted, 5), x.shape[1] % 1000
    document = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": list(x.shape),
             "parameters": {"binary_data_size": x.nbytes}}
        ],
        "parameters": {"binary_data_output": True},
    }  # fmt: skip
    text = json.dumps(document).encode()
    body = text + x.tobytes()
    lines = [*fields, f"Inference-Header-Content-Length: {len(text)}"]
    chunked = any("chunked" in field for field in fields)
    if not chunked:
        lines.append(f"Content-Length: {len(body)}")
    else:
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    return head(*lines), body


def head(*lines):
    lines = ["POST /v2/models/sizes/infer HTTP/1.1", "Host: x", *lines]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def send(server, nbytes, **more):
    """Send a complete request, return its answer and close the connection."""
    with open_connection(server.http, 60) as client:
        client.sendall(b"".join(message(nbytes, **more)))
        return read_answer(client)


@pytest.mark.parametrize("upload", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("announced", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_announced_length_is_not_charged(server, announced, upload):
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(open_connection(server.http, 60))
            client.sendall(
                head(*announced, f"Content-Length: {BODY}", "Inference-Header-Content-Length: 100")
                + b"{"
                + b" " * 999
            )
        wait_until(lambda: bytes_in_flight(server) >= 6000)
        assert bytes_in_flight(server) < MIB
        for _ in range(3):
            assert send(server, 20 * MIB, fields=upload).status == 200
    wait_until(lambda: bytes_in_flight(server) == 0)


def test_announced_length_in_reused_memory_is_charged_briefly(server):
    for _ in range(2):
        assert send(server, 20 * MIB).status == 200
    first, body = message(20 * MIB)
    with open_connection(server.http, 60) as client:
        client.sendall(first + body[:100_000])
        wait_until(lambda: 100_000 <= bytes_in_flight(server) < MIB)
        client.sendall(body[100_000:])
        assert read_answer(client).status == 200
    wait_until(lambda: bytes_in_flight(server) == 0)


@pytest.mark.parametrize("upload", WAYS.values(), ids=WAYS)
def test_received_bytes_are_bounded_with_a_share_for_small_requests(server, upload):
    size = 26 * MIB
    with contextlib.ExitStack() as stack:
        slow = []
        for number in (1, 2):
            client = stack.enter_context(open_connection(server.http, 60))
            first, body = message(size, fields=upload)
            client.sendall(first + body[:-7])
            slow.append((client, body[-7:]))
            # Received bytes are counted in steps: the last few KiB of a body wait for more.
            wait_until(lambda held=number * (size - 65_536): bytes_in_flight(server) >= held)
        assert bytes_in_flight(server) < 2 * size + 2 * MIB
        for way in WAYS.values():
            refused = send(server, 8 * MIB, fields=way)
            assert refused.status == 503
            assert "limit --limits-in-flight" in refused.error
            assert send(server, 100_000, fields=way).status == 200
        for client, rest in slow:
            client.sendall(rest)
            assert read_answer(client).status == 200
    wait_until(lambda: bytes_in_flight(server) == 0)


def test_chunked_bodies_reuse_pooled_memory(server):
    """Their length is unknown at the start. If each body began with a small block, each would leave
    another large block."""
    choose = random.Random(1)
    before = metric(server, "ksrv_buffer_pool_pooled_bytes")
    for _ in range(100):
        assert (
            send(server, choose.randrange(300_000, 900_000), fields=WAYS["chunked"]).status == 200
        )
    assert metric(server, "ksrv_buffer_pool_pooled_bytes") < before + 8 * MIB  # 60 MiB were sent


@pytest.mark.parametrize("upload", WAYS.values(), ids=WAYS)
def test_a_request_that_waits_for_its_handler_counts_once(server, upload):
    go = server.folder / "go"
    with open_connection(server.http, 60) as client:
        client.sendall(b"".join(message(8 * MIB, waits=True, fields=upload)))
        try:
            wait_until(lambda: 8 * MIB <= bytes_in_flight(server) < 9 * MIB)
        finally:
            go.touch()
        assert read_answer(client).status == 200
    wait_until(lambda: bytes_in_flight(server) == 0)
    go.unlink()


@pytest.mark.parametrize("way", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_an_upload_that_can_never_fit_is_refused_at_its_head(tmp_path, way):
    with Server(write(tmp_path), limits={"in_flight": 8 * MIB}, grpc="off") as server:
        with open_connection(server.http, 60) as client:
            client.sendall(
                head(*way, f"Content-Length: {10 * MIB}", "Inference-Header-Content-Length: 100")
            )
            refused = read_answer(client)
        assert refused.status == 413
        assert "limit --limits-in-flight (" in refused.error


@pytest.mark.differs_in_processes("an answer above the limit is refused in the process")
@pytest.mark.parametrize("way", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_answers_that_are_not_read_count_and_are_bounded(server, way):
    with open_connection(server.http, 60) as first, open_connection(server.http, 60) as second:
        ask = b"".join(message(8, wanted=100 * MIB, fields=way))
        first.sendall(ask)
        assert first.recv(12) == b"HTTP/1.1 200"  # the budget has no room for a similar answer
        wait_until(lambda: bytes_in_flight(server) >= 100 * MIB)
        second.sendall(ask)
        refused = read_answer(second)
        assert refused.status == 503
        assert "--limits-in-flight" in refused.error
        assert refused.headers["retry-after"] == "1"
        # Meanwhile an answer that fits is sent, and so is a small answer.
        assert len(send(server, 8, wanted=20 * MIB, fields=way).body) > 20 * MIB
        assert send(server, 20 * MIB, fields=way).status == 200
        received = 12
        while received < 100 * MIB:
            piece = first.recv(MIB)
            assert piece
            received += len(piece)
        wait_until(lambda: bytes_in_flight(server) == 0)
    assert len(send(server, 8, wanted=100 * MIB, fields=way).body) > 100 * MIB


@pytest.mark.parametrize("way", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_answer_is_freed_if_its_reader_leaves(server, way):
    with open_connection(server.http, 60) as client:
        client.sendall(b"".join(message(8, wanted=50 * MIB, fields=way)))
        wait_until(lambda: bytes_in_flight(server) >= 50 * MIB)
    wait_until(lambda: bytes_in_flight(server) == 0)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server that allows any rate for small transfers, but requires large transfers to be fast."""
    rates = {"transfer_grace": 0.5, "min_transfer_rate": 1, "transfer_timeout": 1}
    with Server(write(tmp_path_factory.mktemp("impatient")), grpc="off", **rates) as running:
        yield running


def closed_by_the_server(step):
    """Repeat small steps of a transfer until the server closes the connection."""
    give_up = time.monotonic() + 60
    with contextlib.suppress(ConnectionError):
        while step():
            assert time.monotonic() < give_up, "it went on for a minute"
            time.sleep(0.02)


@pytest.mark.parametrize("way", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_large_upload_must_be_faster_than_a_small_upload(impatient, way):
    announced = head(*way, f"Content-Length: {100 * MIB}", "Inference-Header-Content-Length: 100")
    with open_connection(impatient.http, 60) as client:
        client.sendall(announced)

        def step():
            client.sendall(b" " * 1000)
            with contextlib.suppress(BlockingIOError):
                return not client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) and False
            return True

        closed_by_the_server(step)


@pytest.mark.parametrize("way", [WAYS[name] for name in KNOWN], ids=KNOWN)
def test_large_answer_must_be_read_faster_than_a_small_answer(impatient, way):
    with open_connection(impatient.http, 60) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(b"".join(message(8, wanted=100 * MIB, fields=way)))
        received = 0

        def step():
            nonlocal received
            piece = client.recv(65536)  # bytes in socket buffers are read after the end, too
            received += len(piece)
            return bool(piece)

        closed_by_the_server(step)
        assert received < 100 * MIB


JSON_LIMIT = 100_000


@pytest.fixture(scope="module")
def terse(tmp_path_factory):
    with Server(
        write(tmp_path_factory.mktemp("terse")), grpc="off", limits={"json": JSON_LIMIT}
    ) as running:
        yield running


def chunk(data):
    return b"%x\r\n" % len(data) + data + b"\r\n"


SPACES = b"{" + b" " * JSON_LIMIT
TOO_MUCH_JSON = {
    "announced": head(f"Content-Length: {2 * JSON_LIMIT}"),
    "announced as a part": head(
        f"Content-Length: {9 * JSON_LIMIT}", f"Inference-Header-Content-Length: {2 * JSON_LIMIT}"
    ),
    "announced to the app": head("TE: trailers", f"Content-Length: {2 * JSON_LIMIT}"),
    "announced as a part to the app": head(
        "TE: trailers",
        f"Content-Length: {9 * JSON_LIMIT}",
        f"Inference-Header-Content-Length: {2 * JSON_LIMIT}",
    ),
    "announced by one who waits": head("Expect: 100-continue", f"Content-Length: {2 * JSON_LIMIT}"),
    "chunked": head("Transfer-Encoding: chunked") + chunk(SPACES),
}


@pytest.mark.parametrize("start", TOO_MUCH_JSON.values(), ids=TOO_MUCH_JSON)
def test_json_above_its_limit_is_refused_before_its_end(terse, start):
    """All of them are incomplete: a server that waits for the rest never answers 413."""
    with open_connection(terse.http, 60) as client:
        client.sendall(start)
        refused = read_answer(client)
    assert refused.status == 413
    assert f"limit --limits-json ({JSON_LIMIT} bytes)" in refused.error


def test_compressed_json_above_its_limit_is_refused_while_it_is_inflated(terse):
    zipped = gzip.compress(SPACES * 2)
    url = f"{terse.url}/v2/models/sizes/infer"
    for body in (zipped, iter([zipped])):
        refused = requests.post(url, data=body, headers={"Content-Encoding": "gzip"}, timeout=30)
        assert refused.status_code == 413
        assert f"limit --limits-json ({JSON_LIMIT} bytes)" in refused.json()["error"]


def test_json_at_its_limit_and_binary_above_it_are_served(terse):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 5, 4]}
    body = json.dumps({"inputs": [entry]}).encode().ljust(JSON_LIMIT)
    url = f"{terse.url}/v2/models/sizes/infer"
    assert requests.post(url, data=body, timeout=30).status_code == 200
    zipped = requests.post(
        url, data=gzip.compress(body), headers={"Content-Encoding": "gzip"}, timeout=30
    )
    assert zipped.status_code == 200
    for way in WAYS.values():
        assert send(terse, 5 * JSON_LIMIT, fields=way).status == 200


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("good\n")
    with Server(
        write(folder), grpc="off", token_file=str(folder / "tokens"), torchserve_api=True
    ) as running:
        yield running


UPLOADS = {
    "fast path": head(f"Content-Length: {10 * MIB}", "Inference-Header-Content-Length: 100"),
    "small": head("Content-Length: 100"),
    "app": head("TE: trailers", f"Content-Length: {10 * MIB}"),
    "small to the app": head("TE: trailers", "Content-Length: 100"),
    "chunked": head("Transfer-Encoding: chunked"),
    "waits to be asked": head("Expect: 100-continue", f"Content-Length: {10 * MIB}"),
    "another route": b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
    "TorchServe's": b"POST /predictions/sizes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
}


def authorized(start, token):
    return start.replace(b"Host: x\r\n", b"Host: x\r\nAuthorization: Bearer %s\r\n" % token)


@pytest.mark.parametrize(
    ("token", "challenge"), [(None, "Bearer"), (b"bad", 'Bearer error="invalid_token"')]
)
@pytest.mark.parametrize("start", UPLOADS.values(), ids=UPLOADS)
def test_unauthorized_caller_is_refused_before_the_body(guarded, start, token, challenge):
    with open_connection(guarded.http, 60) as client:
        client.sendall(start if token is None else authorized(start, token))
        refused = read_answer(client)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == challenge


def test_a_probe_with_a_body_that_does_not_come_needs_no_token(guarded):
    start = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    with open_connection(guarded.http, 60) as client:
        client.sendall(start)
        assert read_answer(client).status == 200

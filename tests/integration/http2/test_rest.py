"""REST over HTTP/2 means what it means over HTTP/1.1: the same requests, over both, with the same answers."""

import asyncio
import gzip
import json
import re
import ssl
import subprocess

import h2.errors
import httpx
import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import DOUBLE, VECTOR, write_all, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.http2_client import Answer, Http2Client

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


def binary(rows, columns, *, binary_out=True):
    """The body of a request with one binary tensor, and the header that tells of its JSON."""
    value = np.arange(rows * columns, dtype=np.float32)
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": [rows, columns],
        "parameters": {"binary_data_size": value.nbytes},
    }
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": binary_out}})
    return text.encode() + value.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


SMALL, SMALL_FIELDS = binary(1, 4)
LARGE, LARGE_FIELDS = binary(300, 1000)
JSON_OUT, JSON_FIELDS = binary(1, 4, binary_out=False)
INFER, ECHO = "/v2/models/double/infer", "/v2/models/echo/infer"

REQUESTS = {
    "live": ("GET", "/v2/health/live", {}, None),
    "ready": ("GET", "/v2/health/ready", {}, None),
    "server": ("GET", "/v2", {}, None),
    "model": ("GET", "/v2/models/double", {}, None),
    "unknown model": ("GET", "/v2/models/none", {}, None),
    "query": ("GET", "/v2/models/double?x=1&y=%20", {}, None),
    "head": ("HEAD", "/v2/models/double", {}, None),
    "head of nothing": ("HEAD", "/nothing", {}, None),
    "no route": ("GET", "/nothing", {}, None),
    "no such method": ("DELETE", "/v2/models/double", {}, None),
    "options": ("OPTIONS", "/v2", {}, None),
    "infer": ("POST", INFER, {}, BODY),
    "infer, handler process": ("POST", "/v2/models/apart/infer", {}, BODY),
    "binary": ("POST", INFER, SMALL_FIELDS, SMALL),
    "binary in, JSON out": ("POST", INFER, JSON_FIELDS, JSON_OUT),
    "large": ("POST", ECHO, LARGE_FIELDS, LARGE),
    "no body": ("POST", INFER, {}, None),
    "empty body": ("POST", INFER, {}, b""),
    "broken JSON": ("POST", INFER, {}, BODY[:-1]),
    "wrong shape": ("POST", INFER, {}, BODY.replace(b"[1, 4]", b"[1, 5]")),
    "wrong length of JSON": ("POST", INFER, {"Inference-Header-Content-Length": "9999"}, BODY),
    "no number": ("POST", INFER, {"Inference-Header-Content-Length": "x"}, BODY),
    "gzip": ("POST", INFER, {"Content-Encoding": "gzip"}, gzip.compress(BODY)),
    "no gzip": ("POST", INFER, {"Content-Encoding": "gzip"}, BODY),
    "index": ("POST", "/v2/repository/index", {}, b"{}"),
    "a body for a question": ("GET", "/v2/models/double", {}, b"hello"),
    "unknown encoding": ("POST", INFER, {"Content-Encoding": "br"}, BODY),
    "compressed answer": ("GET", "/v2/models/double", {"Accept-Encoding": "gzip"}, None),
    "percent": ("GET", "/v2/models/%64ouble", {}, None),
    "dots": ("GET", "/v2/../v2/models/double", {}, None),
}

CONNECTION = {"connection", "transfer-encoding", "date", "keep-alive"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "apart", DOUBLE, f"{VECTOR}executor: process\n")
    return write_all(root)


@pytest.fixture(scope="module", params=["cleartext", "TLS", "token", "TLS and token"])
def served(models, request, tmp_path_factory):
    """A server, what its certificate is known by, and the fields that its callers send."""
    folder = tmp_path_factory.mktemp("certificate")
    settings, fields, verify = {}, {}, False
    if "TLS" in request.param:
        key, cert = self_signed(folder)
        settings = {"tls_cert": str(cert), "tls_key": str(key)}
        verify = ssl.create_default_context(cafile=cert)
    if "token" in request.param:
        (folder / "token").write_text("sesame\n")
        (folder / "token").chmod(0o600)
        settings["token_file"] = str(folder / "token")
        fields = {"Authorization": "Bearer sesame"}
    with Server(models, **settings) as server:
        yield server, verify, fields


@pytest.fixture(scope="module")
def clients(served):
    server, verify, fields = served
    with (
        httpx.Client(base_url=server.url, verify=verify, headers=fields, timeout=60) as old,
        httpx.Client(
            base_url=server.url, verify=verify, headers=fields, timeout=60, http1=False, http2=True
        ) as new,
    ):
        yield old, new


def told(answer):
    """What an answer says, but for what tells of a connection."""
    fields = {name: value for name, value in answer.headers.items() if name not in CONNECTION}
    if "server-timing" in fields:
        fields["server-timing"] = re.sub(r"[\d.]+", "", fields["server-timing"])
    return answer.status_code, fields, answer.content


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("framing", ["counted", "in pieces"])
def test_both_versions_give_one_answer(clients, name, framing):
    method, path, fields, body = REQUESTS[name]
    if framing == "in pieces" and not body:
        pytest.skip("there is nothing to cut")
    answers = []
    for client in clients:
        content = body if framing == "counted" else iter([body[:9], body[9:]])
        named = {"X-Request-ID": "told", **fields}
        answers.append(client.request(method, path, headers=named, content=content))
    old, new = answers
    assert (old.http_version, new.http_version) == ("HTTP/1.1", "HTTP/2")
    assert told(new) == told(old)


def test_bodies_and_answers_of_megabytes_come_whole(clients):
    body, fields = binary(2000, 4000)
    for client in clients[1], clients[0]:
        answer = client.post(ECHO, headers=fields, content=body)
        assert answer.status_code == 200
        length = int(answer.headers["inference-header-content-length"])
        assert answer.content[length:] == body[int(fields["Inference-Header-Content-Length"]) :]


def test_who_shows_no_token_is_refused(served):
    server, verify, fields = served
    if not fields:
        pytest.skip("everybody may call")
    with Http2Client(server.http, verify or None) as client:
        for method, path, body in (
            ("GET", "/v2/models/double", None),
            ("POST", INFER, BODY),
            ("POST", ECHO, bytes(1 << 20)),
        ):
            answer = client.request(method, path, body)
            assert answer.status == 401, (path, answer.body)
        answer = client.request("GET", "/v2/health/live")
        assert answer.status == 200


def test_curl_speaks_both(served):
    server, verify, fields = served
    told = [text for pair in fields.items() for text in ("-H", ": ".join(pair))]
    how = ["--http2", "-k"] if verify else ["--http2-prior-knowledge"]
    for version, expected in ((how, b"2"), (["--http1.1", "-k"], b"1.1")):
        found = subprocess.run(
            ["curl", "-s", *version, *told, "-d", BODY.decode(), "-w", "\n%{http_version}",
             server.url + INFER],
            check=True, capture_output=True, timeout=60,
        ).stdout  # fmt: skip
        answer, _, shown = found.rpartition(b"\n")
        assert json.loads(answer)["outputs"][0]["data"] == [2, 4, 6, 8]
        assert shown == expected


def test_end_of_a_request_after_its_body_is_awaited_without_a_reset(clients, served):
    server, verify, fields = served
    context = verify or None
    fields = [*((name.lower(), value) for name, value in fields.items())]
    with Http2Client(server.http, context) as client:
        stream = client.begin("POST", INFER, [("content-length", str(len(BODY))), *fields])
        client.send(stream, BODY)
        answer = client.wait(stream)
        assert answer.status == 200 and answer.over
        client.send(stream, b"", end=True)
        assert client.request("POST", INFER, BODY, fields).status == 200
        assert answer.error is None


@pytest.mark.parametrize("body", [BODY, BODY[:-1]], ids=["whole", "cut"])
def test_request_that_never_ends_is_reset(models, body):
    limits = {"transfer_grace": 0.3, "head_timeout": 0.3}
    with Server(models, **limits) as server, Http2Client(server.http) as client:
        stream = client.begin("POST", INFER, [("content-length", str(len(BODY)))])
        client.send(stream, body)
        answer = client.wait(stream)
        assert answer.status == (200 if body == BODY else 408)
        while answer.error is None:
            client.read()
        assert answer.error == h2.errors.ErrorCodes.NO_ERROR


def test_busy_client_of_httpx_gets_every_answer(served):
    server, verify, fields = served
    statuses = []

    async def ask_at_once():
        options = {"base_url": server.url, "verify": verify, "headers": fields, "timeout": 60}
        one_connection = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(
            http1=False, http2=True, limits=one_connection, **options
        ) as client:

            async def ask():
                for _ in range(50):
                    statuses.append((await client.post(INFER, content=BODY)).status_code)

            await asyncio.gather(*(ask() for _ in range(24)))

    asyncio.run(ask_at_once())
    assert statuses == [200] * 1200


def test_host_stands_in_for_authority(models):
    with Server(models, access_log=True) as server, Http2Client(server.http) as client:
        client.h2.send_headers(
            1,
            [(":method", "GET"), (":scheme", "http"), (":path", "/v2?host"), ("host", "localhost")],
            end_stream=True,
        )
        client.answers[1] = Answer()
        client.h2.send_headers(
            3, [(":method", "GET"), (":scheme", "http"), (":path", "/v2?none")], end_stream=True
        )
        client.answers[3] = Answer()
        client.flush()
        assert client.wait(1).status == 200
        assert client.wait(3).error == h2.errors.ErrorCodes.PROTOCOL_ERROR
        wait_until(lambda: '"GET /v2?none HTTP/2.0" 400' in server.log, tell=lambda: server.log)

"""The Falcon app is called once for a message, whatever the body's length and framing."""

import gzip
import json

import pytest

from tests.support.native.fast_path import chunked
from tests.support.native.gunicorn_server import GunicornServer, infer, infer_head
from tests.support.wire.http_reader import read_all, read_message

LONG = 300_000
TE = "TE: trailers"  # a field that has no effect, but makes the app answer the message


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    limits = {"body": 1 << 20, "json": 400_000}
    with GunicornServer(tmp_path_factory.mktemp("server"), settings={"limits": limits}) as running:
        yield running


def form(size):
    part = b'--b\r\nContent-Disposition: form-data; name="x"; filename="x"\r\n\r\n'
    body = part + bytes(size) + b"\r\n--b--\r\n"
    fields = ("Content-Type: multipart/form-data; boundary=b",)
    return infer_head(None, len(body), *fields) + body


def compressed(message):
    head, _, body = message.partition(b"\r\n\r\n")
    body = gzip.compress(body)
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    lines += [b"Content-Encoding: gzip", b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def calls(server):
    return server.counters()["calls"]


def steps(server):
    """How often a caller was checked, a model was found and the app was called."""
    counters = server.counters()
    return [counters[name] for name in ("checks", "finds", "calls")]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (infer(16, TE), 200),
        (infer(LONG // 4, TE), 200),
        (chunked(infer(16, TE)), 200),
        (chunked(infer(LONG // 4, TE), *[50_000] * 5), 200),
        (compressed(infer(LONG // 4)), 200),
        (form(1000), 200),
        (form(LONG), 200),
    ],
    ids=["short", "long", "chunked", "long and chunked", "compressed", "form", "long form"],
)
def test_a_message_is_checked_routed_and_answered_once(server, message, status):
    before = steps(server)
    with server.connect() as client:
        client.sendall(message)
        head, _, _ = read_message(client)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert steps(server) == [count + 1 for count in before]


def test_an_expectation_calls_the_app_once(server):
    before = calls(server)
    head, _, body = infer(16, TE, "Expect: 100-continue").partition(b"\r\n\r\n")
    with server.connect() as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 ")
    assert calls(server) == before + 1


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (infer_head(None, LONG, TE, model="nope"), 404, "nope"),
        (infer_head(None, 10**8, TE), 413, "100000000"),
        (infer_head(None, 500_000, TE), 413, "400000"),
        (infer_head(None, LONG, "Content-Encoding: br"), 415, "br"),
        (infer_head(None, LONG).replace(b"POST", b"PUT"), 405, "POST"),
        (infer_head(None, LONG).replace(b"/v2/", b"/v9/"), 404, "/v9/"),
        (infer_head(None, LONG).replace(b"/add/", b"/a//b/"), 400, "empty segment"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LONG, 200, ""),
        (
            b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LONG,
            413,
            "65536",
        ),
    ],
    ids=["model", "length", "JSON", "encoding", "method", "route", "path", "GET", "document"],
)
@pytest.mark.parametrize("fields", [b"", b"Expect: 100-continue\r\n"], ids=["", "expectation"])
def test_message_with_an_unwanted_body_calls_the_app_once_and_closes(
    server, head, status, told, fields
):
    before = calls(server)
    with server.connect() as client:
        client.sendall(head[:-2] + fields + b"\r\n")
        received = read_all(client)
    top, _, body = received.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in top
    assert told in json.loads(body).get("error", "")
    assert calls(server) == before + 1


def test_chunked_body_above_the_routes_limit_is_cut_off(server):
    before = calls(server)
    with server.connect() as client:
        head = infer_head(None, 1, TE).replace(b"Content-Length: 1", b"Transfer-Encoding: chunked")
        client.sendall(head + (b"%x\r\n%b\r\n" % (50_000, bytes(50_000))) * 9)
        received = read_all(client)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert calls(server) == before + 1

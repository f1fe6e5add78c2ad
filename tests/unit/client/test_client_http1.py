"""Both HTTP clients, against servers that use all of HTTP/1.1, and some that violate it."""

import asyncio
import math
import socket
import threading
import time

import numpy as np
import pytest

from ksrv.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    StatusError,
    Unavailable,
)
from ksrv.client.asynchronous import with_scheme
from ksrv.client.errors import status_error
from ksrv.client.retries import Retries, retry_after
from tests.support.clients.scripted_server import Scripted

READY = b'{"name":"m","versions":[],"inputs":[],"outputs":[]}'


def answer(body=READY, status="200 OK", fields=""):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body


@pytest.fixture
def scripted():
    made = []

    def make(*connections):
        made.append(Scripted(*connections))
        return made[-1]

    yield make
    for server in made:
        server.close()


class Waiting:
    """The asyncio client, with blocking methods."""

    def __init__(self, *arguments, **options):
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(*arguments, **options)

    def __getattr__(self, name):
        method = getattr(self._client, name)
        return lambda *given, **named: self._loop.run_until_complete(method(*given, **named))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@pytest.fixture(params=[Client, Waiting], ids=["blocking", "asyncio"])
def kind(request):
    return request.param


def test_connection_is_reused(scripted, kind):
    server = scripted([answer()] * 3)
    with kind(server.url) as client:
        for _ in range(3):
            assert client.metadata("m")["name"] == "m"
    assert server.accepted == 1
    assert server.requests[0][0].startswith(b"GET /v2/models/m HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("reply", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;a=b\r\n}\r\n0\r\nX: y\r\n\r\n", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"{}"), 1),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(b"{}"), 1),
        (b"HTTP/1.1 200\r\ncontent-LENGTH:2\r\n\r\n{}", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 2),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", 2),
    ],
)  # fmt: skip
def test_every_framing_is_read_and_keeps_or_closes_the_connection(
    scripted, kind, reply, connections
):
    server = scripted(*[[reply] * (3 - connections)] * connections)
    with kind(server.url) as client:
        assert client.metadata() == {} == client.metadata()
    assert server.accepted == connections


@pytest.mark.parametrize("retries", [0, 3])
def test_closed_idle_connection_is_reopened(scripted, kind, retries):
    server = scripted([answer()], [answer()])
    with kind(server.url, retries=retries) as client:
        client.metadata()
        assert server.ended.acquire(timeout=30)
        client.unload("m")  # the client finds the connection closed before it sends the request
    assert server.accepted == 2
    assert [head.split(b" ")[0] for head, _ in server.requests] == [b"GET", b"POST"]


def test_get_is_retried_once_if_an_idle_connection_ends(scripted, kind):
    server = scripted([answer(), None], [None], [answer()])
    with kind(server.url) as client:
        client.metadata()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            client.metadata()
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("call", "retries"),
    [
        (lambda client: client.unload("m"), 0),
        (lambda client: client.unload("m"), 3),
        (lambda client: client.metadata(), 0),
    ],
    ids=["post-without-retries", "post", "get-without-retries"],
)
def test_a_request_that_the_server_may_have_run_is_sent_once(scripted, kind, call, retries):
    server = scripted([answer(), None], [answer()] * 3)
    with kind(server.url, retries=retries) as client:
        client.metadata("m")
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            call(client)
    assert (server.accepted, len(server.requests)) == (1, 2)


def test_an_inference_that_the_server_may_have_run_is_sent_once(scripted, kind):
    server = scripted([answer(), None], [answer()] * 3)
    with kind(server.url) as client, pytest.raises(ConnectionFailed, match="closed the connection"):
        client.infer("m", {"x": [1]})  # on the connection that fetched the metadata
    assert (server.accepted, len(server.requests)) == (1, 2)


def test_unrequested_bytes_are_not_an_answer(scripted, kind):
    stray = answer(b'{"error":"nobody asked"}', "408 Request Timeout")
    server = scripted([answer() + stray, answer()], [answer()])
    with kind(server.url) as client:
        client.metadata()
        assert client.metadata()["name"] == "m"
    assert server.accepted == 2


@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ([None], "closed the connection"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"], "ended"),
        ([b"HTTP/1.1 200 OK\r\nContent-"], "closed the connection"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "does not speak HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "decimal digits"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n"], "decimal digits"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"], "decimal digits"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 18 + b"\r\n\r\n{"], "ended|no memory"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"], "two"),
        ([b"HTTP/1.1 \xb2\xb2\xb2 OK\r\nContent-Length: 2\r\n\r\n{}"], "does not speak HTTP"),
        (
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{"],
            "ended|no memory",
        ),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{"], "chunk"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "chunk"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n"], "chunk"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n"], "chunk"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000], "longer than"),
    ],
)
def test_incomplete_answer_is_a_connection_error(scripted, kind, replies, text):
    with kind(scripted(replies).url) as client, pytest.raises(ConnectionFailed, match=text):
        client.metadata()


def test_refused_connection_is_an_error(kind):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        kind(f"127.0.0.1:{port}") as client,
        pytest.raises(ConnectionFailed, match="nothing listens"),
    ):
        client.metadata()


def test_unknown_host_is_an_error(kind):
    with (
        kind("no-such-host.invalid:80") as client,
        pytest.raises(
            ConnectionFailed, match=r"no host has this name \(.*\); check the server's URL"
        ),
    ):
        client.metadata()


def test_timeout_covers_the_whole_call(kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with kind(url, timeout=30) as client:
            start = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                client.metadata(timeout=0.1)
            with pytest.raises(TimeoutError):
                client.wait_ready(timeout=0.1)
            assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("body", "text"), [(b"<h1>no</h1>", "<h1>no"), (b"", "Bad Gateway"), (b"[" * 60_000, r"\[\[")]
)
def test_an_error_of_another_server_is_shown_too(scripted, kind, body, text):
    url = scripted([answer(body, "502 x")]).url
    with kind(url) as client, pytest.raises(StatusError, match=text):
        client.metadata()


BUSY = answer(b'{"error":"full"}', "503 Busy", "Retry-After: 0\r\n")


def test_busy_server_is_retried(scripted, kind):
    too_many = answer(b"{}", "429 x", "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n")
    server = scripted([BUSY, too_many, answer(b"", "503 x"), answer()])
    with kind(server.url) as client:
        assert client.metadata("m")["name"] == "m"
    assert len(server.requests) == 4


def test_retries_are_limited(scripted, kind):
    server = scripted([BUSY] * 4)
    with kind(server.url, retries=2) as client, pytest.raises(Unavailable, match="full") as caught:
        client.metadata("m")
    assert caught.value.retry_after == 0
    assert len(server.requests) == 3
    once = scripted([BUSY] * 2)
    with kind(once.url, retries=0) as client, pytest.raises(Unavailable):
        client.metadata("m")
    assert len(once.requests) == 1


@pytest.mark.parametrize("seconds", ["100", "9" * 5000])
def test_retry_after_beyond_the_timeout_fails_at_once(scripted, kind, seconds):
    late = answer(b'{"error":"later"}', "503 x", f"Retry-After: {seconds}\r\n")
    with kind(scripted([late]).url, timeout=20) as client, pytest.raises(Unavailable) as caught:
        client.metadata("m")
    assert caught.value.retry_after == float(seconds)


@pytest.mark.parametrize(
    "value", ["nan", "-1", "inf", "1e400", "\xb2", "", "Mon, 99 Jan 2001", "1_0"]
)
def test_invalid_retry_after_is_ignored(scripted, kind, value):
    reply = answer(b'{"error":"later"}', "503 x", f"Retry-After: {value}\r\n")
    with kind(scripted([reply]).url, retries=0) as client, pytest.raises(Unavailable) as caught:
        client.metadata("m")
    assert caught.value.retry_after is None


def test_pause_doubles_without_retry_after():
    pauses = [
        Retries(9).pause(status_error(503, "", retry_after("nan")), attempt, time.monotonic() + 60)
        for attempt in range(3)
    ]
    assert all(0.1 * 2**n <= pause <= 0.125 * 2**n for n, pause in enumerate(pauses)), pauses


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"[[",
        b"{}",
        b'"text"',
        b'{"outputs":["x"]}',
        b'{"outputs":[{"name":5,"datatype":"FP32","shape":[1],"data":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[1e40]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1000000000000],"data":["a"]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1000000000000],"parameters":{"binary_data_size":0}}]}',
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[-1],"parameters":{"binary_data_size":0}}]}',
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-1}}]}',
        b'{"outputs":[{"name":"y","datatype":null,"shape":[1],"data":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":"FP99","shape":[1],"data":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":7,"shape":[1],"data":[1]}]}',
        b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":"a"}]}',
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":1}]}',
        b"[" * 100_000,
    ],
)
def test_malformed_answer_is_a_client_error(scripted, kind, body):
    url = scripted([answer(), answer(body)]).url
    with kind(url) as client, pytest.raises(ClientError, match="ModelInfer cannot be read"):
        client.infer("m", {"x": [1]})


@pytest.mark.parametrize("length", ["-1", "3", "\xb2", "9" * 5000])
def test_wrong_json_length_is_a_client_error(scripted, kind, length):
    reply = answer(b"{}", fields=f"Inference-Header-Content-Length: {length}\r\n")
    url = scripted([answer(), reply]).url
    with kind(url) as client, pytest.raises(ClientError, match="ModelInfer cannot be read"):
        client.infer("m", {"x": [1]})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("metadata", b'{"inputs":[{}]}'),
        ("metadata", b"[]"),
        ("index", b"[1]"),
        ("index", b"7"),
        ("statistics", b"{}"),
        ("statistics", b"[]"),
    ],
)
def test_unexpected_json_is_a_client_error(scripted, kind, name, body):
    given = ("m",) if name == "metadata" else ()
    url = scripted([answer(body)]).url
    with kind(url) as client, pytest.raises(ClientError, match="cannot be read"):
        getattr(client, name)(*given)


def test_a_large_answer_is_read_whole(scripted, kind):
    values = np.arange(
        10_000_000, dtype=np.float32
    )  # more than the client reserves before data arrives
    document = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[10000000],"parameters":{"binary_data_size":40000000}}]}'
    fields = f"Inference-Header-Content-Length: {len(document)}\r\n"
    server = scripted([answer(), answer(document + values.tobytes(), fields=fields)])
    with kind(server.url) as client:
        np.testing.assert_array_equal(client.infer("m", {"x": [1]})["y"], values)


def test_early_refusal_is_reported(kind):
    listener = socket.create_server(("127.0.0.1", 0))
    refusal = answer(b'{"error":"too large"}', "413 Too Large", "Connection: close\r\n")

    def refuse():
        for reply in (answer(), refusal):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.2)

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    with listener, kind(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        with pytest.raises(ClientError) as caught:
            client.infer("m", {"x": [b"x" * 30_000_000]})
        assert getattr(caught.value, "status", 413) == 413
        thread.join()


def test_path_and_token_are_sent_with_every_request(scripted, kind):
    server = scripted([answer()])
    with kind(server.url + "/behind/", token="secret") as client:
        client.metadata("a/b", "1")
    head = server.requests[0][0]
    assert head.startswith(b"GET /behind/v2/models/a%2Fb/versions/1 HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head


def test_single_value_is_sent_to_the_only_input(scripted, kind):
    url = scripted([answer()]).url
    with kind(url) as client, pytest.raises(ValueError, match="declares 0 inputs"):
        client.infer("m", [1])


def test_scheme_is_case_insensitive(kind, scripted):
    with kind(f"HTTP{scripted([answer()]).url.removeprefix('http')}") as client:
        assert client.metadata("m")["name"] == "m"
    for scheme in ("GRPC", "Grpcs"):
        assert with_scheme(f"{scheme}://h:1") == f"{scheme.lower()}://h:1"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        *((url, "expected") for url in ("ftp://x", "http://", "grpc://host", "grpc://h:1/path")),
        *(
            (f"http://{end}", "without blanks")
            for end in ("h:1/a b", "h:1/\u00e4", "b\u00fc:1", "h\x01:1")
        ),
    ],
)
def test_invalid_url_is_refused(kind, url, text):
    with pytest.raises(ValueError, match=text):
        kind(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1"])
@pytest.mark.parametrize("token", ["a\nb", "\u00e4"])
def test_a_token_that_cannot_be_sent_is_refused(url, token):
    with pytest.raises(ValueError, match="a token consists of printable ASCII"):
        Client(url, token=token)


@pytest.mark.parametrize("seconds", [math.inf, 1e10, 1e300])
def test_huge_timeout_is_accepted(kind, scripted, seconds):
    with kind(scripted([answer()]).url, timeout=seconds) as client:
        assert client.metadata("m")["name"] == "m"


def test_timeout_that_is_not_a_number_is_refused(kind):
    with (
        kind("http://127.0.0.1:1", timeout=math.nan) as client,
        pytest.raises(ValueError, match="a number of seconds"),
    ):
        client.metadata("m")


def test_gateway_errors_do_not_end_the_wait_for_readiness(kind, scripted):
    replies = [
        answer(b"", status) for status in ("502 Bad Gateway", "504 Gateway Timeout", "200 OK")
    ]
    with kind(scripted(replies).url) as client:
        client.wait_ready()
    with kind(scripted([answer(b"", "500 Oops")]).url) as client, pytest.raises(StatusError):
        client.wait_ready()


def test_malformed_server_timing_is_ignored(kind, scripted):
    fields = "Server-Timing: a;dur=1.2.3, b;dur=., queue;dur=4.5\r\n"
    with kind(scripted([answer(), answer(b'{"outputs":[]}', fields=fields)]).url) as client:
        assert client.infer("m", {}).timing["queue"] == 4.5

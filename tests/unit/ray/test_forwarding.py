"""What becomes of a request of Ray's ingress on its way to the replica's own server."""

import asyncio
import http.server
import threading
from types import SimpleNamespace

import pytest

from ksrv.ray.forwarding import Forwarder

pytest.importorskip("starlette")
pytest.importorskip("aiohttp")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers everything, and keeps what came."""

    protocol_version = "HTTP/1.1"
    seen = []

    def answer(self):
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        self.seen.append((self.command, self.path, self.headers.items(), body))
        text = b'{"error": "no"}'
        self.send_response(401 if self.path == "/v2" else 202)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Content-Type", "application/json")
        self.send_header("Keep-Alive", "timeout=5")
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = answer

    def log_message(self, *arguments):
        pass


@pytest.fixture
def address():
    Recorder.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def request(
    path, method="POST", headers=(), pieces=(b"",), query=b"", prefix="", client=("9.9.9.9", 1)
):
    from starlette.requests import Request

    left = list(pieces)

    async def receive():
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": prefix,
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": client,
    }
    return Request(scope, receive)


def forward(address, *requests, method="forward"):
    """Return each answer's status, headers and body."""

    async def run():
        server = SimpleNamespace(http=address, url=f"http://{address}", tls_context=lambda: None)
        forwarder = Forwarder(server)
        found = []
        for one in requests:
            response = await getattr(forwarder, method)(one)
            if hasattr(response, "body_iterator"):
                body = b"".join([piece async for piece in response.body_iterator])
            else:
                body = response.body
            found.append((response.status_code, response.raw_headers, body))
        if forwarder._session is not None:
            await forwarder._session.close()
        return found

    return asyncio.run(run())


def test_a_message_and_its_answer(address):
    headers = [
        ("Content-Length", "6"),
        ("Connection", "keep-alive, X-Of-This-Connection"),
        ("Host", "outside"),
        ("Expect", "100-continue"),
        ("X-Of-This-Connection", "1"),
        ("Authorization", "Bearer x"),
        ("X-Forwarded-For", "8.8.8.8"),
    ]
    asked = request(
        "/v2/models/a b?c%/infer", headers=headers, pieces=[b"abc", b"def"], query=b"q=%20"
    )
    [(status, answered, body)] = forward(address, asked)
    assert (status, body) == (202, b'{"error": "no"}')
    names = [name for name, _ in answered]
    assert b"keep-alive" not in names
    assert [value for name, value in answered if name == b"set-cookie"] == [b"a=1", b"b=2"]
    [(method, path, fields, got)] = Recorder.seen
    assert (method, path, got) == ("POST", "/v2/models/a%20b%3Fc%25/infer?q=%20", b"abcdef")
    kept = [(name.lower(), value) for name, value in fields]
    assert [value for name, value in kept if name == "x-forwarded-for"] == ["8.8.8.8", "9.9.9.9"]
    assert ("authorization", "Bearer x") in kept
    assert ("content-length", "6") in kept
    assert ("host", address) in kept
    names = [name for name, _ in kept]
    assert not {"expect", "x-of-this-connection"} & set(names)
    assert ("connection", "close") in kept
    # Nothing is asked for that the client has not asked for: an answer might come compressed.
    assert not {"accept", "accept-encoding", "content-type", "user-agent"} & set(names)


def test_bodies_of_unknown_length_and_none(address):
    chunked = request("/a", headers=[("Transfer-Encoding", "chunked")], pieces=[b"x" * 9, b"y"])
    forward(
        address, chunked, request("/b", "GET", client=None), request("/below/c", prefix="/below")
    )
    bodies = [(path, body) for _, path, _, body in Recorder.seen]
    assert bodies == [("/a", b"xxxxxxxxxy"), ("/b", b""), ("/c", b"")]
    assert ("x-forwarded-for", "unknown") in Recorder.seen[1][2]
    assert not any(name == "Transfer-Encoding" for name, _ in Recorder.seen[1][2])


def test_a_path_that_looks_like_an_address(address):
    forward(address, request("//elsewhere.example/x", "GET"), request("/@elsewhere.example", "GET"))
    # http.server makes one slash of two at the beginning.
    assert [path for _, path, _, _ in Recorder.seen] == [
        "/elsewhere.example/x",
        "/@elsewhere.example",
    ]


def test_a_server_that_is_not_there(address):
    for gone in ("127.0.0.1:1", ""):
        [(status, headers, body)] = forward(gone, request("/v2"))
        assert (status, b'"error"' in body) == (503, True)
        assert (b"retry-after", b"1") in headers


def test_a_caller_whom_the_server_refuses(address):
    [(status, _, body)] = forward(address, request("/-/addresses", "GET"), method="refusal")
    assert (status, body) == (401, b'{"error": "no"}')

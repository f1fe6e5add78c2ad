"""Messages of the Falcon app: complete before a thread gets them, and answered without waiting for the client."""

import contextlib
import socket
import threading
import time

import pytest
from gunicorn.config import Config

from ksrv._native.http.request_head import HeadRules
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.server import HttpServer
from ksrv.limits import Limits
from ksrv.server.rest.app_messages import AppMessages
from ksrv.server.rest.fast_path import prepared_answers
from ksrv.server.settings import ServerSettings
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.servers.metrics import bytes_in_flight
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, parse_answers, read_all, read_answer

INDEX = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    with Server(folder, grpc="off", head_timeout=60, transfer_grace=60) as running:
        yield running


def exchange(server, data):
    with open_connection(server.http, 60) as client:
        client.sendall(data)
        return parse_answers(read_all(client).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))


def test_a_head_is_refused_before_its_end(server):
    message = INDEX + b"X-Folded: a\x00b\r\n"  # refused because of its NUL
    assert [answer.status for answer in exchange(server, message)] == [400]


MALFORMED_HEADS = {
    "transfer coding": (
        b"/v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
        400,
    ),
    "field name": (b"/v2 HTTP/1.1\r\nHost: x\r\nX(A): b\r\n\r\n", 400),
    "version": (b"/v2 HTTP/3.0\r\nHost: x\r\n\r\n", 400),
    "no host": (b"/v2 HTTP/1.1\r\nX-A: b\r\n\r\n", 400),
    "host with a path": (b"/v2 HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
    "long target": (b"/" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "long field": (b"/v2 HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "long head": (b"/v2 HTTP/1.1\r\nHost: x\r\n" + b"X-A: %b\r\n" % (b"a" * 8000) * 20, 431),
}


@pytest.mark.parametrize(("rest", "status"), MALFORMED_HEADS.values(), ids=MALFORMED_HEADS)
def test_the_refusal_of_a_head_request_has_no_body(server, rest, status):
    with open_connection(server.http, 60) as client:
        client.sendall(b"HEAD " + rest)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert body == b""


def test_a_head_request_that_comes_too_slowly_is_refused_without_a_body(tmp_path):
    write_double(tmp_path)
    with (
        Server(tmp_path, grpc="off", head_timeout=0.2) as server,
        open_connection(server.http, 60) as client,
    ):
        client.sendall(b"HEAD /v2 HTTP/1.1\r\nHost:")
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert body == b""


# ---- only the native server, with an app of this test
# -------------------------------------------------


@contextlib.contextmanager
def native(answer):
    """A native server, and a thread that passes its messages to `answer`."""
    loop = EventLoop()
    http_server = HttpServer(
        loop,
        HeadRules(body=1 << 20),
        ConnectionLimits(ServerSettings(), head_timeout=60, transfer_grace=60),
        lambda exchange: exchange.fail(),
        prepared_answers(Limits(), ()),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        http_server.listen([listener.fileno()])
        http_server.accept(True)

        def serve():
            while (message := http_server.next_app_message()) is not None:
                answer(message)
                del message

        threads = [threading.Thread(target=loop.run, args=(n,)) for n in range(2)]
        threads.append(threading.Thread(target=serve))
        for thread in threads:
            thread.start()
        try:
            yield http_server, listener.getsockname()
        finally:
            http_server.stop()
            loop.stop()
            for thread in threads:
                thread.join()


POST = b"POST /nope HTTP/1.1\r\nHost: x\r\n"
PIECE = bytes(range(256)) * 4096


def test_a_stream_waits_for_its_reader_and_keeps_the_connection():
    sent = []

    def answer(message):
        fields = b"Transfer-Encoding: chunked\r\n"
        assert message.begin_stream(200, b"200 OK", fields, PIECE, chunked=True)
        for number in range(15):
            assert message.send(PIECE, chunked=True)
            sent.append(number)
        message.end_stream(chunked=True)

    with native(answer) as (http_server, address), socket.socket() as client:
        # If the client read, its kernel would grow the receive buffer beyond the whole answer.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        client.settimeout(60)
        client.connect(address)
        for _ in range(2):
            client.sendall(POST + b"\r\n")
            client.recv(100, socket.MSG_PEEK)
            wait_until(lambda: http_server.counters()["app"] > 0)
            time.sleep(0.2)
            assert len(sent) < 15  # the kernel buffers some MiB; the rest waits for this reader
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(1 << 20)
            chunk = b"%X\r\n%b\r\n" % (len(PIECE), PIECE)
            assert received.partition(b"\r\n\r\n")[2] == chunk * 16 + b"0\r\n\r\n"
            wait_until(lambda: len(sent) == 15)
            sent.clear()


def test_broken_stream_is_not_a_complete_answer():
    def answer(message):
        message.begin_stream(200, b"200 OK", b"Transfer-Encoding: chunked\r\n", b"", chunked=True)
        message.send(b"piece", chunked=True)
        message.break_stream()

    with native(answer) as (_, address), socket.create_connection(address, 60) as client:
        client.sendall(POST + b"\r\n")
        assert read_all(client).endswith(b"\r\n\r\n5\r\npiece\r\n")


def test_messages_that_nobody_answers_are_answered_500():
    def answer(message):
        assert message.state in ("none", "whole")

    with native(answer) as (_, address):
        for body in (b"\r\n", b"Content-Length: 2\r\n\r\n{}"):
            with socket.create_connection(address, 60) as client:
                client.sendall(POST + body)
                assert read_answer(client).status == 500


def test_slow_stream_readers_do_not_block_other_messages():
    """Sixteen streams with stalled readers and one thread for messages: the next message is answered."""
    environs = []

    def app(environ, start_response):
        environs.append(environ["PATH_INFO"])
        if environ["PATH_INFO"] == "/stream":
            start_response("200 OK", [])
            return iter([PIECE] * 64)
        start_response("200 OK", [("content-length", "2")])
        return [b"ok"]

    messages = AppMessages(app, Config(), [("127.0.0.1", 1)], limits=Limits())
    stream = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
    with native(messages.serve) as (_, address), contextlib.ExitStack() as stack:
        for _ in range(16):
            client = stack.enter_context(socket.create_connection(address, 60))
            client.sendall(stream)
            client.recv(1, socket.MSG_PEEK)
        client = stack.enter_context(socket.create_connection(address, 60))
        client.sendall(POST + b"\r\n")
        assert read_answer(client).body == b"ok"
    assert len(environs) == 17


def test_raising_app_answers_500():
    def app(environ, start_response):
        if environ["PATH_INFO"] == "/early":
            raise SystemExit
        start_response("200 OK", [("content-length", "9")])
        return [b"short"]

    messages = AppMessages(app, Config(), [("127.0.0.1", 1)], limits=Limits())
    with native(messages.serve) as (_, address):
        for path in (b"/early", b"/late"):
            with socket.create_connection(address, 60) as client:
                client.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                assert read_answer(client).status == 500
        with socket.create_connection(address, 60) as client:
            client.sendall(b"HEAD /early HTTP/1.1\r\nHost: x\r\n\r\n" + LAST)
            head, _, rest = read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert rest.startswith(b"HTTP/1.1 200 ")


def test_required_rate_of_a_chunked_body_grows_with_its_chunks(tmp_path):
    write_double(tmp_path)
    settings = {"transfer_grace": 0.5, "transfer_timeout": 1}
    with (
        Server(tmp_path, grpc="off", **settings) as server,
        open_connection(server.http, 60) as client,
    ):
        head = b"POST /v2/models/double/explain HTTP/1.1\r\nHost: x\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n1000000\r\n" + bytes(8 << 20))
        assert read_answer(client).status == 408
        wait_until(lambda: bytes_in_flight(server) == 0)

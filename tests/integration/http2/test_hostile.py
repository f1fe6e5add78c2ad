"""Clients of REST over HTTP/2 that are slow, leave, or send what is no request: nobody else notices."""

import contextlib
import json
import select
import socket
import time

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_all, write_double, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.http2_client import Answer, Http2Client
from tests.support.wire.http2_wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Wire,
    field,
    frame,
)

pytestmark = pytest.mark.long

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
INFER = "/v2/models/double/infer"
LIVE = "/v2/health/live"
JSON = "application/json"
SLOW_START = """
import time
from pathlib import Path
from ksrv import BaseHandler


class SlowStart(BaseHandler):
    def initialize(self, context):
        folder = Path(__file__).parent
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.005)

    def handle(self, batch, context):
        return {"y": batch["x"]}
"""
NUMBERS = list(range(60_000))
LARGE = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(NUMBERS)], "data": NUMBERS}]}
).encode()

WIDE_TENSORS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 2000000]}]
"""
WIDE = """
import numpy as np
from ksrv import BaseHandler


class Wide(BaseHandler):
    def inference(self, x):
        return {"y": np.zeros((len(x), 2_000_000), np.float32)}
"""
HELD = """
import time
from pathlib import Path
from ksrv import BaseHandler


class Held(BaseHandler):
    def handle(self, batch, context):
        folder = Path(__file__).parent
        with (folder / "seen").open("a") as file:
            file.write(f"{batch['x'][0, 0]:g} ")
        while batch["x"][0, 0] == 1 and not (folder / "go").exists():
            time.sleep(0.005)
        return {"y": batch["x"]}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models):
    settings = {"head_timeout": 2, "transfer_grace": 1, "min_transfer_rate": 65_536}
    limits = {"body": 8 << 20, "in_flight": 32 << 20}
    with Server(models, limits=limits, **settings) as running:
        yield running


@pytest.fixture(autouse=True)
def serves_afterwards(server):
    """Whatever a test does, the server answers others, and holds nothing any more."""
    yield
    with Http2Client(server.http) as client:
        assert client.request("POST", INFER, BODY).status == 200

    def held():
        page = requests.get(f"{server.url}/metrics", timeout=60).text
        return [line for line in page.splitlines() if line.startswith("ksrv_bytes_in_flight ")]

    wait_until(lambda: held() == ["ksrv_bytes_in_flight 0.0"], tell=lambda: str(held()))


@pytest.mark.parametrize("counted", [True, False])
def test_a_body_that_stops_is_answered_408(server, counted):
    with Http2Client(server.http) as client:
        fields = [("content-length", "5000")] if counted else []
        stream = client.begin("POST", INFER, fields)
        client.send(stream, BODY)
        answer = client.wait(stream)
        assert answer.status == 408
        assert b"min_transfer_rate" in answer.body or b"in time" in answer.body or answer.body


@pytest.mark.parametrize("pause", [0, 3.5])
def test_a_large_body_that_pauses_comes_whole(server, pause):
    """What came before the pause counts for its pace, though nobody was woken for it."""
    with Http2Client(server.http) as client:
        for _ in range(2):  # the second time its memory has been used before
            stream = client.begin(
                "POST", "/v2/models/echo/infer", [("content-length", str(len(LARGE)))]
            )
            assert client.send(stream, LARGE[:250_000]) == 250_000
            until = time.monotonic() + pause
            wait_until(lambda until=until: time.monotonic() >= until)
            client.send(stream, LARGE[250_000:], end=True)
            answer = client.wait(stream)
            assert answer.status == 200, answer.body
            assert json.loads(answer.body)["outputs"][0]["data"] == NUMBERS


def test_a_body_above_the_limit_is_answered_413_before_it_comes(server):
    with Http2Client(server.http) as client:
        stream = client.begin("POST", INFER, [("content-length", str(9 << 20))])
        assert client.wait(stream).status == 413
        stream = client.begin("POST", INFER)
        assert client.send(stream, bytes(32 << 20), end=True) < 32 << 20
        assert client.wait(stream).status == 413
        assert client.request("GET", "/v2/health/live").status == 200  # on the same connection


@pytest.mark.parametrize("length", ["1", "999", "-1", "x", "", "18446744073709551616"])
def test_a_length_that_does_not_fit_the_body_is_refused(server, length):
    with Http2Client(server.http) as client:
        stream = client.begin("POST", INFER, [("content-length", length)])
        with contextlib.suppress(Exception):
            client.send(stream, BODY, end=True)
        answer = client.wait(stream)
        assert answer.error is not None or answer.status >= 400 or client.over


def heads():
    common = {":method": "POST", ":scheme": "http", ":path": INFER, ":authority": "x"}
    yield "upper case", {**common, "X-A": "1"}
    yield "connection", {**common, "connection": "close"}
    yield "chunked", {**common, "transfer-encoding": "chunked"}
    yield "upgrade", {**common, "upgrade": "h2c"}
    yield "te", {**common, "te": "gzip"}
    yield "line end", {**common, "a": "b\r\nc: d"}
    yield "line end in name", {**common, "a\r\nb": "c"}
    yield "colon in name", {**common, "a:b": "c"}
    yield "NUL", {**common, "a": "b\0c"}
    yield "no path", {name: text for name, text in common.items() if name != ":path"}
    yield "no method", {name: text for name, text in common.items() if name != ":method"}
    yield "no scheme", {name: text for name, text in common.items() if name != ":scheme"}
    yield "unknown pseudo", {**common, ":x": "1"}
    yield "pseudo behind", {"a": "b", **common}
    yield "blank in path", {**common, ":path": "/v2 HTTP/1.1\r\nx: y"}
    yield "blank", {**common, ":path": "/v2/ models"}
    yield "line end in path", {**common, ":path": "/v2\r\n\r\nGET /x HTTP/1.1"}
    yield "empty path", {**common, ":path": ""}
    yield "relative path", {**common, ":path": "v2"}
    yield "line end in method", {**common, ":method": "GET /\r\n\r\nPOST"}
    yield "CONNECT", {":method": "CONNECT", ":authority": "x:1"}
    yield "line end in authority", {**common, ":authority": "x\r\ny: z"}
    yield "two lengths", {**common, "content-length": f"{len(BODY)}\r\ncontent-length: 1"}


@pytest.mark.parametrize(("name", "fields"), list(heads()), ids=[name for name, _ in heads()])
def test_what_is_no_request_of_http_is_refused(server, name, fields):
    """And nothing of it passes for another request: a stream is one message, whatever its fields say."""
    with Wire(server.http) as wire:
        block = b"".join(field(*pair) for pair in fields.items())
        wire.socket.sendall(
            frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, BODY)
        )
        wire.socket.settimeout(30)
        while not wire.over and 1 not in wire.ended and 1 not in wire.begun:
            wire.read()
        status = wire.begun.get(1, 0)
        assert status == 0 or status >= 400, status


def test_trailers_of_a_request_mean_nothing(server):
    with Wire(server.http) as wire:
        fields = {":method": "POST", ":scheme": "http", ":path": INFER, ":authority": "x"}
        block = b"".join(field(*pair) for pair in fields.items())
        wire.socket.sendall(
            frame(HEADERS, END_HEADERS, 1, block)
            + frame(DATA, 0, 1, BODY)
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, field("authorization", "x"))
        )
        while 1 not in wire.begun:
            wire.read()
        assert wire.begun[1] == 200


def test_an_answer_that_nobody_takes_is_cut_off(server):
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 200_000],
                     "data": list(range(200_000))}]}
    ).encode()  # fmt: skip
    with Http2Client(server.http, window=0, reads=False) as client:
        streams = []
        for _ in range(8):
            streams.append(client.begin("POST", "/v2/models/echo/infer"))
            client.send(streams[-1], body, end=True)
        small = client.begin("GET", "/v2/models/double", end=True)
        for stream in (*streams, small):
            answer = client.wait(stream)
            assert answer.error is not None
            assert answer.status == 200


def test_clients_that_leave_at_any_point_leave_nothing(server):
    for point in range(6):
        with Http2Client(server.http) as client:
            for _ in range(10):
                stream = client.begin("POST", "/v2/models/slow/infer", end=False)
                if point > 1:
                    client.send(stream, BODY[: 10 * point])
                if point > 3:
                    client.send(stream, BODY[10 * point :], end=True)
                if point % 2:
                    client.reset(stream)


def test_a_request_whose_client_left_is_not_run(tmp_path):
    write_model(
        tmp_path,
        "held",
        HELD,
        "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]\nwarmup: false\n",
    )
    folder = tmp_path / "held"
    with Server(folder) as server, Http2Client(server.http) as client:
        path = "/v2/models/held/infer"
        first = client.begin("POST", path)
        client.send(first, BODY, end=True)
        wait_until((folder / "seen").exists)
        left = client.begin("POST", path)
        client.send(left, BODY.replace(b"[1, 2", b"[7, 2"), end=True)
        assert client.request("GET", LIVE).status == 200  # the request waits for its model by then
        client.reset(left)
        assert client.request("GET", LIVE).status == 200  # and is cancelled
        (folder / "go").touch()
        assert client.wait(first).status == 200
        assert client.request("POST", path, BODY.replace(b"[1, 2", b"[8, 2")).status == 200
        assert (folder / "seen").read_text().split() == ["1", "8"]


def test_a_message_of_the_app_whose_client_left_is_not_run(tmp_path):
    models = tmp_path / "models"
    for name in ("held", "left", "wanted"):
        write_model(models, name, SLOW_START, "warmup: false\n")
    for name in ("left", "wanted"):
        (models / name / "go").touch()
    with (
        Server(models, model_control="explicit") as server,
        Http2Client(server.http) as client,
    ):

        def load(name):
            return client.begin("POST", f"/v2/repository/models/{name}/load", end=True)

        held = [load("held") for _ in range(64)]  # more than the app has threads
        wait_until((models / "held" / "begun").exists)
        left = [load("left") for _ in range(20)]
        wanted = load("wanted")
        assert client.request("GET", LIVE).status == 200  # they wait for a thread by then
        for stream in left:
            client.reset(stream)
        assert client.request("GET", LIVE).status == 200
        (models / "held" / "go").touch()
        assert {client.wait(stream).status for stream in (*held, wanted)} == {200}
        assert (models / "wanted" / "begun").exists()
        assert not (models / "left" / "begun").exists()


def test_streams_of_stalled_bodies_leave_room_for_others(server):
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(Http2Client(server.http))
            for _ in range(100):
                client.send(client.begin("POST", INFER, [("content-length", "60000")]), BODY)
        with Http2Client(server.http) as good:
            for _ in range(20):
                assert good.request("POST", INFER, BODY).status == 200
        assert requests.get(f"{server.url}/v2/models/double", timeout=60).status_code == 200


def test_resets_in_a_row_are_a_flood(server):
    with Wire(server.http) as wire:
        wire.socket.settimeout(20)
        fields = {":method": "GET", ":scheme": "http", ":path": "/v2", ":authority": "x"}
        block = b"".join(field(*pair) for pair in fields.items())
        with contextlib.suppress(OSError):
            for number in range(20_000):
                stream = 2 * number + 1
                wire.socket.sendall(
                    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
                    + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                )
                if number % 50 == 0:
                    wire.look()
                if wire.over:
                    break
        wire.look()
        assert wire.goodbye == 11


def test_more_streams_than_places_are_refused_and_may_come_again(models):
    with Server(models, max_connections=8) as server, Http2Client(server.http) as client:
        streams = [client.begin("POST", INFER, [("content-length", "500")]) for _ in range(20)]
        for stream in streams[4:]:
            client.wait(stream)
        refused = [stream for stream in streams if client.answers[stream].error == 7]
        assert len(refused) == 16
        for stream in streams:
            if stream not in refused:
                client.reset(stream)

        def again():
            answer = client.request("POST", INFER, BODY)
            assert answer.status == 200 or answer.error == 7
            return answer.status == 200

        wait_until(again)


def test_resets_of_streams_that_were_refused_are_no_flood(models):
    """A client that gives up a request does not know yet that the server has refused it."""
    patient = {"head_timeout": 300, "transfer_grace": 300}
    with (
        Server(models, max_connections=8, **patient) as server,
        Http2Client(server.http) as client,
    ):
        for _ in range(4):  # which is all that there is room for
            client.begin("POST", INFER, [("content-length", "500")])
        for _ in range(20):
            refused = [client.begin("POST", INFER, [("content-length", "500")]) for _ in range(50)]
            assert {client.wait(stream).error for stream in refused} == {7}
            client.socket.sendall(
                b"".join(frame(RST_STREAM, 0, stream, b"\0\0\0\x08") for stream in refused)
            )
        assert client.request("GET", LIVE).error == 7, "the connection goes on"


def test_streams_without_bodies_leave_places_for_everybody_else(models):
    patient = {"head_timeout": 300, "transfer_grace": 300}
    with (
        Server(models, max_connections=64, **patient) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(Http2Client(server.http)) for _ in range(10)]
        for client in clients:
            for _ in range(30):
                client.begin("POST", INFER)
        live = requests.get(f"{server.url}/v2/health/live", timeout=30)
        assert live.status_code == 200

        def is_answered():
            with Http2Client(server.http) as client:
                stream = client.begin("POST", INFER)
                client.send(stream, BODY, end=True)
                return client.wait(stream).status == 200

        wait_until(is_answered)
        assert all(client.request("POST", INFER, BODY).status in (0, 200) for client in clients)
        errors = {answer.error for client in clients for answer in client.answers.values()}
        assert errors == {None, 7}


def test_answers_that_nobody_takes_leave_places_for_everybody_else(models):
    """An answer above what a stream holds keeps a place of the HTTP server until its client takes it."""
    patient = {"head_timeout": 300, "transfer_grace": 300}
    with (
        Server(models, max_connections=64, **patient) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = []
        for _ in range(8):
            client = stack.enter_context(Http2Client(server.http, window=0, reads=False))
            for _ in range(4):
                stream = client.begin("POST", "/v2/models/echo/infer")
                client.send(stream, LARGE, end=True)
            clients.append(client)

        def is_answered():
            with Http2Client(server.http) as client:
                return client.request("POST", INFER, BODY).status == 200

        wait_until(is_answered)
        assert all(is_answered() for _ in range(20))
        errors = {answer.error for client in clients for answer in client.answers.values()}
        assert errors <= {None, 7, 11}


def test_clients_that_read_nothing_leave_places_for_everybody_else(tmp_path):
    """Not even the resets of their streams can be sent."""
    write_double(tmp_path)
    write_model(tmp_path, "wide", WIDE, WIDE_TENSORS)
    patient = {"head_timeout": 300, "transfer_grace": 300}
    with (
        Server(tmp_path, max_connections=64, **patient) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            client = stack.enter_context(Http2Client(server.http, window=1 << 24))
            for _ in range(4):
                stream = client.begin("POST", "/v2/models/wide/infer")
                client.send(stream, BODY, end=True)
            while len(client.socket.recv(1 << 13, socket.MSG_PEEK)) < 1 << 12:
                continue  # until an answer has begun, and fills the socket

        def is_answered():
            with Http2Client(server.http) as client:
                return client.request("POST", INFER, BODY).status == 200

        wait_until(is_answered)
        assert all(is_answered() for _ in range(20))


def test_expect_is_answered_before_the_body_comes(server):
    with Http2Client(server.http) as client:
        told = [("content-length", str(len(BODY))), ("expect", "100-continue")]
        stream = client.begin("POST", INFER, told)
        while not client.answers[stream].interim:
            client.read()
        client.send(stream, BODY, end=True)
        answer = client.wait(stream)
        assert (answer.interim, answer.status) == ([100], 200)
        stream = client.begin("POST", "/v2/models/none/infer", told)
        answer = client.wait(stream)
        assert (answer.interim, answer.status) == ([], 404)


def begin_late(client, cut=3):
    """Send the head of a request but for its last bytes; return its stream and what is left."""
    stream = client.h2.get_next_available_stream_id()
    head = [(":method", "GET"), (":scheme", "http"), (":path", LIVE), (":authority", "ksrv")]
    client.h2.send_headers(stream, head, end_stream=True)
    client.answers[stream] = Answer()
    whole = client.h2.data_to_send()
    client.socket.sendall(whole[:-cut])
    return stream, whole[-cut:]


def test_a_head_that_the_network_cuts_is_waited_for(tmp_path):
    """Connections are looked at again and again once the first time for a head is over."""
    write_double(tmp_path)
    with (
        Server(tmp_path, head_timeout=5.0) as server,
        Http2Client(server.http) as client,
        Http2Client(server.http) as silent,
    ):
        assert client.request("GET", LIVE).status == 200
        silent.until_over()  # which takes as long
        for _ in range(3):
            stream, rest = begin_late(client)
            assert not select.select([client.socket], [], [], 0.3)[0]
            client.socket.sendall(rest)
            assert client.wait(stream).status == 200


def test_a_head_that_never_ends_is_told_as_http_tells_it(tmp_path):
    write_double(tmp_path)
    with Server(tmp_path, head_timeout=0.5) as server, Http2Client(server.http) as client:
        assert client.request("GET", LIVE).status == 200
        stream, rest = begin_late(client)
        assert client.wait(stream).status == 408
        client.socket.sendall(rest)
        assert client.request("GET", LIVE).status == 200

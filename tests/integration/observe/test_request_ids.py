"""Each request has an id: the client's or one made for it, in its answer, its handler's headers and the log."""

import json
import re
import socket

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.streams import text_request, write_words
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer
from tests.support.wire.http_reader import double_body, read_answer

MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TELLS = """
from ksrv import BaseHandler

class Tells(BaseHandler):
    def inference(self, x):
        if x[0, 0] < 0:
            raise ValueError("negative")
        return {"y": x * 2}

    def postprocess(self, outputs):
        batch = self.context.batch
        for row, request in enumerate(batch.requests):
            batch.set_header(row, "seen", request.headers["x-request-id"])
            batch.set_header(row, "x-request-id", "the-handlers")
        return outputs
"""
KEPT = ["a", "A-Za_z0~9.:/+=@b", "x" * 128, "Root=1-67891233-abcdef012345678912345678"]
REPLACED = ["", " ", "x" * 129, "a b", "a,b", 'a"b', "a\tb", "\u00e9", "<script>", "%0d%0a", "a;b"]
BAD_PARENTS = [
    "", TRACE, PARENT[:-1], PARENT + "-more", "ff" + PARENT[2:], PARENT.upper(), f"00-{'0' * 32}-00f067aa0ba902b7-01",
    f"00-{TRACE}-{'0' * 16}-01", PARENT.replace("-", "_"),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "inline", TELLS, VECTOR)
    write_model(folder, "process", TELLS, VECTOR + "executor: process\n")
    write_words(folder)
    return folder


@pytest.fixture(scope="module")
def server(models):
    with Server(models, log_format="json") as running:
        yield running


def body(first=1.0):
    return double_body((first, 2, 3, 4))


def url(server, model="inline"):
    return f"{server.url}/v2/models/{model}/infer"


def raw(server, *fields, path="/v2/models/inline/infer", data=None):
    """The answer to a request whose header fields are these bytes."""
    data = body() if data is None else data
    host, port = server.http.split(":")
    lines = [
        b"POST %b HTTP/1.1" % path.encode(),
        b"Host: x",
        b"Content-Length: %d" % len(data),
        *fields,
    ]
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + data)
        return read_answer(connection)


def streamed(server, headers, text="a b"):
    headers = headers | {"Accept": "text/event-stream"}
    return requests.post(url(server, "words"), json=text_request(text), headers=headers)


WAYS = {
    "stream": streamed,
    "failing stream": lambda server, headers: streamed(server, headers, "refuse"),
    "fast path": lambda server, headers: requests.post(url(server), data=body(), headers=headers),
    "whole message": lambda server, headers: requests.post(
        url(server), data=iter([body()] * 1), headers=headers | {"TE": "trailers"}
    ),
    "process": lambda server, headers: requests.post(
        url(server, "process"), data=body(), headers=headers
    ),
    "health": lambda server, headers: requests.get(server.url + "/v2/health/live", headers=headers),
    "metadata": lambda server, headers: requests.get(server.url + "/v2", headers=headers),
    "app": lambda server, headers: requests.get(server.url + "/v2/models", headers=headers),
    "no route": lambda server, headers: requests.get(server.url + "/nothing", headers=headers),
    "no model": lambda server, headers: requests.post(
        url(server, "nope"), data=body(), headers=headers
    ),
    "bad body": lambda server, headers: requests.post(url(server), data=b"{", headers=headers),
    "failing": lambda server, headers: requests.post(url(server), data=body(-1), headers=headers),
    "failing process": lambda server, headers: requests.post(
        url(server, "process"), data=body(-1), headers=headers
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_has_the_clients_id_or_the_trace_id_or_an_id_of_its_own(server, way):
    def found(**headers):
        answer = WAYS[way](server, headers)
        assert (
            answer.headers.get("seen", answer.headers["x-request-id"])
            == answer.headers["x-request-id"]
        )
        return answer.headers["x-request-id"]  # joined if it came twice

    assert found(**{"X-Request-ID": "mine/1"}) == "mine/1"
    assert found(traceparent=PARENT) == TRACE
    first, second = found(), found()
    assert MADE.fullmatch(first) and MADE.fullmatch(second) and first != second


@pytest.mark.parametrize("given", KEPT)
def test_valid_request_ids_are_kept(server, given):
    assert raw(server, b"x-request-id:  " + given.encode() + b" ").headers["x-request-id"] == given


@pytest.mark.parametrize("given", REPLACED)
@pytest.mark.parametrize("path", ["/v2/models/inline/infer", "/v2/repository/index"])
def test_ids_that_are_replaced(server, given, path):
    answer = raw(server, b"X-Request-ID: " + given.encode("latin-1"), path=path)
    assert answer.status == (200 if "infer" in path else answer.status)
    assert MADE.fullmatch(answer.headers["x-request-id"])
    if "infer" in path:
        assert answer.headers["seen"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "fields", [[b"X-Request-ID: a", b"x-request-id: a"], [b"X-Request-ID: a", b"X-REQUEST-ID: b"]]
)
@pytest.mark.parametrize("path", ["/v2/models/inline/infer", "/v2/repository/index"])
def test_repeated_request_id_is_replaced(server, fields, path):
    assert MADE.fullmatch(raw(server, *fields, path=path).headers["x-request-id"])


@pytest.mark.parametrize("parent", BAD_PARENTS)
def test_parents_that_are_none(server, parent):
    assert MADE.fullmatch(raw(server, b"traceparent: " + parent.encode()).headers["x-request-id"])


def test_a_later_version_of_traceparent_may_have_more(server):
    later = "01" + PARENT[2:] + "-more"
    assert raw(server, b"traceparent: " + later.encode()).headers["x-request-id"] == TRACE


def test_what_is_not_http_gets_an_id(server):
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v2 HTTP/1.1\r\nHost: x\r\nX-Request-ID: mine\r\nbad header\r\n\r\n"
        )
        answer = read_answer(connection)
    assert answer.status == 400
    assert answer.headers["x-request-id"] == "mine" or MADE.fullmatch(
        answer.headers["x-request-id"]
    )


@pytest.mark.parametrize("model", ["inline", "process"])
def test_the_log_of_a_failing_handler_names_the_request(server, model):
    name = f"fails-in-{model}"
    requests.post(url(server, model), data=body(-1), headers={"X-Request-ID": name})
    wait_until(lambda: re.search(rf"failed in inference with .*; requests: {name}", server.log))
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    errors = [line for line in lines if line.get("level") == "error" and name in str(line)]
    assert [line["request_ids"] for line in errors] == [[name]]  # each failure is logged once
    assert "ValueError: negative (handler.py, line 7)" in errors[0]["message"]


def test_under_a_stock_worker(models):
    with Server(models / "inline", grpc="off", worker_class="gthread") as running:
        for way in ("fast path", "app", "no route", "bad body", "failing"):
            answer = WAYS[way](running, {"X-Request-ID": "mine"})
            assert answer.headers["x-request-id"] == "mine"
            assert MADE.fullmatch(WAYS[way](running, {}).headers["x-request-id"])
        assert MADE.fullmatch(raw(running, b"X-Request-ID: a b").headers["x-request-id"])
        assert raw(running, b"traceparent: " + PARENT.encode()).headers["x-request-id"] == TRACE


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.mark.parametrize("model", ["inline", "process"])
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ([("x-request-id", "mine")], "mine"),
        ([("traceparent", PARENT)], TRACE),
        ([], MADE),
        ([("x-request-id", "a b")], MADE),
        ([("x-request-id", "a"), ("x-request-id", "a")], MADE),
        ([("x-request-id", "x" * 129)], MADE),
    ],
)
def test_ids_come_back_and_reach_the_handler(channel, model, metadata, expected):
    request = infer_request(model, ("x", "FP32", [1, 4]), raw=[bytes(16)])
    _, call = stub_infer(channel).with_call(request, timeout=30, metadata=metadata)
    found = dict(call.initial_metadata())["x-request-id"]
    assert found == expected if isinstance(expected, str) else expected.fullmatch(found)
    assert dict(call.trailing_metadata())["seen"] == found


def test_errors_name_the_request(channel):
    request = infer_request("nope", ("x", "FP32", [1, 4]), raw=[bytes(16)])
    with pytest.raises(grpc.RpcError) as failed:
        stub_infer(channel)(request, timeout=30, metadata=[("x-request-id", "mine")])
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert dict(failed.value.trailing_metadata())["x-request-id"] == "mine"

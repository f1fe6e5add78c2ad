"""Generators as handlers over HTTP: events, lines, joined answers, the generate routes, failures, clients that leave."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ksrv.protocol.plain_json import MOST_BYTES
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.streams import (
    COUNT,
    TEXT,
    StreamedResponse,
    number_request,
    pieces,
    text_request,
    write_count,
    write_later,
    write_words,
)
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import open_connection, read_all

EXECUTORS = ("inline", "process")
BEHIND = {"inline": "", "process": "-process"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for executor in EXECUTORS:
        yaml, behind = f"executor: {executor}\n", BEHIND[executor]
        write_words(root, "words" + behind, yaml)
        write_words(
            root, "joined" + behind, yaml + "batching: {max_batch_size: 8, max_delay_ms: 300}\n"
        )
        write_count(root, "count" + behind, yaml)
        write_later(root, "later" + behind, yaml)
    with Server(root, workers=1) as made:
        yield made


@pytest.fixture(params=EXECUTORS)
def behind(request):
    return BEHIND[request.param]


def infer(server, model, document, accept="text/event-stream", **options):
    return StreamedResponse(server, f"/v2/models/{model}/infer", document, accept, **options)


def test_events_and_lines_hold_an_infer_response_each(server, behind):
    with infer(server, "words" + behind, text_request("one two three", id="7")) as found:
        assert (found.status, found.type) == (200, "text/event-stream; charset=utf-8")
        events = list(found.events())
    assert [name for name, _ in events] == [""] * 3
    documents = [document for _, document in events]
    assert {document["id"] for document in documents} == {"7"}
    assert pieces(documents) == ["one ", "two ", "three "]
    for accept in ("application/jsonl", "application/x-ndjson;q=0.9, application/json;q=0.5"):
        with infer(server, "words" + behind, text_request("one two"), accept) as found:
            assert found.type == accept.partition(";")[0]
            assert pieces(found.lines()) == ["one ", "two "]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json, text/event-stream;q=0.1"])
def test_clients_that_ask_for_json_get_the_joined_texts(server, behind, accept):
    with infer(server, "words" + behind, text_request("one two"), accept) as found:
        assert found.status == 200
        assert pieces(found.lines()) == ["one two "]


def test_numbers_have_no_joined_form(server, behind):
    with infer(server, "count" + behind, number_request(3), None) as found:
        assert found.status == 400
        assert "text/event-stream" in next(found.lines())["error"]
    with infer(server, "count" + behind, number_request(1), None) as found:
        assert pieces(found.lines()) == [1]


@pytest.mark.parametrize("model", ["words", "later", "count"])
def test_a_stream_may_be_empty(server, behind, model):
    asked = number_request(0) if model == "count" else text_request("")
    for accept in ("text/event-stream", "application/jsonl"):
        with infer(server, model + behind, asked, accept) as found:
            assert (found.status, found.type.partition(";")[0]) == (200, accept)
            assert found.response.read() == b""
    with infer(server, model + behind, asked, None) as found:
        if model == "count":
            assert found.status == 400
            assert "the stream that answers the request is empty" in next(found.lines())["error"]
        else:
            assert pieces(found.lines()) == [""]


def test_generate_routes_take_flat_json(server, behind):
    path = f"/v2/models/words{behind}"
    with StreamedResponse(server, f"{path}/generate", {"text_input": "a b", "id": "1"}) as found:
        assert list(found.lines()) == [
            {"id": "1", "model_name": f"words{behind}", "text_output": "a b "}
        ]
    asked = {"text": "a b", "parameters": {"pause": 0.001}, "times": 2}
    with StreamedResponse(server, f"{path}/generate_stream", asked, None) as found:
        assert found.type == "text/event-stream; charset=utf-8"
        texts = [(one["text_output"], one["piece"]) for _, one in found.events()]
    assert texts == [("a ", "a "), ("b ", "b "), ("a ", "a "), ("b ", "b ")]


def nested(depth):
    value = "a"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, "missing"),
        ([], "JSON object"),
        ("text", "JSON object"),
        ({"text_input": "a", "text": "b"}, "twice"),
        ({"text_input": None}, "null"),
        ({"text_input": {"a": 1}}, "object"),
        ({"text_input": []}, "empty list"),
        ({"text_input": 7}, "string"),
        ({"text_input": "a", "parameters": 3}, "parameters"),
        ({"text_input": "a", "parameters": {"x": {}}}, "x"),
        ({"text_input": "a", "times": 2, "parameters": {"times": 3}}, "twice"),
        ({"text_input": "a", "odd": [1]}, "odd"),
        ({"text_input": [["a", "b"]]}, "shape"),
        ({"text_input": "a", "id": 5}, "id"),
        ({"text_input": "a", "priority": -1}, "priority"),
        ({"text_input": nested(300)}, "the limit --limits-rank"),
        ({"text_input": nested(100)}, "the limit --limits-rank"),
        ({"text_input": ["a", nested(100)]}, "'text' (index 0): the rows are not of one shape"),
        ({"text_input": "a", "odd": nested(300)}, "'odd' is not an input"),
        ({"text_input": "a", "odd": {"b": [{}]}}, "'odd' is not an input"),
        ({"text_input": "a", "parameters": {"odd": nested(300)}}, "'odd' is not an input"),
    ],
)
@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_bad_generate_requests_are_told_what_is_wrong(server, asked, named, route):
    with StreamedResponse(server, f"/v2/models/words/{route}", asked) as found:
        assert found.status == 400
        assert named in next(found.lines())["error"]


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_a_generate_request_has_at_most_a_mebibyte(server, route):
    refused = {"text_input": "a", "odd": "x" * MOST_BYTES}
    with StreamedResponse(server, f"/v2/models/words/{route}", refused) as found:
        assert found.status == 413
        told = next(found.lines())["error"]
        assert told.startswith(f"a generate request may have at most {MOST_BYTES} bytes, got ")


def test_a_generate_request_of_nearly_a_mebibyte_is_answered(server):
    """The request that is made of it is longer than its bound."""
    long = {"text_input": "a", "odd": "x" * (MOST_BYTES - 64)}
    with StreamedResponse(server, "/v2/models/words/generate", long) as found:
        assert found.status == 200


def test_the_setting_is_named_where_it_is_the_lower_bound(tmp_path):
    write_words(tmp_path, "words")
    with Server(tmp_path, limits={"json": "64K"}) as own:
        long = {"text_input": "a", "odd": "x" * MOST_BYTES}
        with StreamedResponse(own, "/v2/models/words/generate", long) as found:
            assert found.status == 413
            named = "above the limit --limits-json (65536 bytes)"
            assert named in next(found.lines())["error"]


@pytest.mark.parametrize("word", ["refuse", "panic", "exit"])
def test_failure_in_a_stream_is_its_last_event_and_keeps_the_connection(server, behind, word):
    found = infer(server, "words" + behind, text_request(f"one {word} two"))
    with found:
        (_, first), (name, last) = found.events()
        assert pieces([first]) == ["one "]
        assert name == "error"
        assert ("refused" in last["error"]) == (word == "refuse")
        connection = found.connection
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
    with infer(server, "words" + behind, text_request("again")) as found:
        assert pieces(document for _, document in found.events()) == ["again "]


def streams_together(server, model, make, values):
    """Return the events of a stream for each value, all asked for at the same time."""

    def ask(value):
        with infer(server, model, make(value)) as response:
            return list(response.events())

    with ThreadPoolExecutor(len(values)) as pool:
        return dict(zip(values, pool.map(ask, values), strict=True))


def test_each_request_of_a_batch_has_a_stream_of_its_own(server, behind):
    """Joined requests end, and fail, one by one."""
    texts = ["a", "b b b", "c refuse c", "d d"]
    found = streams_together(server, "joined" + behind, text_request, texts)
    assert pieces(document for _, document in found["a"]) == ["a "]
    assert pieces(document for _, document in found["b b b"]) == ["b "] * 3
    assert pieces(document for _, document in found["d d"]) == ["d "] * 2
    [(_, first), (name, last)] = found["c refuse c"]
    assert (pieces([first]), name, last) == (["c "], "error", {"error": "this word is refused"})


def test_a_generator_for_all_rows_ends_requests_one_by_one(server, behind):
    found = streams_together(server, "count" + behind, number_request, (1, 2, 5))
    for number, events in found.items():
        assert pieces(document for _, document in events) == list(range(1, number + 1))


def test_asynchronous_generators_stream(server, behind):
    with infer(server, "later" + behind, text_request("abc", pause=0.001)) as found:
        assert pieces(document for _, document in found.events()) == ["a", "b", "c"]
    with infer(server, "later" + behind, text_request("a!c")) as found:
        (_, first), (name, last) = found.events()
        assert (pieces([first]), name) == (["a"], "error")
        assert "secret" not in last["error"]
    with infer(server, "later" + behind, text_request("ab"), None) as found:
        assert pieces(found.lines()) == ["ab"]


def test_the_generator_is_closed_at_the_deadline(server, behind, tmp_path):
    closed = tmp_path / "closed"
    asked = text_request("x " * 1000, closed=str(closed), pause=0.02, timeout=300_000)
    with infer(server, "words" + behind, asked) as found:
        events = list(found.events())
    assert len(events) > 1
    assert events[-1][0] == "error"
    assert "deadline" in events[-1][1]["error"]
    wait_until(closed.exists)
    with infer(server, "words" + behind, text_request("still there")) as found:
        assert len(list(found.events())) == 2


def test_the_requested_outputs_and_binary_flags_do_not_break_a_stream(server):
    asked = text_request("a b") | {
        "outputs": [{"name": "piece", "parameters": {"binary_data": True}}],
    }
    asked["parameters"] = {"binary_data_output": True}
    with infer(server, "words", asked) as found:
        assert pieces(document for _, document in found.events()) == ["a ", "b "]
    asked["outputs"] = [{"name": "other"}]
    with infer(server, "words", asked) as found:
        assert found.status == 400


def test_http_1_0_clients_get_the_stream_up_to_the_end_of_the_connection(server):
    body = json.dumps(text_request("a b")).encode()
    with open_connection(server.http, 60) as sock:
        sock.sendall(
            b"POST /v2/models/words/infer HTTP/1.0\r\nHost: x\r\nAccept: text/event-stream\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = read_all(sock)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.")
    assert b"chunked" not in head.lower()
    assert events.count(b"data: ") == 2


def test_piece_that_json_cannot_express_ends_the_stream_after_the_others(tmp_path):
    """Earlier pieces are sent, also if all pieces arrived at once."""
    handler = """
import numpy as np

from ksrv import BaseHandler


class Halves(BaseHandler):
    def inference(self, text):
        for piece in ([b"a"], [b"b"], np.ones(1, np.float16), [b"c"]):
            yield piece
"""
    settings = "".join(line for line in TEXT.splitlines(True) if "outputs" not in line)
    write_model(tmp_path, "halves", handler, settings)
    with Server(tmp_path) as server, infer(server, "halves", text_request("x")) as found:
        *events, (name, error) = found.events()
    assert pieces(document for _, document in events) == ["a", "b"]
    assert (name, "FP16" in error["error"]) == ("error", True)


WARM = """
inputs: [{name: n, datatype: INT64, shape: [-1, 1]}]
outputs: [{name: value, datatype: INT64, shape: [-1, 1]}]
"""
TWICE = """
def inference(n):
    yield {"value": n}
    yield {"value": n + 1}
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_warming_up_a_stream_of_numbers_is_no_failure(tmp_path, executor):
    """Zeros have two answers of one model and none of the other; neither has a joined form."""
    write_model(tmp_path, "none", COUNT, WARM + f"executor: {executor}\n")
    write_model(tmp_path, "two", TWICE, WARM + f"executor: {executor}\n")
    with Server(tmp_path) as made:
        assert "not warmed up" not in made.log and "FAILED" not in made.log

"""Requests in plain JSON that the HTTP server takes without the app get the app's answers, byte for byte.

Each request is sent to a server that reads the numbers itself and to a server that has Python read them, and the app is
called too.
"""

import json
import socket

import pytest
from falcon.testing import TestClient

from ksrv.server.app import make_app
from ksrv.server.rest.fast_path import FAST_PATH_JSON
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from tests.support.native.fast_path import MODELS, ask, ask_both, started, status

TEXTS = """
from ksrv import BaseHandler

class Texts(BaseHandler):
    def inference(self, text):
        return {"text": [one.upper() for one in text]}
"""
TEXTS_YAML = """
handler: handler.py
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs: [{name: text, datatype: BYTES, shape: [-1]}]
"""
FLAT = """
from ksrv import BaseHandler

class Flat(BaseHandler):
    def inference(self, x):
        return {"rows": x, "sum": x.sum(axis=(1, 2))}
"""
FLAT_YAML = """
handler: handler.py
inputs: [{name: x, datatype: INT32, shape: [-1, 2, 2]}]
outputs:
  - {name: rows, datatype: INT32, shape: [-1, 2, 2]}
  - {name: sum, datatype: INT64, shape: [-1]}
"""
WHOLE = FLAT.replace('{"rows"', '{"whole": x.reshape(1, -1), "rows"')
WHOLE_YAML = FLAT_YAML + "  - {name: whole, datatype: INT32, shape: [1, 4]}\n"
NAMED = """
from ksrv import BaseHandler

class Named(BaseHandler):
    def inference(self, **inputs):
        return {name + "_": value for name, value in inputs.items()}
"""
RESERVED_YAML = """
handler: handler.py
inputs: [{name: id, datatype: INT64, shape: [-1]}, {name: parameters, datatype: INT64, shape: [-1]}]
outputs: [{name: id_, datatype: INT64, shape: [-1]}, {name: parameters_, datatype: INT64, shape: [-1]}]
"""
PADDED_YAML = """
handler: handler.py
inputs:
  - {name: x, datatype: FP32, shape: [-1, n], pad: {value: 0, mask: m}}
  - {name: m, datatype: INT64, shape: [-1, n]}
outputs: [{name: x_, datatype: FP32, shape: [-1, n]}, {name: m_, datatype: INT64, shape: [-1, n]}]
"""
OWN = {
    "texts": (TEXTS, TEXTS_YAML),
    "flat": (FLAT, FLAT_YAML),
    "whole": (WHOLE, WHOLE_YAML),
    "reserved": (NAMED, RESERVED_YAML),
    "padded": (NAMED, PADDED_YAML),
}
KEPT = ("pair", "one", "versions/2", "joined", "separate", "wide", "open", "every", "every-joined")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    models = {name: MODELS[name] for name in KEPT} | OWN
    with started(tmp_path_factory.mktemp("models"), models) as engine:
        yield engine


@pytest.fixture(scope="module")
def app(engine):
    return TestClient(make_app(server_parts(engine, ServerSettings())))


def posted(path, text, fields=""):
    body = text if isinstance(text, bytes) else text.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    return path, head.encode() + body, body


def predict(model, instances, **fields):
    given = isinstance(instances, str | bytes)
    text = instances if given else json.dumps({"instances": instances})
    return posted(f"/v1/models/{model}:predict", text, **fields)


def generate(model, document, **fields):
    text = document if isinstance(document, str) else json.dumps(document)
    return posted(f"/v2/models/{model}/generate", text, **fields)


ONE = [[1, 2.5, -3, 0.1]]
EVERY = [{"bools": [True, False], "ints": 7, "reals": [[0.5, 1e-9]]}]
FAST = {
    "one row": predict("one", ONE),
    "rows": predict("one", ONE * 3),
    "rows that are joined": predict("joined", ONE * 3),
    "rows with blanks": predict("one", ' {"instances" : [ [ 1 , 2,\n3,\t4 ] ] } \n'),
    "a version": predict("versions/versions/2", ONE),
    "a signature": predict("one", '{"signature_name": "a]}", "instances": [[1, 2, 3, 4]]}'),
    "rows of two inputs": predict("pair", [{"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}] * 2),
    "inputs in another order": predict("pair", [{"b": [1, 2, 3, 4], "a": [5, 6, 7, 8]}]),
    "a handler process": predict("separate", ONE),
    "undeclared outputs": predict("open", ONE),
    "each datatype": predict("every", EVERY * 3),
    "each datatype, joined": predict("every-joined", EVERY),
    "flat rows": predict("flat", [[1, 2, 3, 4], [5, 6, 7, 8]]),
    "an output of one row": predict("whole", [[[1, 2], [3, 4]]]),
    "two outputs": predict("flat", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    "a large answer": predict("wide", [[0.1] * 4096]),
    "an object of a row": generate("one", {"x": [1, 2, 3, 4]}),
    "an object of rows": generate("one", {"x": ONE * 2}),
    "an object of one row with its dimension": generate("one", {"x": ONE}),
    "an object of two inputs": generate("pair", {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}),
    "an object that is joined": generate("joined", {"x": [1, 2, 3, 4]}),
    "an object with a version": generate("versions/versions/2", {"x": [1, 2, 3, 4]}),
    "an object of each datatype": generate("every", EVERY[0]),
    "an object of values by row": generate(
        "every", {"bools": [[True, False]] * 2, "ints": [1, 2], "reals": [[[1, 2]]] * 2}
    ),
    "an object with two outputs": generate("flat", {"x": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}),
    "an object of a matrix": generate("flat", {"x": [[1, 2], [3, 4]]}),
    "inputs with the names of other fields": generate("reserved", {"id": 7, "parameters": 8}),
    "a padded row without its dimension": generate("padded", {"x": [1, 2, 3], "m": [1, 1, 0]}),
    "an error of the handler": predict("one", [[-2, 0, 0, 0]]),
    "a header of the handler": predict("one", [[-4, 0, 0, 0]]),
    "a look at the request": predict("one", [[-6, 0, 0, 0]], fields="X-Mine: abc\r\n"),
    "a failed row": generate("one", {"x": [-7, 0, 0, 0]}),
}
GENERAL = {
    "texts": predict("texts", ["a", "ü\n"]),
    "base64": predict("texts", [{"b64": "YQ=="}]),
    "a text": generate("texts", {"text_input": "a"}),
    "texts with an id": generate("texts", {"text": ["a", "b"], "id": "7"}),
    "an object with an output of one row": generate("whole", {"x": [[1, 2], [3, 4]]}),
    "parameters": generate("one", {"x": [1, 2, 3, 4], "temperature": 0.5}),
    "records": generate("one", [{"x": [1, 2, 3, 4]}]),
    "null": predict("one", [[1, 2, None, 4]]),
    "a negative zero": predict("one", "{\"instances\": [[-0, -0.0, 1, 2]]}"),
    "NaN": predict("one", '{"instances": [[NaN, 2, 3, 4]]}'),
    "an infinity": predict("one", '{"instances": [[1e999, 2, 3, 4]]}'),
    "a value above the range": predict("one", '{"instances": [[1e39, 2, 3, 4]]}'),
    "a fraction for integers": predict("every", [EVERY[0] | {"ints": 1.5}]),
    "too many values": predict("one", [[1, 2, 3, 4, 5]]),
    "too few values": predict("one", [[1, 2, 3]]),
    "too many dimensions": predict("one", [[[1, 2, 3, 4]]]),
    "ragged rows": predict("flat", [[[1, 2], [3, 4]], [[1], [2, 3, 4]]]),
    "a ragged row": predict("flat", [[[1, 2, 3], [4]]]),
    "an empty row": predict("one", [[]]),
    "no rows": predict("one", []),
    "no instances": predict("one", "{}"),
    "inputs": predict("one", '{"inputs": [[1, 2, 3, 4]]}'),
    "two keys of rows": predict("one", '{"instances": [[1, 2, 3, 4]], "instances": [[5, 6, 7, 8]]}'),
    "another member": predict("one", '{"instances": [[1, 2, 3, 4]], "more": [1]}'),
    "an escaped key": predict("one", '{"inst\\u0061nces": [[1, 2, 3, 4]]}'),
    "an input twice": predict("pair", '{"instances": [{"a": [1,2,3,4], "a": [5,6,7,8], "b": [1,2,3,4]}]}'),
    "an unknown input": predict("one", [{"z": [1, 2, 3, 4]}]),
    "a missing input": predict("pair", [{"a": [1, 2, 3, 4]}]),
    "rows of several inputs without names": predict("pair", ONE),
    "rows that differ in their inputs": predict("pair", [{"a": ONE[0], "b": ONE[0]}, {"a": ONE[0]}]),
    "unequal rows": generate("pair", {"a": ONE, "b": ONE * 2}),
    "a padded row of another length": generate("padded", {"x": [[1], [2], [3]], "m": [1, 1, 0]}),
    "a row that is not a list": predict("one", [[1, 2, 3, 4], 5]),
    "bytes after the object": predict("one", '{"instances": [[1, 2, 3, 4]]} 5}'),
    "an object that does not end": predict("one", '{"instances": [[1, 2, 3, 4]]'),
    "a trailing comma": predict("one", '{"instances": [[1, 2, 3, 4],]}'),
    "no JSON": predict("one", "[" * 40),
    "a leading zero": predict("one", '{"instances": [[01, 2, 3, 4]]}'),
    "too many rows": predict("joined", ONE * 9),
    "a half": generate("every", EVERY[0] | {"bools": [1, 0]}),
    "bytes that are not text": predict("one", b'{"instances": [["\xff", 2, 3, 4]]}'),
}  # fmt: skip


@pytest.mark.parametrize("case", FAST.values(), ids=FAST)
def test_numbers_are_read_without_python_and_answered_as_by_the_app(fast, general, app, case):
    assert ask_both(fast, general, case[1]) == 1
    assert_as_app(fast, app, case)


@pytest.mark.parametrize("case", GENERAL.values(), ids=GENERAL)
def test_other_bodies_are_read_in_python_and_answered_as_by_the_app(fast, general, app, case):
    assert ask_both(fast, general, case[1]) == 0
    assert_as_app(fast, app, case)


def assert_as_app(fast, app, case):
    path, message, body = case
    head, answered = ask(fast[1], message)
    expected = app.simulate_post(path, body=body, headers={"X-Mine": "abc"})
    assert (status(head), answered) == (expected.status_code, expected.content)


@pytest.mark.parametrize(
    "case",
    [
        predict("one", json.dumps({"instances": ONE}) + " " * FAST_PATH_JSON),
        predict("one", ONE, fields="Inference-Header-Content-Length: 4\r\n"),
        predict("unknown", ONE),
        predict("one", ONE, fields="Content-Type: multipart/form-data; boundary=x\r\n"),
        posted("/v1/models/one:predict/", json.dumps({"instances": ONE})),
        posted("/v1/models/one:predict?a=1", json.dumps({"instances": ONE})),
        posted("/v1/models/:predict", "{}"),
        posted("/v1/models/one:explain", json.dumps({"instances": ONE})),
        posted("/v2/models/one/generate_stream", '{"x": [1, 2, 3, 4]}'),
    ],
    ids=lambda case: case[1][:60].decode(),
)
def test_unusual_messages_are_left_to_the_app(fast, case):
    http_server, address = fast
    before = http_server.counters()["app"]
    with socket.create_connection(address, 20) as client:
        client.sendall(case[1])
        message = http_server.next_app_message()
        assert message is not None
        message.answer(200, b"200 OK", b"content-length: 0\r\n", [])
    assert http_server.counters()["app"] == before + 1

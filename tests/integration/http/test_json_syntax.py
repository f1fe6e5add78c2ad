"""Text that is not JSON is reported as a syntax error at a byte, anywhere in a request."""

import json
import re

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_double, write_text

TENSOR = '{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}'
# The fault is at the mark.
BROKEN = [
    '{"inputs":[^}',
    '{"inputs": ^oops',
    '{"inputs": [^oops]}',
    '{"inputs": n^ope}',
    '{"inputs": tru^',
    '{"inputs": ^]',
    '{"inputs": ^-}',
    '{"id": f^ive, "inputs": [T]}',
    '{"outputs": [^}, "inputs": [T]}',
    '{"inputs": [T], "parameters": ^oops}',
    '{"inputs": [T], "parameters": {"priority": ^high}}',
    '{"inputs": [T], "parameters": {"binary_data_output": ^yes}}',
    '{"inputs": [T], "parameters": {"own": ^yes}}',
    TENSOR.replace('"x"', "^x"),
    TENSOR.replace('"FP32"', "^FP32"),
    TENSOR.replace("[1, 4]", "^oops"),
    TENSOR.replace("[1, 4]", "[1, ^oops]"),
    TENSOR.replace("[1, 4]", "[1, ^]"),
    TENSOR.replace("[1, 2, 3, 4]", "^oops"),
    TENSOR.replace("[1, 2, 3, 4]", "[1, 2, 3, ^oops]"),
    TENSOR.replace("[1, 2, 3, 4]", "[1, 2, 3, tru^]"),
    TENSOR.replace("[1, 2, 3, 4]", "[1, 2, 3, ^]"),
    TENSOR.replace("[1, 2, 3, 4]", "[1, 2, 3, ^+4]"),
    TENSOR.replace("FP32", "BYTES").replace("[1, 2, 3, 4]", '["é", ^oops]'),
]
VALID = [
    ('{"inputs": 5}', "'inputs' must be an array, not a number"),
    ('{"inputs": -0.5e3}', "not a number"),
    ('{"inputs": null}', "not null"),
    ('{"inputs": [5]}', "an entry of 'inputs' must be an object, not a number"),
    ('{"id": true, "inputs": [T]}', "'id' must be a string, not true"),
    (TENSOR.replace("[1, 4]", "[1, 1.5]"), "dimension 1 of 'shape' must be an integer"),
    (TENSOR.replace("[1, 2, 3, 4]", "[1, 2, 3, true]"), "value 3 of 'data' is true"),
]


@pytest.fixture(scope="module")
def text_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("syntax")
    write_double(folder)
    write_text(folder)
    with Server(folder, grpc="off") as running:
        yield running


def whole(text):
    template = text if '"inputs"' in text else '{"inputs": [T]}'
    return template.replace("T", TENSOR if template is text else text, 1)


def error_of(server, text):
    model = "text" if "BYTES" in text else "double"
    answer = requests.post(f"{server.url}/v2/models/{model}/infer", data=text.encode())
    assert answer.status_code == 400
    return answer.json()["error"]


@pytest.mark.parametrize("text", BROKEN)
def test_error_names_the_byte(text_server, text):
    before, _, behind = whole(text).partition("^")
    with pytest.raises(json.JSONDecodeError):
        json.loads(before + behind)
    error = error_of(text_server, before + behind)
    assert "not valid JSON" in error
    assert re.search(r"at byte (\d+)(;|$)", error)[1] == str(len(before.encode())), error


@pytest.mark.parametrize(("text", "sentence"), VALID)
def test_valid_json_of_the_wrong_type_names_the_expected_type(text_server, text, sentence):
    json.loads(whole(text))
    assert sentence in error_of(text_server, whole(text))

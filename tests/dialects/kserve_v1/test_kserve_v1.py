"""KServe's protocol v1: `:predict` gives v2's outputs in the form of v1."""

import base64
import gzip

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files
from tests.support.models import (
    ECHO,
    TWO_YAML,
    write_echo,
    write_mean,
    write_model,
    write_text,
    write_two,
)

ANY = """
def handle(batch, context):
    return {"total": batch["x"].sum(axis=1)}
"""


@pytest.fixture(scope="module", params=["", "executor: process\n"], ids=["inline", "process"])
def served(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("v1")
    write_echo(root)
    write_mean(root)
    write_text(root)
    write_two(root)
    write_model(root, "any", ANY, "")
    write_model(
        root,
        "half",
        ECHO,
        TWO_YAML.partition("  - {name: b")[0].replace("INT32", "FP16").replace("name: a", "name: x")
        + "outputs: [{name: y, datatype: FP16, shape: [-1, 2]}]\n",
    )
    for folder in root.iterdir():
        with (folder / "model.yaml").open("a") as yaml:
            yaml.write(request.param)
    with Server(root) as server:
        yield server


def predict(server, model, document, **keywords):
    form = {"json": document} if isinstance(document, dict | list) else {"data": document}
    url = f"{server.url}/v1/models/{model}:predict"
    return requests.post(url, **form, timeout=60, **keywords)


def predictions(server, model, *instances):
    answer = predict(server, model, {"instances": list(instances)})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    assert list(answer.json()) == ["predictions"]
    return answer.json()["predictions"]


def test_rows_of_the_only_input(served):
    rows = [[1.5, -2, 3e8], [0, 1, 2]]
    assert predictions(served, "echo", *rows) == rows
    assert predictions(served, "echo", {"x": [1, 2]}, {"x": [3, 4]}) == [[1, 2], [3, 4]]


def test_objects_of_several_inputs_and_outputs(served):
    rows = [{"a": [1, 2], "b": [3, 4]}, {"b": [7, 8], "a": [5, 6]}]
    expected = [{"sum": [4, 6], "first": 1}, {"sum": [12, 14], "first": 5}]
    assert predictions(served, "two", *rows) == expected


def test_a_model_without_declared_inputs(served):
    assert predictions(served, "any", {"x": [1, 2]}, {"x": [3, 4]}) == [3.0, 7.0]


def test_texts_and_bytes(served):
    assert predictions(served, "text", "a", {"b64": "w6k="}, {"x": "b"}["x"]) == ["a", "é", "b"]


def test_images(served):
    images = [files.jpeg(60, 90, seed=1), files.png(33, 57, seed=5)]
    texts = [base64.b64encode(image).decode() for image in images]
    sent = [("image", ("a", image)) for image in images]
    v2 = requests.post(f"{served.url}/v2/models/mean/infer", files=sent, timeout=60)
    expected = np.reshape(v2.json()["outputs"][0]["data"], (2, 3)).tolist()
    for rows in (
        [{"b64": text} for text in texts],
        texts,
        [f"data:image/png;base64,{text}" for text in texts],
        [{"image": {"b64": text}} for text in texts],
    ):
        assert predictions(served, "mean", *rows) == expected
    numbers = np.ones((1, 8, 8, 3)).tolist()
    assert predictions(served, "mean", *numbers) == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("model", "document", "text"),
    [
        ("echo", b"", "not valid JSON"),
        ("echo", b"[" * 5000, "not valid JSON"),
        ("echo", b'{"instances": [NaN]}', "not valid JSON"),
        ("echo", [], "'instances'"),
        ("echo", {}, "'instances'"),
        ("echo", {"instances": []}, "'instances'"),
        ("echo", {"instances": {"x": 1}}, "'instances'"),
        ("echo", {"instances": [["a"]]}, "datatype 'BYTES'"),
        ("echo", {"instances": [[1, 2], [3]]}, "not of one shape"),
        ("two", {"instances": [{"a": [1, None], "b": [1, 2]}]}, "'a' (index 0) holds null"),
        ("echo", {"instances": [1]}, "expects [-1, -1]"),
        ("echo", {"instances": [{"z": [1]}]}, "unknown input 'z'"),
        ("echo", {"instances": [{"x": [1]}, {"y": [1]}]}, "instance 1 does not have"),
        ("echo", {"instances": [{"x": [1]}, 3]}, "instance 1 does not have"),
        ("echo", {"instances": [{}]}, "'x' is missing"),
        ("any", {"instances": [{}, {}]}, "instance 0 is an empty object"),
        ("two", {"instances": [[1, 2]]}, "must be an object of inputs"),
        ("two", {"instances": [{"a": [1, 2]}]}, "'b' is missing"),
        ("two", {"instances": [{"a": [1, 2.5], "b": [1, 2]}]}, "has a fraction"),
        ("two", {"instances": [{"a": [1, 2**31], "b": [1, 2]}]}, "out of range"),
        ("mean", {"instances": [{"b64": "!"}]}, "not base64"),
        ("mean", {"instances": [{"b64": 3}]}, "not a string"),
        ("half", {"instances": [[1, 2]]}, "JSON does not carry"),
        ("half", {"instances": [[1, 70000]]}, "too large for FP16, the first is 70000.0"),
        ("echo", {"instances": [[1, [2]]]}, "not of one shape"),
        ("two", {"instances": [{"a": [1, [2]], "b": [1, 2]}]}, "not of one shape"),
        ("two", {"instances": [{"a": [[1], [2]], "b": [1, 2]}]}, "each row has the shape [2, 1]"),
        ("two", {"instances": [{"a": [1, 2, 3], "b": [1, 2]}]}, "each row has the shape [3]"),
        ("text", {"instances": [[[["a"]]]]}, "each row has the shape [1, 1, 1]"),
        ("mean", {"instances": [["AAAA"]]}, "each row has the shape [1]"),
        (
            "any",
            {"instances": [dict.fromkeys(map(str, range(257)), 1)]},
            "--limits-inputs (256 inputs)",
        ),
        ("any", {"inputs": dict.fromkeys(map(str, range(257)), 1)}, "--limits-inputs (256 inputs)"),
        (
            "echo",
            b'{"instances": %s1%s}' % (b"[" * 900, b"]" * 900),
            "limit --limits-rank (32 dimensions)",
        ),
        (
            "text",
            b'{"instances": %s"a"%s}' % (b"[" * 300, b"]" * 300),
            "limit --limits-rank (32 dimensions)",
        ),
        (
            "echo",
            b'{"instances": [[1, %s1%s]]}' % (b'{"a":' * 900, b"}" * 900),
            "--limits-json-depth",
        ),
        ("text", b'{"instances": ["a", %s1%s]}' % (b'{"a":' * 900, b"}" * 900), "not a string"),
    ],
)
def test_what_is_no_predict_request_is_refused(served, model, document, text):
    answer = predict(served, model, document)
    assert answer.status_code == 400, answer.text
    assert text in answer.json()["error"]


def test_binary_data_is_not_v1(served):
    answer = predict(served, "echo", b"{}", headers={"Inference-Header-Content-Length": "2"})
    assert (answer.status_code, "JSON alone" in answer.text) == (400, True)


def test_a_request_above_the_limit_of_v1_is_413(served):
    text = b'{"instances": ["' + b"x" * (4 * 1024 * 1024) + b'"]}'
    forms = [
        {},
        {"headers": {"Content-Encoding": "gzip"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"Inference-Header-Content-Length": str(len(text))}},
    ]
    for form in forms:
        sent = gzip.compress(text, 0) if "Content-Encoding" in str(form) else text
        answer = predict(served, "text", iter([sent]) if "chunked" in str(form) else sent, **form)
        assert answer.status_code == 413, form
        told = answer.json()["error"]
        assert told.startswith("a request of protocol v1 may have at most 4194304 bytes, got "), (
            form
        )


def test_a_lower_limit_on_json_is_named_in_v1(tmp_path):
    write_text(tmp_path)
    text = b'{"instances": ["' + b"x" * 65_536 + b'"]}'
    with Server(tmp_path, limits={"json": "64K"}) as server:
        answer = predict(server, "text", text)
    assert answer.status_code == 413
    assert "above the limit --limits-json (65536 bytes)" in answer.json()["error"]


def test_states(served):
    models = requests.get(f"{served.url}/v1/models", timeout=30).json()["models"]
    assert models == ["any", "echo", "half", "mean", "text", "two"]
    one = requests.get(f"{served.url}/v1/models/echo", timeout=30).json()
    assert (one["name"], one["ready"]) == ("echo", True)
    assert one["model_version_status"][0]["state"] == "AVAILABLE"
    assert requests.get(f"{served.url}/v1/models/no", timeout=30).status_code == 404
    assert requests.get(f"{served.url}/v1/models/echo:predict", timeout=30).status_code == 405
    explained = requests.post(
        f"{served.url}/v1/models/echo:explain", json={"instances": [[1]]}, timeout=30
    )
    assert (explained.status_code, "no explanations" in explained.text) == (400, True)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/jsonl"])
def test_an_answer_is_never_streamed(served, accept):
    plain = predict(served, "two", {"instances": [{"a": [1, 2], "b": [3, 4]}]})
    asked = {"Accept": accept}
    answer = predict(served, "two", {"instances": [{"a": [1, 2], "b": [3, 4]}]}, headers=asked)
    assert answer.status_code == 200
    assert answer.json() == plain.json()


@pytest.mark.parametrize(
    "fields", [{"Content-Type": "image/jpeg"}, {"Inference-Header-Content-Length": "2"}]
)
def test_the_limit_holds_whatever_a_body_says_that_it_is(served, fields):
    answer = predict(served, "two", b" " * (5 << 20), headers=fields)
    assert answer.status_code == 413
    assert "5242880" in answer.json()["error"]

"""TensorFlow Serving's REST routes: whole tensors, signatures, labels, examples, metadata."""

import base64

import numpy as np
import pytest
import requests

from tests.support.images import files

IMAGE = base64.b64encode(files.jpeg(60, 90, seed=1)).decode()


def post(server, path, document):
    return requests.post(f"{server.url}/v1/models/{path}", json=document, timeout=60)


def get(server, path):
    return requests.get(f"{server.url}/v1/models/{path}", timeout=60)


@pytest.mark.parametrize(
    ("path", "document", "answer"),
    [
        ("fp32:predict", {"inputs": [[1, 2], [3, 4]]}, {"outputs": [[1, 2], [3, 4]]}),
        ("fp32:predict", {"inputs": {"x": [[1, 2]]}}, {"outputs": [[1, 2]]}),
        (
            "fp32:predict",
            {"signature_name": "any", "instances": [[1, 2]]},
            {"predictions": [[1, 2]]},
        ),
        ("fp32/versions/1:predict", {"inputs": [[1, 2]]}, {"outputs": [[1, 2]]}),
        ("fp32/versions/0:predict", {"instances": [[1, 2]]}, {"predictions": [[1, 2]]}),
        (
            "two:predict",
            {"inputs": {"a": [[1, 2], [5, 6]], "b": [[3, 4], [7, 8]]}},
            {"outputs": {"sum": [[4, 6], [12, 14]], "first": [1, 5]}},
        ),
        (
            "two:predict",
            {"instances": [{"a": [1, 2], "b": [3, 4]}]},
            {"predictions": [{"sum": [4, 6], "first": 1}]},
        ),
        ("text:predict", {"inputs": ["a", {"b64": "w6k="}]}, {"outputs": ["a", "é"]}),
        ("text:predict", {"inputs": {"b64": "w6k="}}, {"outputs": ["é"]}),
        ("reversed:predict", {"instances": ["ab"]}, {"predictions": [{"b64": "YmE="}]}),
        ("reversed:predict", {"inputs": {"x": ["ab"]}}, {"outputs": [{"b64": "YmE="}]}),
        (
            "classes:classify",
            {"examples": [{"x": [1, 1, 2]}]},
            {"result": [[["ant", 0.25], ["bee", 0.25], ["cow", 0.5]]]},
        ),
        (
            "sum:regress",
            {"signature_name": "", "context": {"b": 2}, "examples": [{"a": 1.5}, {"a": [2.5], "b": 1}]},
            {"result": [3.5, 3.5]},
        ),
        ("sum/versions/1:regress", {"examples": [{"a": 1, "b": 2}]}, {"result": [3]}),
    ],
)  # fmt: skip
def test_answers_have_the_form_that_was_asked(served, path, document, answer):
    found = post(served, path, document)
    assert (found.status_code, found.json()) == (200, answer)


def test_pictures_by_row_and_by_column(served):
    rows = post(served, "mean:predict", {"instances": [{"image": {"b64": IMAGE}}] * 2})
    columns = post(served, "mean:predict", {"inputs": {"image": [{"b64": IMAGE}] * 2}})
    only = post(served, "mean:predict", {"inputs": [{"b64": IMAGE}] * 2})
    assert np.shape(rows.json()["predictions"]) == (2, 3)
    assert rows.json()["predictions"] == columns.json()["outputs"] == only.json()["outputs"]


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("fp32:predict", {"instances": [[1, 2]], "inputs": [[1, 2]]}, 400, "not both"),
        ("fp32:predict", {"inputs": []}, 400, "whole tensors by name"),
        ("fp32:predict", {"inputs": None}, 400, "whole tensors by name"),
        ("fp32:predict", {"inputs": {}}, 400, "'x' is missing"),
        ("fp32:predict", {"inputs": {"z": [[1, 2]]}}, 400, "unknown input 'z'"),
        ("fp32:predict", {"inputs": [[1, 2], [3]]}, 400, "not of one shape"),
        ("fp32:predict", {"inputs": [[1, "2"]]}, 400, "'x'"),
        ("two:predict", {"inputs": [[1, 2]]}, 400, "the model two has 'a', 'b'"),
        (
            "fp32:predict",
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
            400,
            "KServe v2 go to /v2/models/NAME/infer",
        ),
        ("fp32/labels/canary:predict", {"instances": [[1, 2]]}, 404, "no label 'canary'; it has none"),
        ("nobody/labels/canary:predict", {"instances": [[1, 2]]}, 404, "no label 'canary'"),
        ("fp32/versions/9:predict", {"instances": [[1, 2]]}, 404, "version '9' is not found"),
        ("classes:classify", {"instances": [[1, 2, 3]]}, 400, "the request has no examples"),
        ("classes:classify", {"examples": [[1, 2, 3]]}, 400, "rows go to :predict"),
        ("classes:classify", {"examples": [{"x": [1, 2]}]}, 400, "'x'"),
        ("classes:classify", [], 400, "the request has no examples"),
        ("classes:classify", {"examples": [{"x": [1, 2, 3]}], "context": [1]}, 400, "'context'"),
        ("two:regress", {"examples": [{"a": [1, 2], "b": [3, 4]}]}, 400, "call predict"),
        ("classes:regress", {"examples": [{"x": [1, 2, 3]}]}, 400, "has one; call predict or classify"),
    ],
)  # fmt: skip
def test_what_is_refused_names_cause_and_remedy(served, path, document, status, text):
    found = post(served, path, document)
    assert (found.status_code, list(found.json())) == (status, ["error"])
    assert text in found.json()["error"]


def test_states(served):
    version = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    assert get(served, "two").json()["model_version_status"] == [version]
    for path in ("two/versions/1", "two/versions/0"):
        assert get(served, path).json() == {"model_version_status": [version]}
    for path in ("two/versions/2", "two/labels/stable", "nobody/versions/1", "nobody/metadata"):
        assert get(served, path).status_code == 404


def test_metadata_have_the_keys_of_both_servers(served):
    found = get(served, "two/metadata").json()
    spec = {"name": "two", "version": "1"}
    assert found["model_spec"] == {**spec, "signature_name": "serving_default"}
    assert found["modelSpec"] == {**spec, "signatureName": "serving_default"}
    described = found["metadata"]["signature_def"]
    assert described["@type"].endswith("/tensorflow.serving.SignatureDefMap")
    one = described["signature_def"]["serving_default"]["inputs"]["a"]
    sizes = [{"size": "-1", "name": ""}, {"size": "2", "name": ""}]
    assert one == {
        "name": "a:0",
        "dtype": "DT_INT32",
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
    }
    other = described["signatureDef"]["serving_default"]["outputs"]["first"]
    assert other["tensorShape"]["dim"] == [{"size": "-1", "name": ""}]

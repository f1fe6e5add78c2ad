"""KServe's protocol v1 to archives: bodies and envelopes are the same as on TorchServe's routes."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files as pictures
from tests.support.torchserve.archives import archive, write_files

KINDS = """
import numpy as np

ITEMS = {
    "int": 8,
    "float": 8.5,
    "text": "8",
    "list": [1, "a", None],
    "object": {"label": 8},
    "numpy": np.float32(0.5),
    "array": np.arange(3),
    "nan": float("nan"),
    "complex": 1j,
}


class Kinds:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        return [self._item(index, row) for index, row in enumerate(data)]

    def _item(self, index, row):
        wanted = row.get("body", row) if isinstance(row, dict) else row
        if wanted == "fail":
            self.context.fail(index, ValueError("this row"))
            return None
        if wanted == "raise":
            raise KeyError("that row")
        if isinstance(wanted, str):
            return ITEMS[wanted]
        explained = self.context.get_request_header(0, "explain")
        return {"row": repr(row), "type": type(wanted).__name__, "explain": explained}
"""
"""Answers each row by what it asks for: another type of item, the row itself, or an error."""

TENSORS = """
import torch

ITEMS["tensor"] = torch.tensor([1, 2])
ITEMS["nested"] = {"scores": torch.tensor([0.5]), "name": b"cat"}
"""
"""Answered by the handlers of existing models, because each process takes seconds to import torch."""

COUNTS = """
def handle(data, context):
    assert data is None or len(data) <= 4, len(data)
    return data and [len(data)] * len(data)
"""
"""Answers each row by the number of rows in its batch."""

ENVELOPES = ["body", "json", "kserve", "kservev2"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("v1")
    store = root / "store"
    store.mkdir()
    write_files(root)
    kinds = root / "kinds_handler.py"
    kinds.write_text(KINDS)
    tensors = root / "tensors_handler.py"
    tensors.write_text(KINDS + TENSORS)
    cpu = {"deviceType": "cpu"}
    archive(store, "plain", tensors, settings=cpu)
    archive(
        store, "joined", kinds,
        settings=cpu | {"batchSize": 8, "maxBatchDelay": 2000},
    )  # fmt: skip
    counts = root / "counts_handler.py"
    counts.write_text(COUNTS)
    joining = cpu | {"batchSize": 4, "maxBatchDelay": 2000}
    archive(store, "counted", counts, settings=joining)
    archive(store, "wrapped", counts, settings=joining | {"envelope": "kserve"})
    for envelope in ENVELOPES:
        handler = tensors if envelope == "kserve" else kinds
        archive(store, envelope, handler, settings=cpu | {"envelope": envelope})
    for name, own in (("cats", {}), ("wrapped_cats", {"envelope": "kserve"})):
        archive(store, name, "image_classifier", files=root, model="picture.pt", settings=cpu | own)
    with Server(store, torchserve_api=True, start_timeout=200) as server:
        yield server


def post(server, path, document):
    form = {"json": document} if isinstance(document, dict) else {"data": document}
    return requests.post(f"{server.url}{path}", timeout=60, **form)


def predict(server, model, document, verb="predict"):
    return post(server, f"/v1/models/{model}:{verb}", document)


@pytest.mark.parametrize("model", ["plain", "kserve", "json"])
def test_predictions_keep_their_types(served, model):
    wanted = ["int", "float", "text", "list", "object"]
    answer = predict(served, model, {"instances": wanted})
    assert answer.status_code == 200, answer.text
    expected = [8, 8.5, "8", [1, "a", None], {"label": 8}]
    if model == "plain":
        assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {"predictions": expected}
    assert [type(one) for one in answer.json()["predictions"]] == [type(one) for one in expected]


@pytest.mark.parametrize("model", ["plain", "kserve"])
def test_arrays_and_tensors_are_lists_and_nan_is_null(served, model):
    wanted = ["numpy", "array", "tensor", "nested", "nan"]
    answer = predict(served, model, {"instances": wanted})
    expected = [0.5, [0, 1, 2], [1, 2], {"scores": [0.5], "name": "cat"}, None]
    assert answer.json() == {"predictions": expected}
    refused = predict(served, model, {"instances": ["int", "complex"]})
    assert refused.status_code == 500
    assert "JSON cannot express an item" in refused.json()["error"]


def test_base64_that_the_json_envelope_cannot_read_is_the_clients_fault(served):
    refused = predict(served, "json", {"instances": [{"b64": 5}]})
    assert refused.status_code == 400
    assert 'not a JSON object with readable "instances": TypeError' in refused.json()["error"]


@pytest.mark.parametrize("model", ENVELOPES)
def test_an_envelope_gets_the_body_that_it_gets_over_torchserves_own_route(served, model):
    document = {"instances": [{"x": [1, 2.5]}, {"x": None}]}
    if model == "kservev2":
        tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5]}
        document = {"id": "one", "inputs": [tensor]}
    of_torchserve = post(served, f"/predictions/{model}", document)
    answer = predict(served, model, document)
    assert (answer.status_code, of_torchserve.status_code) == (200, 200), answer.text
    assert json.loads(answer.text) == json.loads(of_torchserve.text)


def test_the_body_is_json_whatever_its_content_type_says(served):
    for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
        answer = requests.post(
            f"{served.url}/v1/models/kserve/versions/1.0:predict",
            data=b'{"instances": ["int"]}', headers={"Content-Type": kind}, timeout=60,
        )  # fmt: skip
        assert answer.json() == {"predictions": [8]}, kind


def test_rows_without_an_envelope(served):
    instances = [
        {"x": 1},
        [1, 2],
        {"b64": base64.b64encode(b"cat").decode()},
        {"data": {"b64": base64.b64encode(b"cat").decode()}, "target": 0},
    ]
    found = predict(served, "plain", {"instances": instances}).json()["predictions"]
    assert [one["row"] for one in found] == [
        "{'x': 1}",
        "{'body': [1, 2]}",
        "{'body': b'cat'}",
        "{'data': b'cat', 'target': 0}",
    ]


@pytest.mark.parametrize("model", ["plain", "kserve"])
def test_explanations(served, model):
    answer = predict(served, model, {"instances": [{"x": 1}]}, "explain")
    (one,) = answer.json()["explanations"]
    assert one["explain"] == "True"
    (one,) = predict(served, model, {"instances": [{"x": 1}]}).json()["predictions"]
    assert one["explain"] == "False"


@pytest.mark.parametrize("model", ["cats", "wrapped_cats"])
def test_a_picture_as_kserves_own_example_sends_it(served, model):
    text = base64.b64encode(pictures.jpeg(64, 48)).decode()
    (expected,) = [post(served, "/predictions/cats", pictures.jpeg(64, 48)).json()]
    for instance in ({"data": text, "target": 0}, {"data": {"b64": text}}):
        answer = predict(served, model, {"instances": [instance, instance]})
        assert answer.json() == {"predictions": [expected, expected]}, answer.text
    explained = predict(served, model, {"instances": [{"data": text, "target": 1}]}, "explain")
    (values,) = explained.json()["explanations"]
    assert len(values) == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
        (b"[1]", "is a JSON object"),
        (b'"instances"', "is a JSON object"),
        (b"{}", "'instances' are an array"),
        (b'{"instances": []}', "'instances' are an array"),
        (b'{"instances": {"a": 1}}', "'instances' are an array"),
        (b'{"instances": null}', "'instances' are an array"),
    ],
)
@pytest.mark.parametrize("model", ["plain", "json", "kserve"])
def test_what_is_no_predict_request_is_told(served, model, body, text):
    answer = predict(served, model, body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]


@pytest.mark.parametrize("value", ["²", 7, None, "a"])
def test_a_b64_that_is_none_is_told_with_its_place(served, value):
    answer = predict(served, "plain", {"instances": ["int", {"b64": value}]})
    assert answer.status_code == 400
    assert "instance 1: its 'b64' is not base64" in answer.json()["error"]


def test_a_handler_that_fails_is_named(served):
    for model in ("plain", "kserve"):
        answer = predict(served, model, {"instances": ["raise"]})
        assert answer.status_code == 500
        assert answer.json()["error"].endswith(f"the model {model} failed with KeyError")
    assert predict(served, "plain", {"instances": ["int"]}).json() == {"predictions": [8]}


def test_requests_that_are_joined_get_their_own_answers_and_faults(served):
    """Eight requests of one batch: two are not predict requests, one row of another fails."""
    instances = [["int"], ["text", "list"], ["fail", "int"], ["float"], [], ["int"] * 3, 7, ["nan"]]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda one: predict(served, "joined", {"instances": one}), instances)
        )
    assert [one.status_code for one in answers] == [200, 200, 500, 200, 400, 200, 400, 200]
    found = [one.json().get("predictions") for one in answers]
    assert found == [[8], ["8", [1, "a", None]], None, [8.5], None, [8, 8, 8], None, [None]]


@pytest.mark.parametrize("model", ["counted", "wrapped"])
def test_a_batch_has_no_more_instances_than_rows(served, model):
    document = {"instances": ["a", "b", "c"]}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: predict(served, model, document), range(4)))
    assert [one.status_code for one in answers] == [200] * 4, answers[0].text
    assert [one.json() for one in answers] == [{"predictions": [3, 3, 3]}] * 4


def test_instances_of_several_requests_fill_a_batch(served):
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: predict(served, "counted", {"instances": [1, 2]}), range(2))
    assert one.json() == other.json() == {"predictions": [4, 4]}


@pytest.mark.parametrize("size", [1, 1_000_000])
@pytest.mark.parametrize("model", ["counted", "wrapped"])
def test_more_instances_than_a_batch_may_have_are_refused(served, model, size):
    answer = predict(served, model, {"instances": ["x" * size] * 5})
    assert answer.status_code == 400, answer.text
    assert "5 rows" in answer.text or "5 instances" in answer.text
    assert "4" in answer.text


def test_a_large_body_fills_a_batch_by_itself(served):
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(predict, served, "counted", {"instances": ["x" * 3_000_000]})
        small = pool.submit(predict, served, "counted", {"instances": ["y"]})
    assert large.result().json() == small.result().json() == {"predictions": [1]}

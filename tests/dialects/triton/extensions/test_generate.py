"""Plain JSON over /generate: rows, records, lists; and numbers in forms, beside files."""

import base64
import gzip
import json
import subprocess

import cv2
import numpy as np
import pytest
import requests

from ksrv.testing import Server

SOURCE = """
from typing import TypedDict
import numpy as np
from ksrv import Bytes, Float32, Int64, Image, settings

class Answer(TypedDict):
    label: Bytes
    probability: Float32[2]

@settings(batching={"max_batch_size": 8})
def customer(age: Int64, income: Float32[1], city: Bytes, rank: Int64 | None = None) -> Answer:
    old = age >= 40
    plus = 0 if rank is None else rank
    chance = np.stack([1 - income[:, 0], income[:, 0] + plus], axis=1)
    texts = [f"{one.decode()} {'old' if is_old else 'young'}" for one, is_old in zip(city, old)]
    return {"label": texts, "probability": chance}

class Pictures(TypedDict):
    mean: Float32[3]

def tinted(image: Image[8, 8, 3], weight: Float32, tint: Float32[3] | None = None) -> Pictures:
    return {"mean": image.mean(axis=(1, 2)) * weight[:, None] + (0 if tint is None else tint)}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "models.py").write_text(SOURCE)
    assert cv2.imwrite(str(folder / "grey.png"), np.full((8, 8, 3), 100, np.uint8))
    names = [f"{folder / 'models.py'}:{name}" for name in ("customer", "tinted")]
    with Server(names) as running:
        running.picture = folder / "grey.png"
        yield running


def generate(server, body, model="customer", route="generate"):
    text = body if isinstance(body, str) else json.dumps(body)
    return requests.post(f"{server.url}/v2/models/{model}/{route}", data=text, timeout=60)


ONE = {"age": 40, "income": 0.25, "city": "Oslo"}
TWO = {"age": 30, "income": 0.5, "city": "Rome"}


def test_one_row_is_answered_without_lists_of_rows(server):
    assert generate(server, ONE).json() == {
        "model_name": "customer",
        "text_output": "Oslo old",
        "label": "Oslo old",
        "probability": [0.75, 0.25],
    }


def test_lists_of_columns_keep_their_rows(server):
    answer = generate(server, {name: [ONE[name], TWO[name]] for name in ONE}).json()
    assert answer["label"] == ["Oslo old", "Rome young"]
    assert answer["probability"] == [[0.75, 0.25], [0.5, 0.5]]
    one = generate(server, {name: [value] for name, value in ONE.items()}).json()
    assert (one["label"], one["probability"]) == (["Oslo old"], [[0.75, 0.25]])


def test_null_is_nan_for_floats(server):
    """pandas writes records with null for NaN."""
    rows = {name: [ONE[name], TWO[name]] for name in ONE} | {"income": [None, 0.5]}
    assert generate(server, rows).json()["probability"] == [[None, None], [0.5, 0.5]]
    records = generate(server, [ONE | {"income": None}, TWO]).json()
    assert [one["probability"] for one in records] == [[None, None], [0.5, 0.5]]
    assert generate(server, ONE | {"income": None}).json()["probability"] == [None, None]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark (BOM); send UTF-8 without it"),
        ('{"age": 40}'.encode("utf-16"), "it is UTF-16"),
        ('{"age": 40}'.encode("utf-16-le"), "it is UTF-16"),
        (gzip.compress(b"{}", mtime=0), "add the header Content-Encoding: gzip"),
        (b"--b\r\n", "it is a form; send it to /v2/models/NAME/infer"),
        (b"Oslo", "at byte 0; expected a JSON object"),
        (b"<age>40</age>", "at byte 0; expected a JSON object"),
        (b"age=40&city=Oslo", "at byte 0; expected a JSON object"),
        (b'{"city": "\xff"}', "bytes that are not UTF-8 at byte 10"),
        (b"", "empty"),
    ],
)
@pytest.mark.parametrize(
    "path",
    ["/v2/models/customer/generate", "/v2/models/customer/infer", "/v1/models/customer:predict"],
)
def test_bodies_that_are_not_json_are_named(server, path, body, told):
    answer = requests.post(server.url + path, data=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_forms_to_generate_are_sent_elsewhere(server):
    url = f"{server.url}/v2/models/tinted/generate"
    answer = requests.post(url, files={"image": server.picture.read_bytes()}, data={"weight": 1})
    assert answer.status_code == 400
    assert "it is a form; send it to /v2/models/NAME/infer" in answer.json()["error"]
    answer = requests.post(url, files={"image": bytes(2_000_000)})
    assert answer.status_code == 413
    assert "files, forms and larger requests go to /v2/models/NAME/infer" in answer.json()["error"]


def test_lists_of_records_are_answered_by_lists_of_records(server):
    expected = [
        {"label": "Oslo old", "probability": [0.75, 0.25]},
        {"label": "Rome young", "probability": [0.5, 0.5]},
    ]
    assert generate(server, [ONE, TWO]).json() == expected
    assert generate(server, [ONE | {"rank": 1}]).json()[0]["probability"] == [0.75, 1.25]
    assert generate(server, [ONE | {"rank": None}, TWO]).json() == expected
    events = generate(server, [ONE, TWO], route="generate_stream").text
    assert json.loads(events.partition("data: ")[2]) == expected


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([ONE, 3], "row 1 of the body is not a JSON object; expected one such as {\"age\": ..., "),
        ([ONE, ONE | {"agee": 3}], "row 1: 'agee' is not an input of the model; did you mean 'age'?"),
        ([ONE, {"age": 3, "income": 1}], "row 1 has no 'city', and row 0 has"),
        ([{"age": 3, "income": 1}, ONE], "row 0 has no 'city', and row 1 has"),
        ([ONE | {"rank": 1}, TWO], "row 1 has no 'rank', and row 0 has"),
        ([ONE | {"age": "forty"}], "'age'"),
        ([ONE, ONE | {"age": [1, 2]}], "'age'"),
        ([ONE | {"age": None}], "'age' (index 0) holds null; only floating-point inputs take null"),
        (ONE | {"city": None}, "'city' (index 2) holds null"),
        ([ONE | {"rank": 1}, TWO | {"rank": None}], "row 1 has no 'rank', and row 0 has"),
        ([ONE | {"text_input": "Rome"}], "row 0 has the same input twice"),
        ('{"income": NaN}', "at byte 11; JSON has no NaN; /generate reads null as NaN"),
        ("{'age': 40}", "JSON has double quotes around names and texts"),
        ([ONE | {"income": [1, 2]}], "'income'"),
        ([{"zip": 1}], "'zip' is not an input of the model; it has 'age', 'income', 'city', 'rank'"),
        ([{}], "age"),
        (ONE | {"age": "forty"}, "'age' has the datatype 'BYTES'; the model customer expects INT64; texts and files are BYTES: send numbers"),
        ({"inputs": []}, "'inputs' is not an input of the model; it has 'age', 'income', 'city', 'rank'; as a parameter 'inputs' is an array, "
         "and expected is a string, a number or a boolean; send a request with 'inputs' to the same path with /infer"),
        (ONE | {"age": 1.5}, "'age'"),
        (ONE | {"age": 10**30}, "'age'"),
        (
            ONE | {"income": [[1], [2, 3], []]},
            "'income' (index 1): the rows are not of one shape; send rows of different shapes as separate requests",
        ),
        ([ONE, ONE | {"income": [[1], 2]}], "'income' (index 1): the rows are not of one shape"),
        (ONE | {"parameters": {f"p{n}": 1 for n in range(2000)}}, "limit --limits-parameters (1024 parameters)"),
        (ONE | {"id": 7}, "'id' of a generate request must be a string, not '7'"),
        (ONE | {"city": 7}, "'city'"),
        (ONE | {"income": [[1, 2], [3, 4]]}, "'income'"),
        (ONE | {"incom": [1, 2]}, "'incom' is not an input of the model; did you mean 'income'?"),
        ({"age": 40, "income": 1}, "city"),
        ("[" * 3000, "JSON"),
    ],
)  # fmt: skip
def test_mistakes_name_the_field(server, body, told):
    answer = generate(server, body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_the_error_of_infer_names_the_route_for_plain_json(server):
    answer = generate(server, ONE, route="infer")
    assert answer.status_code == 400
    assert "has no 'inputs'; send plain JSON" in answer.json()["error"]
    assert "/generate in place of /infer" in answer.json()["error"]


def test_pictures_are_texts_in_base64(server):
    file = base64.b64encode(server.picture.read_bytes()).decode()
    answer = generate(server, {"image": file, "weight": 1}, "tinted").json()
    assert answer == {"model_name": "tinted", "mean": [100, 100, 100]}
    rows = {"image": [file, f"data:image/png;base64,{file}"], "weight": [1, 2]}
    assert generate(server, rows, "tinted").json()["mean"] == [[100] * 3, [200] * 3]
    found = generate(server, [{"image": file, "weight": 2}], "tinted").json()
    assert found == [{"mean": [200, 200, 200]}]
    refused = generate(server, {"image": "!", "weight": 1}, "tinted")
    assert refused.status_code == 400 and "image" in refused.json()["error"]


def form(server, *fields):
    command = ["curl", "-sS", f"{server.url}/v2/models/tinted/infer"]
    for one in fields:
        command += ["-F", one]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def test_forms_carry_numbers_beside_files(server):
    image = f"image=@{server.picture}"
    assert form(server, image, "weight=2")["outputs"][0]["data"] == [200, 200, 200]
    answer = form(server, image, image, "weight=1", "weight=2", "tint=[1,2,3]", "tint=[0,0,0]")
    assert answer["outputs"][0]["shape"] == [2, 3]
    assert answer["outputs"][0]["data"] == [101, 102, 103, 200, 200, 200]
    typed = form(server, image, "weight=[0.5];type=application/json", "tint=[[1, 1, 1]]")
    assert typed["outputs"][0]["data"] == [51, 51, 51]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("weight=heavy", "the form's field 'weight' holds 'heavy'; the input takes FP32: expected a number"),
        ("weight=", "the form's field 'weight' holds ''"),  # plain-english: keep
        ("image=iVBORw0KGgo=", "'image' is a file in base64; a form carries the bytes of the file"),
        ("image=data:image/png;base64,iVBORw0KGgo=", "'image' is a file in base64"),
        ("image=grey.png", "'image' is a text and no file"),
        ('weight={"a": 1}', "expected a number, true, false, or a list"),
        ("weight=null", "expected a number"),
        ("weight=NaN", "expected a number"),
        ("weight=[]", "the input 'weight' is an empty list"),
        ('weight=["a"]', "'weight'"),
        ("weight=[1,2]", "rows"),
        ("tint=[1,2]", "'tint'"),
        ("weigth=2", "weigth"),
        (f"weight=[{'1,' * 530_000}1]", "at most 1048576 bytes of numbers"),
    ],
)  # fmt: skip
def test_mistakes_in_forms_name_the_field(server, field, told, tmp_path):
    name, _, value = field.partition("=")
    (tmp_path / "value").write_text(value)
    long = field if len(field) < 1000 else f"{name}=<{tmp_path / 'value'}"
    error = form(server, f"image=@{server.picture}", long)["error"]
    assert told in error

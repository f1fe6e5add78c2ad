"""Tables as pandas writes them, for a handler with columns and for a handler with a matrix: no library is needed."""

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model

COLUMNS = """
import numpy as np

from ksrv import Bytes, Float64


def inference(age: Float64, city: Bytes) -> Float64:
    return np.nan_to_num(age, nan=-1) + np.char.str_len(city.astype(bytes))
"""

MATRIX = """
import numpy as np

from ksrv import Float32


def inference(input: Float32[3]) -> Float32:
    return input @ np.float32([1, 10, 100])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "people", COLUMNS, "batching: {max_batch_size: 8}\n")
    write_model(root, "numbers", MATRIX, "batching: {max_batch_size: 8}\n")
    with Server(root) as running:
        yield running


def generate(server, model, body):
    return requests.post(f"{server.url}/v2/models/{model}/generate", json=body)


ROWS = [{"output": 44.0}, {"output": 5.0}]


@pytest.mark.parametrize(
    "body",
    [
        [{"age": 40, "city": "Oslo"}, {"age": None, "city": "Berlin"}],
        {"columns": ["age", "city"], "index": [0, 1], "data": [[40, "Oslo"], [None, "Berlin"]]},
        {"columns": ["city", "age"], "data": [["Oslo", 40], ["Berlin", None]]},
        {"age": {"0": 40, "1": None}, "city": {"0": "Oslo", "1": "Berlin"}},
    ],
    ids=["records", "split", "split without index", "columns"],
)
def test_table_of_pandas_is_answered_by_row(server, body):
    answer = generate(server, "people", body)
    assert answer.json() == ROWS


@pytest.mark.parametrize(
    "body",
    [
        [{"0": 1, "1": 2, "2": 3}, {"0": 4, "1": 5, "2": 6}],
        {"columns": [0, 1, 2], "index": [0, 1], "data": [[1, 2, 3], [4, 5, 6]]},
        {"0": {"0": 1, "1": 4}, "1": {"0": 2, "1": 5}, "2": {"0": 3, "1": 6}},
        {"columns": ["input"], "data": [[[1, 2, 3]], [[4, 5, 6]]]},
    ],
    ids=["records", "split", "columns", "rows as lists"],
)
def test_table_without_names_becomes_the_matrix(server, body):
    answer = generate(server, "numbers", body)
    assert answer.json() == [{"output": 321.0}, {"output": 654.0}]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"columns": ["age", "city"], "data": []}, "'data' has rows"),
        ({"columns": "age", "data": [[1]]}, "'columns' and 'data' of a table are arrays"),
        ({"columns": ["age", "city"], "data": [[40, "Oslo"], [31]]}, "row 1 of 'data' must have a value for each of the 2"),
        ({"columns": ["age", "age"], "data": [[40, 41]]}, "whose names differ"),
        ({"columns": ["age", "town"], "data": [[40, "Oslo"]]}, "row 0: 'town' is not an input of the model"),
        ({"columns": ["age"], "data": [[40]]}, "the input 'city' is missing"),
        ({"columns": ["age", "city"], "data": [["40", "Oslo"]]}, "'age' has the datatype 'BYTES'"),
        ({"columns": ["age", "city"], "data": [[40, None]]}, "holds null"),
        ({"columns": [["a", "b"], {}], "data": [[1, 2]]}, "is not an input of the model"),
        ({"age": {"0": 40}, "city": {"1": "Oslo"}}, "'city' does not have the rows of the column 'age'"),
        ({"age": {"0": 40}, "city": "Oslo"}, "'city' does not have the rows of the column 'age'"),
        ({"age": {}, "city": {}}, "holds an object"),
    ],
)  # fmt: skip
def test_wrong_table_is_refused(server, body, text):
    answer = generate(server, "people", body)
    assert answer.status_code == 400, answer.text
    assert text in answer.json()["error"]


def test_parameters_beside_inputs_are_no_table(server):
    body = {"parameters": {"priority": 1}, "age": 40, "city": "Oslo"}
    assert generate(server, "people", body).json()["output"] == 44.0


def test_columns_of_another_number_are_refused(server):
    body = {"columns": [0, 1], "data": [[1, 2]]}
    answer = generate(server, "numbers", body)
    assert answer.status_code == 400
    assert "[-1, 3]" in answer.json()["error"] or "[1, 2]" in answer.json()["error"]

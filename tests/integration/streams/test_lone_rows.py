"""Generators that yield a value instead of a list with one value for each row."""

import numpy as np
import pytest

from ksrv.client import Client, StatusError, StreamFailed
from ksrv.testing import Server
from tests.support.models import write_model

YIELDS = """
from ksrv import BaseHandler
import numpy as np
{imports}

class Yields(BaseHandler):
    {begin} inference(self, x):
        for part in {parts}:
            yield part
"""
INPUT = "inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]\nwarmup: false\n"
TEXT = INPUT + "outputs: [{name: y, datatype: BYTES, shape: [-1]}]\n"
COLUMN = INPUT + "outputs: [{name: y, datatype: BYTES, shape: [-1, 1]}]\n"
NUMBER = INPUT + "outputs: [{name: y, datatype: INT64, shape: [-1]}]\n"
VECTOR = INPUT + "outputs: [{name: y, datatype: FP32, shape: [-1, 3]}]\n"
TWO = INPUT + (
    "outputs: [{name: y, datatype: FP32, shape: [-1, 3]}, {name: word, datatype: BYTES, shape: [-1]}]\n"
)
OPEN = INPUT

FORMS = {
    "texts": (TEXT, "['a', b'b']", [[b"a"], [b"b"]]),
    "texts of a column": (COLUMN, "['a', 'b']", [[[b"a"]], [[b"b"]]]),
    "lists as ever": (TEXT, "[['a'], ['b']]", [[b"a"], [b"b"]]),
    "numbers": (NUMBER, "[1, np.int64(2), True + 2]", [[1], [2], [3]]),
    "vectors": (VECTOR, "[np.float32([1, 2, 3]), np.float32([[4, 5, 6]])]", [[[1, 2, 3]], [[4, 5, 6]]]),
    "tensors": (VECTOR, "[torch.ones(3), torch.zeros(1, 3)]", [[[1, 1, 1]], [[0, 0, 0]]]),
    "records": (TEXT, "[{'token': 'a', 'at': 1}]", [[b'{"token":"a","at":1}']]),
    "outputs": (TWO, "[{'y': np.float32([1, 2, 3]), 'word': 'a'}]", [[[1, 2, 3]]]),
    "nothing declared": (OPEN, "['a', 2.5, np.float32([1, 2])]", [[b"a"], [2.5], [[1, 2]]]),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for number, (yaml, parts, _) in enumerate(FORMS.values()):
        imports = "import torch\n" if "torch" in parts else ""
        for executor in ("inline", "process"):
            for begin in ("def", "async def"):
                code = YIELDS.format(imports=imports, begin=begin, parts=parts)
                name = f"{executor}-{begin.replace(' ', '-')}-{number}"
                if executor == "inline" or number in (0, 4):
                    write_model(root, name, code, f"{yaml}executor: {executor}\n")
    code = YIELDS.format(imports="", begin="def", parts="['a', 'b']")
    write_model(root, "batching", code, TEXT + "batching: {max_batch_size: 8}\n")
    with Server(root) as running:
        yield running


@pytest.mark.parametrize("begin", ["def", "async-def"])
@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_the_rows(server, form, begin):
    number = list(FORMS).index(form)
    with Client(server.url) as client:
        parts = list(client.stream(f"inline-{begin}-{number}", [[1]]))
    assert [next(iter(part.values())).tolist() for part in parts] == FORMS[form][2]


@pytest.mark.parametrize("begin", ["def", "async-def"])
@pytest.mark.parametrize("number", [0, 4])
def test_a_value_is_the_rows_in_a_handler_process(server, number, begin):
    with Client(server.url) as client:
        parts = list(client.stream(f"process-{begin}-{number}", [[1]]))
    assert [part["y"].tolist() for part in parts] == list(FORMS.values())[number][2]


def test_texts_are_joined_for_clients_that_do_not_stream(server):
    with Client(server.url) as client:
        assert client.infer("inline-def-0", [[1]])["y"].tolist() == [b"ab"]


@pytest.mark.parametrize(
    ("model", "rows", "text"),
    [("batching", 1, "batches of up to 8 rows"), ("inline-def-0", 2, "a request of 2 rows")],
)
def test_several_rows_need_a_list(server, model, rows, text):
    with Client(server.url) as client, pytest.raises((StatusError, StreamFailed)) as told:
        list(client.stream(model, np.ones((rows, 1))))
    assert text in str(told.value) and "yield [value] * len(batch)" in str(told.value)

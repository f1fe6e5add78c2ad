"""Numbers that a handler returns in another datatype than is declared: every form is cast by one rule, or refused."""

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_model

pytest.importorskip("torch")

HANDLER = """
import numpy as np
import torch

from ksrv import BaseHandler

FORMS = {
    "array": lambda own, row: np.array([row], own),
    "tensor": lambda own, row: torch.tensor([row], dtype=getattr(torch, own)),
    "list of numbers": lambda own, row: [np.array(row, own).tolist()],
    "list of numpy's numbers": lambda own, row: [list(np.array(row, own))],
    "list of arrays": lambda own, row: [np.array(row, own)],
    "list of tensors": lambda own, row: [torch.tensor(row, dtype=getattr(torch, own))],
    "list of trained tensors": lambda own, row: [
        torch.tensor(row, dtype=getattr(torch, own), requires_grad=own[0] == "f")
    ],
}


class Numbers(BaseHandler):
    def inference(self, text):
        form, own, *row = bytes(text[0]).decode().split("|")
        return {"y": FORMS[form](own, [float(one) if own[0] == "f" else int(one) for one in row])}
"""
FORMS = [
    "array",
    "tensor",
    "list of numbers",
    "list of numpy's numbers",
    "list of arrays",
    "list of tensors",
    "list of trained tensors",
]
DATATYPES = ["FP16", "BF16", "FP32", "FP64", "INT32", "UINT8"]


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("numbers")
    for datatype in DATATYPES:
        yaml = f"""
executor: {request.param}
inputs: [{{name: text, datatype: BYTES, shape: [-1]}}]
outputs: [{{name: y, datatype: {datatype}, shape: [-1, -1]}}]
warmup: false
"""
        write_model(root, datatype, HANDLER, yaml)
    with Server(root) as running:
        yield running


def ask(server, datatype, form, own, *row):
    text = "|".join([form, own, *map(str, row)])
    entry = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    return requests.post(f"{server.url}/v2/models/{datatype}/infer", json=document, timeout=60)


@pytest.mark.parametrize("form", FORMS)
def test_no_digit_is_lost(server, form):
    answer = ask(server, "FP64", form, "float64", 0.1, 1e300, 1 / 3)
    assert answer.status_code == 200, answer.text
    assert np.frombuffer(answer.content[-24:], "<f8").tolist() == [0.1, 1e300, 1 / 3]


@pytest.mark.parametrize(
    ("datatype", "own", "number"),
    [
        ("BF16", "float64", 1e300),
        ("BF16", "float32", 3.4e38),
        ("FP16", "float32", 70000.0),
        ("FP16", "int64", 70000),
        ("FP16", "int32", -65520),
        ("FP32", "float64", -1e300),
        ("INT32", "int64", 2**31),
        ("UINT8", "int16", -1),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_does_not_fit_is_refused(server, form, datatype, own, number):
    answer = ask(server, datatype, form, own, 1, number)
    assert answer.status_code == 500, np.frombuffer(answer.content[-4:], "<f2")
    told = answer.json()["error"]
    assert "the output 'y'" in told
    assert datatype in told


@pytest.mark.parametrize("form", FORMS)
def test_infinity_stays_and_numbers_at_the_border_are_rounded(server, form):
    answer = ask(server, "FP16", form, "float64", "inf", "-inf", 65519, 65504)
    assert answer.status_code == 200, answer.text
    assert np.frombuffer(answer.content[-8:], "<f2").tolist() == [np.inf, -np.inf, 65504, 65504]

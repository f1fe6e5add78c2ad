"""Return values of a TorchServe handler for a row, over KServe v2 and v1."""

import numpy as np
import pytest
import torch

from ksrv.dialects.torchserve.api.answers import AnswerError, json_item, kserve_element
from ksrv.request import ExecutorInputs, RequestPart, Tensor


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (np.arange(4).reshape(2, 2).T, b"[[0,2],[1,3]]"),
        ({"p": np.arange(4)[::2]}, b'{"p":[0,2]}'),
        (np.array(["cat", "dog"]), b'["cat","dog"]'),
        (np.array(["cat", None], dtype=object), b'["cat",null]'),
        ({"p": torch.ones(2)}, b'{"p":[1.0,1.0]}'),
        ({"p": b"cat"}, b'{"p":"cat"}'),
        (np.str_("cat"), b"cat"),
    ],
)
def test_arrays_and_tensors_of_any_kind_become_json(item, wanted):
    assert kserve_element(item) == wanted
    if not isinstance(item, str):
        assert json_item(item) == wanted


@pytest.mark.parametrize("item", [1j, {1}, {"p": b"\xff"}, np.array([1j])])
def test_what_json_cannot_express_is_told(item):
    with pytest.raises(AnswerError, match=f"an item of the type {type(item).__name__}"):
        kserve_element(item)


SETS_STATUS = """
import ts

def handle(data, context):
    for row, one in enumerate(data or ()):
        context.set_response_status(eval(bytes(one)), "", row)
    return None if data is None else ["said"] * len(data)
"""


@pytest.mark.parametrize("status", ["'201'", "None", "[201]", "2.5"])
def test_a_status_that_is_no_number_fails_its_request_alone(ts_runner, status):
    words = Tensor("data", "BYTES", (2,), [b"200", status.encode()])
    requests = [RequestPart(slice(0, 1)), RequestPart(slice(1, 2))]
    outcome = ts_runner(SETS_STATUS, "envelope: body\n").run(
        ExecutorInputs({"data": words}, 2, requests)
    )
    assert list(outcome.failures) == [1]
    assert "expected a whole number" in outcome.failures[1].message
    assert outcome.tensors[0].data[0] == b"said"

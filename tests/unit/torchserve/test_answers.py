"""What a handler of TorchServe may return for a row over KServe v2 and v1."""

import numpy as np
import pytest
import torch

from ksrv.torchserve.api.answers import AnswerError, json_item, kserve_element


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

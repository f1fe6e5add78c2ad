"""Typed outputs of handlers with the `kservev2` envelope: their numbers arrive unchanged, or are refused."""

import numpy as np
import pytest

from ksrv.dialects.torchserve.runner.kserve_outputs import kserve_tensors
from ksrv.errors import HandlerFailed


def read(datatype, data):
    output = {"name": "y", "shape": [len(data)], "datatype": datatype, "data": data}
    [tensor] = kserve_tensors({"outputs": [output]}, "m")
    return tensor.datatype, tensor.data.dtype, tensor.data.tolist()


@pytest.mark.parametrize(
    ("datatype", "data", "want"),
    [
        ("FP32", [0.5, 2], [0.5, 2.0]),
        ("FP64", [0.1], [0.1]),
        ("FP16", [65504.0, float("inf")], [65504.0, float("inf")]),
        ("UINT8", [0, 255], [0, 255]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("BOOL", [True, False], [True, False]),
        ("INT32", [], []),
    ],
)
def test_numbers_keep_their_values(datatype, data, want):
    dtype = {"BOOL": "?", "UINT8": "u1", "UINT64": "u8", "INT32": "i4"}.get(datatype)
    expected = np.dtype(dtype or f"f{int(datatype[2:]) // 8}")
    assert read(datatype, data) == (datatype, expected, want)


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("FP16", [70000], "y: .*70000"),
        ("FP32", [1e300], "too large for FP32"),
        ("INT64", [1.5], "FP64 does not become INT64"),
        ("UINT8", np.array([300]), "300"),
        ("UINT8", [-1], "-1"),
        ("INT64", ["a"], "are not numbers"),
        ("INT64", [None], "are not numbers"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(datatype, data, words):
    with pytest.raises(HandlerFailed, match=words):
        read(datatype, data)

"""The best classes of an output, for numbers of every datatype."""

import numpy as np
import pytest

from ksrv.engine.batches.classification import classify
from ksrv.request import Tensor


@pytest.mark.parametrize(
    ("kind", "dtype", "row", "wanted"),
    [
        ("INT64", "<i8", [2**62, 2**62 + 1, -(2**63), 2**63 - 1], [3, 1, 0, 2]),
        ("UINT64", "<u8", [1, 2**64 - 1, 2**64 - 2, 0], [1, 2, 0, 3]),
        ("INT8", "i1", [-128, 127, 0, -1], [1, 2, 3, 0]),
        ("UINT8", "u1", [0, 255, 0, 7], [1, 3, 0, 2]),
        ("FP32", "<f4", [np.nan, 1, np.inf, 1], [2, 1, 3, 0]),
        ("FP16", "<f2", [-np.inf, -0.0, 0.0, np.nan], [1, 2, 0, 3]),
    ],
)
def test_classes_are_ordered_by_value_and_then_by_index(kind, dtype, row, wanted):
    scores = np.array([row, row], dtype)
    found = classify(Tensor("y", kind, scores.shape, scores), 4, None)
    assert (found.datatype, found.shape) == ("BYTES", (2, 4))
    assert [int(one.split(b":")[1]) for one in found.data] == wanted * 2
    if kind.startswith(("INT", "UINT")):
        values = [int(one.split(b":")[0]) for one in found.data[:4]]
        assert values == sorted(row, reverse=True)

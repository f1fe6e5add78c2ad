"""How a replay tells that an answer differs from the recorded answer."""

import numpy as np
import pytest

from ksrv.shadow.difference import difference


@pytest.mark.parametrize(
    ("shape", "where"), [((), "1 of 1 values; at []"), ((2, 3), "1 of 6 values; at [1, 2]")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, object])
def test_the_first_differing_value_is_named(shape, where, dtype):
    expected, got = np.zeros(shape, dtype), np.zeros(shape, dtype)
    got[(-1,) * len(shape)] = 2
    text = difference({"y": expected}, {"y": got}, 1e-6)
    assert where in text
    assert difference({"y": got}, {"y": got}, 1e-6) == ""

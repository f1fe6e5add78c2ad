"""Sizes of tensors against Python's unbounded integers: overflow, negative, huge, 0-d and empty."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv._native.tensor import datatype
from ksrv._native.tensor.datatype import ShapeError

WIDTHS = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2,
    "INT32": 4, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": 0,
}  # fmt: skip
LARGEST = 2**63 - 1
NO_LIMIT = 2**64 - 1


def expect(name, shape, limit):
    """The elements and bytes, or what the refusal says."""
    if len(shape) > 32:
        return "dimensions"
    for entry in shape:
        if type(entry) is not int:
            return "not an integer"
        if entry < 0:
            return "negative"
        if entry > 2**31 - 1:
            return "above 2147483647"
    width = WIDTHS[name] or 1
    # Strides must be computable of an empty tensor, too.
    if math.prod(entry for entry in shape if entry) * width > LARGEST:
        return "exceeds"
    elements = math.prod(shape)
    return "exceeds" if elements * width > limit else (elements, elements * width)


def found(name, shape, limit):
    try:
        return datatype.sizes(name, shape, limit)
    except ShapeError as error:
        return str(error)


def check(name, shape, limit):
    wanted, got = expect(name, shape, limit), found(name, shape, limit)
    if isinstance(wanted, str):
        assert isinstance(got, str) and wanted in got
    else:
        assert got == wanted


SIDES = st.one_of(
    st.integers(0, 5),
    st.sampled_from([2**16 - 1, 2**16, 2**30, 2**31 - 1]),
    st.integers(-1, 2**31 - 1),
    st.integers(-(2**70), 2**70),
)
LIMITS = st.one_of(
    st.just(NO_LIMIT), st.sampled_from([0, 1, 2**30, LARGEST]), st.integers(0, 2**40)
)


@given(st.sampled_from(sorted(WIDTHS)), st.lists(SIDES, max_size=6), LIMITS)
@example("FP32", [], NO_LIMIT)
@example("FP32", [], 3)
@example("FP32", [0], 0)
@example("FP32", [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], NO_LIMIT)
@example("UINT8", [2**31 - 1, 2**31 - 1, 2], NO_LIMIT)
@example("UINT16", [2**31 - 1, 2**31 - 1, 2], NO_LIMIT)
@example("FP64", [2**30, 2**30], NO_LIMIT)
@example("FP64", [2**30, 2**30, 2**30, 2**30, 2**30], NO_LIMIT)
@example("FP64", [2**16] * 4, NO_LIMIT)
def test_sizes(name, shape, limit):
    check(name, shape, limit)


@pytest.mark.parametrize("rank", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_ranks(rank, side):
    check("UINT8", [side] * rank, NO_LIMIT)


@pytest.mark.parametrize("entry", [True, 1.0, "1", None, np.int64(1), [1]])
def test_a_dimension_is_an_int(entry):
    with pytest.raises(ShapeError, match="dimension 1 is a"):
        datatype.sizes("FP32", [2, entry])


@pytest.mark.parametrize("name", ["", "FP8", "fp32", "FP32 ", "FP32\0", "\ud800", "STRING"])
def test_unknown_names_are_no_datatype(name):
    with pytest.raises(KeyError):
        datatype.sizes(name, [1])


def test_sequence_with_a_wrong_length_is_counted():
    class Short(list):
        def __len__(self):
            return 1

    assert found("FP32", Short([1] * 40), NO_LIMIT).startswith("the shape has 40 dimensions")
    assert found("FP32", Short([2, 3]), NO_LIMIT) == (6, 24)

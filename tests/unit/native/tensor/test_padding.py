"""Buckets of lengths, and the padded rows of a batch, compared with numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksrv._native.tensor.padding import LengthBuckets, join_padded

LARGEST = 2**31 - 1


def buckets(multiple=1, waste=0.25, most=LARGEST):
    return LengthBuckets(multiple, waste, most)


def test_bucket_width_follows_the_waste_limit():
    rule = buckets()
    first = [n for n in range(1, 36) if n == 1 or rule.bucket(n) != rule.bucket(n - 1)]
    assert first == [1, 2, 3, 5, 7, 10, 14, 19, 26, 35]


def test_zero_length_has_a_separate_bucket():
    assert buckets().bucket(0) not in {buckets().bucket(n) for n in range(1, 100)}
    assert buckets(8).padded(0) == 0


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.integers(1, 64),
    st.sampled_from([0.0, 0.0005, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99]),
)
def test_rows_of_one_bucket_keep_the_bound(a, b, multiple, waste):
    rule = buckets(multiple, waste)
    short, long = sorted((rule.padded(a), rule.padded(b)))
    assert short % multiple == 0 and short - multiple < min(a, b) <= short
    if rule.bucket(a) == rule.bucket(b):
        assert 1 - short / long <= waste + 1e-9
    else:
        assert short != long


@given(st.integers(1, LARGEST), st.integers(1, LARGEST))
def test_longer_rows_have_no_lower_bucket(a, b):
    rule = buckets(1, 0.001)
    assert (rule.bucket(a) <= rule.bucket(b)) == (a <= b or rule.bucket(a) == rule.bucket(b))


def test_padding_stays_below_the_longest_length():
    rule = buckets(8, 0.25, 509)
    assert [rule.padded(n) for n in (1, 504, 505, 509)] == [8, 504, 509, 509]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=5
    ),
    st.integers(1, 3),
    st.sampled_from(["i1", "f2", "f4", "i8"]),
    st.sampled_from([0, 7, -1]),
)
def test_rows_are_joined_as_numpy_does(shapes, inner, dtype, value):
    shapes = [(*shape, inner) for shape in shapes]
    rows = sum(shape[0] for shape in shapes)
    largest = tuple(max(shape[axis] for shape in shapes) for axis in (1, 2))
    random = np.random.default_rng(1)
    parts = [random.integers(0, 100, shape).astype(dtype) for shape in shapes]
    wanted = np.full((rows, *largest, inner), value, dtype)
    row = 0
    for part in parts:
        wanted[row : row + len(part), : part.shape[1], : part.shape[2]] = part
        row += len(part)
    out = np.empty_like(wanted)
    element = np.array(value, dtype).tobytes()
    join_padded(parts, out, element, element)
    np.testing.assert_array_equal(out, wanted)


def test_rows_without_values_are_joined_at_once():
    """Their other dimensions may be so large that looping over them would take hours."""
    out = np.empty((1 << 40, 8, 0), np.float32)
    join_padded([np.empty((1 << 40, 3, 0), np.float32)], out, bytes(4), bytes(4))
    assert out.shape == (1 << 40, 8, 0)


def test_a_mask_is_made_where_there_is_none():
    given_mask = np.array([[1, 0]], np.float32)
    out = np.empty((4, 3), np.float32)
    zero, one = np.float32(0).tobytes(), np.float32(1).tobytes()
    join_padded([(2, 1), given_mask, (1, 3)], out, zero, one)
    assert out.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "parts",
    [
        [np.zeros((1, 2))],
        [np.zeros((2, 4))],
        [np.zeros((2, 2), np.float32)],
        [np.zeros((2, 4))[:, ::2]],
        [np.zeros((2, 2, 1))],
        [],
        [(2, -1)],
        [(3, 2)],
        [(2, 2, 1)],
    ],
)
def test_mismatched_shapes_are_refused(parts):
    with pytest.raises(ValueError, match="batch"):
        join_padded(parts, np.zeros((2, 3)), bytes(8), bytes(8))


def test_a_made_part_of_another_rank_is_refused():
    with pytest.raises(ValueError, match="two dimensions"):
        join_padded([(2, 3, 1)], np.zeros((2, 3, 1)), bytes(8), bytes(8))

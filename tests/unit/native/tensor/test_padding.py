"""Buckets of lengths: which rows share a batch, and how far they are padded."""

from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.tensor.padding import LengthBuckets

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

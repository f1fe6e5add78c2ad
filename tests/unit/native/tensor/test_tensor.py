"""A tensor is a plain record."""

import numpy as np

from ksrv.request import Tensor


def test_tensors_are_compared_by_their_fields():
    array = np.ones(2, "f4")
    one = Tensor("x", "FP32", (2,), array)
    assert one == Tensor("x", "FP32", (2,), array, {})
    assert one != Tensor("y", "FP32", (2,), array)
    assert one != Tensor("x", "FP32", (2,), array, {"content_type": "np"})
    assert one != "x"


def test_parameters_are_not_shared():
    one, other = Tensor("x", "BYTES", (1,), [b"a"]), Tensor("y", "BYTES", (1,), [b"a"])
    one.parameters["a"] = 1
    assert other.parameters == {}


def test_nbytes_counts_the_payload():
    assert Tensor("x", "FP32", (2, 3), np.ones((2, 3), "f4")).nbytes == 24
    assert Tensor("x", "BYTES", (2,), [b"ab", memoryview(b"cde")]).nbytes == 5


def test_repr_shows_the_fields():
    assert repr(Tensor("x", "BYTES", (1,), data=[b"a"])) == (
        "Tensor(name='x', datatype='BYTES', shape=(1,), data=[b'a'], parameters={})"
    )

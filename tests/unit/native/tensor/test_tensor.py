"""A tensor is a plain record."""

import numpy as np

from ksrv.request import Tensor


def test_it_is_compared_by_its_fields():
    array = np.ones(2, "f4")
    one = Tensor("x", "FP32", (2,), array)
    assert one == Tensor("x", "FP32", (2,), array, {})
    assert one != Tensor("y", "FP32", (2,), array)
    assert one != Tensor("x", "FP32", (2,), array, {"content_type": "np"})
    assert one != "x"


def test_parameters_are_its_own():
    one, other = Tensor("x", "BYTES", (1,), [b"a"]), Tensor("y", "BYTES", (1,), [b"a"])
    one.parameters["a"] = 1
    assert other.parameters == {}


def test_it_knows_its_payload():
    assert Tensor("x", "FP32", (2, 3), np.ones((2, 3), "f4")).nbytes == 24
    assert Tensor("x", "BYTES", (2,), [b"ab", memoryview(b"cde")]).nbytes == 5


def test_it_shows_its_fields():
    assert repr(Tensor("x", "BYTES", (1,), data=[b"a"])) == (
        "Tensor(name='x', datatype='BYTES', shape=(1,), data=[b'a'], parameters={})"
    )

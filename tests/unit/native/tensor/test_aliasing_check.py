"""Which outputs can be sent without a copy: nothing else can reach their memory."""

import ctypes

import numpy as np
import pytest

from ksrv._native.tensor.aliasing_check import InputReferences, unshared
from ksrv.handlers.outputs import as_tensor
from ksrv.request import Tensor

torch = pytest.importorskip("torch")

FLAGS = 64
"""The offset of the flags in an array (`PyArrayObject_fields`)."""
OWNDATA = 4


def new(rows=3):
    return np.ones((rows, 4), np.float32)


def judged(handler, *arrays):
    """Run a handler on inputs as the engine does, and check its return value."""
    inputs = [Tensor("x", "FP32", one.shape, one) for one in arrays]
    del arrays
    before = InputReferences(inputs)
    outputs = [as_tensor("y", one) for one in handler(*[one.data for one in inputs])]
    return unshared(outputs, before)


def test_without_counts_an_input_is_shared():
    x = new()
    held = Tensor("x", "FP32", x.shape, x)
    assert unshared([Tensor("y", "FP32", x.shape, held.data), as_tensor("z", new())]) == [
        False,
        True,
    ]


def test_an_array_without_an_owner_is_shared():
    """As a C extension makes an array over memory that it keeps."""
    owned = new()
    flags = ctypes.c_int.from_address(id(owned) + FLAGS)
    flags.value &= ~OWNDATA
    assert (owned.flags.owndata, owned.base) == (False, None)
    outputs = [Tensor("y", "FP32", owned.shape, owned)]
    flags, owned = None, None
    found = unshared(outputs)
    ctypes.c_int.from_address(id(outputs[0].data) + FLAGS).value |= OWNDATA
    assert found == [False]


def test_a_tensor_is_shared_because_others_may_have_its_storage():
    assert judged(lambda x: [torch.ones(3, 4)], new()) == [False]
    assert judged(lambda x: [torch.ones(3, 4).numpy()], new()) == [False]

"""Which outputs can be sent without a copy: nothing else can reach their memory."""

import ctypes

import numpy as np
import pytest

from ksrv import torch_interop
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


def test_the_array_of_a_tensor_is_shared_for_it_does_not_tell_who_allocated_it():
    kept = new()
    assert judged(lambda x: [torch.ones(3, 4).numpy()], new()) == [False]
    assert judged(lambda x: [torch.from_numpy(kept).numpy()], new()) == [False]


def test_where_torch_does_not_count_holders_every_tensor_is_shared(monkeypatch):
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    torch_interop._holders_of_one_tensor.cache_clear()
    try:
        assert judged(lambda x: [torch.ones(3, 4)], new()) == [False]
        torch_interop._holders_of_one_tensor.cache_clear()
        monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda storage: 2, raising=False)
        assert judged(lambda x: [torch.ones(3, 4)], new()) == [False]
    finally:
        torch_interop._holders_of_one_tensor.cache_clear()

"""Which outputs may be sent from where they lie."""

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.aliasing_check import counts, unshared
from ksrv.request import Tensor


def out(array):
    return Tensor("y", "FP32", np.shape(array), array)


def new(rows=3):
    return np.ones((rows, 4), np.float32)


def judged(handler, *arrays):
    """Run a handler on inputs as the engine does, and judge what it returns."""
    tensors = [Tensor("x", "FP32", one.shape, one) for one in arrays]
    inputs = [tensor.data for tensor in tensors]
    before = counts(inputs)
    return unshared([out(one) for one in handler(*inputs)], before, inputs)


def test_a_new_array_is_unshared():
    assert judged(lambda x: [x * 2], new()) == [True]


def test_views_of_a_new_array_are_unshared():
    def handler(x):
        made = np.ones((2, 3, 4), np.float32)
        return [made[0], made[1], made.reshape(6, 4)]

    assert judged(handler, new()) == [True] * 3


def test_an_array_that_the_handler_keeps_is_shared():
    kept = new()
    assert judged(lambda x: [kept], new()) == [False]
    assert judged(lambda x: [kept[:2], x + 1], new()) == [False, True]


def test_a_view_that_the_handler_keeps_makes_its_base_shared():
    views = []

    def handler(x):
        made = new()
        views.append(made[1:])
        return [made]

    assert judged(handler, new()) == [False]


def test_the_same_array_twice_is_unshared():
    def handler(x):
        made = new()
        return [made, made, made[:1]]

    assert judged(handler, new()) == [True] * 3


def test_the_input_itself_and_its_views_are_unshared():
    assert judged(lambda x: [x], new()) == [True]
    assert judged(lambda x: [x[:1], x[1:], x], new()) == [True] * 3


def test_an_input_of_a_block_is_unshared():
    block = buffer_pool.lease(64)
    made = buffer_pool.array(block, "<f4", (4, 4))
    assert judged(lambda x: [x], made[:2]) == [True]
    assert judged(lambda x: [x.reshape(-1)], made) == [True]


def test_an_input_that_the_handler_keeps_is_shared():
    kept = []

    def handler(x):
        kept.append(x)
        return [x]

    assert judged(handler, new()) == [False]
    assert judged(lambda x: [kept.append(x[1:]) or x[:1]], new()) == [False]


def test_bytes_are_never_shared():
    payload = bytes(64)
    array = np.frombuffer(payload, np.float32).reshape(4, 4)
    view = np.frombuffer(memoryview(payload), np.float32).reshape(4, 4)
    kept = []
    assert judged(lambda x: [kept.append(x) or x], array) == [True]
    assert judged(lambda x: [kept.append(x) or x], view) == [True]


def test_elements_are_never_shared():
    assert unshared([Tensor("y", "BYTES", (1,), [b"a"])], {}, []) == [True]


def test_an_owner_of_an_unknown_kind_is_taken_for_shared():
    assert judged(lambda x: [np.frombuffer(bytearray(64), np.float32)], new()) == [False]


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    kept = torch.ones(3, 4)
    assert judged(lambda x: [torch.ones(3, 4).numpy()], new()) == [True]
    assert judged(lambda x: [kept.numpy()], new()) == [False]
    assert judged(lambda x: [torch.from_numpy(x).numpy()], new()) == [False]

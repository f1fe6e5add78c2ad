"""A handler that keeps its memory, and overwrites it, changes no answer: over every kind of owner.

The slow oracle is the number that was in the memory when the handler returned.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.memory import buffer_pool
from ksrv._native.tensor.aliasing_check import InputReferences
from ksrv.engine.batches.split import split
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.handlers.outputs import OutputConverter
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import ExecutorOutputs, InferRequest, Tensor

torch = pytest.importorskip("torch")
owners = pytest.importorskip("tests.support.memory_owners")

FLOATS = 24
DECLARED = ModelSpec("m", outputs=(TensorSpec("y", "FP32", (-1, FLOATS)),))
UNDECLARED = ModelSpec("m")
views = st.lists(st.sampled_from(sorted(owners.VIEWS)), max_size=3)


def rows_of(value, rows):
    """Return a vector as so many equal rows."""
    return value.reshape(rows, -1)


def answered(results, rows, spec, inputs=(), before=None):
    """Return the answers of a batch with as many requests as rows."""
    given_inputs = {one.name: one for one in inputs}
    tensors = OutputConverter(spec).read(results.pop(), rows, inputs=given_inputs)
    handles = [QueuedRequest(InferRequest("m"), 1, 1) for _ in range(rows)]
    return split(spec, handles, ExecutorOutputs(tensors), {}, before)


def numbers(answers):
    """Return the different numbers in the answers."""
    return {
        float(one) for answer in answers for out in answer.outputs for one in np.ravel(out.data)
    }


@pytest.mark.parametrize("kind", sorted(owners.KEPT))
@given(names=views, rows=st.integers(1, 3), declared=st.booleans(), twice=st.booleans())
def test_kept_memory_may_change_after_the_answer(kind, names, rows, declared, twice):
    writer, show = owners.KEPT[kind](rows * FLOATS)
    writer[:] = 1.0
    value = show()
    if isinstance(value, np.ndarray):
        for name in names:
            value = owners.VIEWS[name](value)
    value = rows_of(value, rows)
    results = [{"y": value, "z": value} if twice and not declared else {"y": value}]
    del value
    answers = answered(results, rows, DECLARED if declared else UNDECLARED)
    writer[:] = 2.0
    assert numbers(answers) == {1.0}


def overwritten(find):
    """Write to what a handler finds again of its memory."""
    found = find()
    if found is not None:
        with torch.inference_mode():
            found[...] = 2.0


@pytest.mark.parametrize("how", sorted(owners.HELD_ARRAYS))
@given(names=views, rows=st.integers(1, 3), first=st.booleans(), declared=st.booleans())
def test_reachable_new_array_is_copied(how, names, rows, first, declared):
    value = np.ones(rows * FLOATS, np.float32)
    if first:
        find = owners.HELD_ARRAYS[how](value)
    for name in names:
        value = owners.VIEWS[name](value)
    value = rows_of(value, rows)
    if not first and how not in ("a slice", "every second") and type(value) is np.ndarray:
        find = owners.HELD_ARRAYS[how](value)
    elif not first:
        return
    results = [{"y": value}]
    del value
    answers = answered(results, rows, DECLARED if declared else UNDECLARED)
    overwritten(find)
    assert numbers(answers) == {1.0}


@pytest.mark.parametrize("how", sorted(owners.HELD_TENSORS))
@pytest.mark.parametrize("mode", [True, False], ids=["inference", "autograd"])
@given(
    rows=st.integers(1, 3), part=st.booleans(), dtype=st.sampled_from(["f4", "f8", "bf16", "u1"])
)
def test_reachable_new_tensor_is_copied(how, mode, rows, part, dtype):
    kinds = {"f4": torch.float32, "f8": torch.float64, "bf16": torch.bfloat16, "u1": torch.uint8}
    if how == "a graph" and (mode or dtype != "f4"):
        return
    with torch.inference_mode(mode):
        value = torch.ones(rows * FLOATS, dtype=kinds[dtype])
        if how == "its array" and dtype == "bf16":
            return
        find = owners.HELD_TENSORS[how](value)
        value = rows_of(value[:] if part else value, rows)
        before = numbers(answered([{"y": value.clone()}], rows, UNDECLARED))
        results = [{"y": value}]
        del value
        answers = answered(results, rows, UNDECLARED)
        overwritten(find)
    assert numbers(answers) == before


@given(
    names=views,
    rows=st.integers(1, 3),
    block=st.booleans(),
    kept=st.sampled_from([None, "input", "view", "base", "other", "tensor", "weak"]),
)
def test_returned_input_is_copied_if_the_handler_keeps_it(names, rows, block, kept):
    """It is sent without a copy only if the handler kept no part of it, and of no other input."""
    memory = buffer_pool.lease(2 * rows * FLOATS * 4)
    owner = memory if block else bytearray(memory)
    x, other = (
        np.ndarray(rows * FLOATS, np.float32, owner, start) for start in (0, rows * FLOATS * 4)
    )
    del memory, owner
    x[:], other[:] = 1.0, 3.0
    inputs = [Tensor("x", "FP32", x.shape, x), Tensor("o", "FP32", other.shape, other)]
    del x, other
    before = InputReferences(inputs)

    def handle(x, other):
        keep = {
            None: lambda: None,
            "input": lambda: x,
            "view": lambda: x[1:],
            "base": lambda: x.base,
            "other": lambda: other,
            "tensor": lambda: torch.from_numpy(x),
            "weak": lambda: owners.weakref.ref(x),
        }[kept]()
        value = x
        for name in names:
            value = owners.VIEWS[name](value)
        return keep, {"y": rows_of(value, rows)}

    keep, *results = handle(*[one.data for one in inputs])
    answers = answered(results, rows, UNDECLARED, inputs, before)
    if kept is None and block and set(names) <= {"slice", "reshape", "transpose", "dtype"}:
        assert np.shares_memory(answers[0].outputs[0].data, inputs[0].data)
    if isinstance(keep, (np.ndarray, torch.Tensor)):
        keep[...] = 2.0
    elif keep is not None:
        np.asarray(keep() if kept == "weak" else np.frombuffer(keep, np.float32))[...] = 2.0
    if kept is not None:
        assert numbers(answers) == {1.0}


@given(names=views, rows=st.integers(1, 3))
def test_unreachable_array_is_not_copied(names, rows):
    known = ("slice", "reshape", "transpose", "dtype")
    copied = buffer_pool.copied_bytes()
    value = np.ones(rows * FLOATS, np.float32)
    for name in names:
        if name in known:
            value = owners.VIEWS[name](value)
    results = [{"y": rows_of(value, rows), "t": torch.ones(rows, 3)}]
    address = value.__array_interface__["data"][0]
    del value
    answers = answered(results, rows, UNDECLARED)
    assert answers[0].outputs[0].data.__array_interface__["data"][0] == address
    assert buffer_pool.copied_bytes() == copied


@pytest.mark.parametrize("kind", sorted(owners.kept_elements(1)))
def test_kept_elements_may_change_after_the_answer(kind):
    buffers, output = owners.kept_elements(2)[kind]
    answers = answered([{"y": output}], 2, UNDECLARED)
    told = [bytes(one) for answer in answers for one in answer.outputs[0].data]
    for buffer in buffers:
        if isinstance(buffer, np.ndarray):
            buffer[:] = ord("b")
        else:
            buffer[:] = b"b" * len(buffer)
    assert [bytes(one) for answer in answers for one in answer.outputs[0].data] == told
    assert {*b"".join(told)} == {ord("a")}

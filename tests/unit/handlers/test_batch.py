"""The batch of a handler: views, conversions, and per-request results."""

from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.errors import InferenceError
from ksrv.handlers.batch import Batch
from ksrv.handlers.devices.device import Device
from ksrv.request import ExecutorInputs, RequestPart, Tensor

torch = pytest.importorskip("torch")


def batch_of(*tensors, layouts=None, sizes=(1, 2), explain=False):
    requests, start = [], 0
    for number, size in enumerate(sizes):
        part = RequestPart(slice(start, start + size), f"id{number}", {"k": number}, {"h": "v"})
        requests.append(part)
        start += size
    inputs = ExecutorInputs({tensor.name: tensor for tensor in tensors}, start, requests, explain)
    return Batch(inputs, layouts or {}, Device("cpu").put)


def numbers(name="x", datatype="FP32", dtype=np.float32, shape=(3, 2)):
    return Tensor(name, datatype, shape, np.arange(np.prod(shape)).reshape(shape).astype(dtype))


def test_array_is_passed_on_unchanged():
    tensor = numbers()
    batch = batch_of(tensor)
    assert batch["x"] is tensor.data
    assert (batch.names, list(batch), "x" in batch, "y" in batch) == (("x",), ["x"], True, False)
    assert (batch.rows, batch.datatype("x"), batch.explain) == (3, "FP32", False)
    assert [request.id for request in batch.requests] == ["id0", "id1"]


def test_unknown_name_lists_the_inputs():
    with pytest.raises(KeyError, match="no input 'z'; it has x"):
        batch_of(numbers())["z"]


def test_a_torch_tensor_shares_the_arrays_memory():
    tensor = numbers()
    before = buffer_pool.copied_bytes()
    made = batch_of(tensor).tensor("x")
    assert made.data_ptr() == tensor.data.ctypes.data
    assert buffer_pool.copied_bytes() == before


def test_a_read_only_array_is_copied_for_torch():
    tensor = numbers()
    tensor.data.flags.writeable = False
    before = buffer_pool.copied_bytes()
    made = batch_of(tensor).tensor("x")
    made.add_(1)
    assert tensor.data[0, 0] == 0
    assert buffer_pool.copied_bytes() == before + 24


def test_bytes_become_an_object_array():
    big = memoryview(bytearray(b"large"))
    batch = batch_of(Tensor("s", "BYTES", (3,), [b"a", b"", big]))
    assert batch["s"].tolist() == [b"a", b"", b"large"]
    assert {type(element) for element in batch["s"]} == {bytes}
    assert batch["s"] is batch["s"]
    with pytest.raises(TypeError, match="'s' is BYTES"):
        batch.tensor("s")
    square = batch_of(Tensor("s", "BYTES", (3, 2), [b"a"] * 6))
    assert square["s"].shape == (3, 2)


def test_bfloat16_is_patterns_and_a_torch_dtype():
    tensor = Tensor("b", "BF16", (3,), np.array([0x3F80, 0x4000, 0xC000], np.uint16))
    batch = batch_of(tensor)
    assert batch["b"].dtype == np.uint16
    assert batch.tensor("b").dtype is torch.bfloat16
    assert batch.tensor("b").tolist() == [1, 2, -2]


@pytest.mark.parametrize("writable", [True, False])
def test_images_for_an_nchw_model_are_a_view(writable):
    tensor = numbers("i", shape=(3, 4, 5, 3))
    tensor.data.flags.writeable = writable
    batch = batch_of(tensor, layouts={"i": "NCHW"})
    assert batch["i"].shape == (3, 3, 4, 5)
    assert np.shares_memory(batch["i"], tensor.data)
    made = batch.tensor("i")
    assert made.shape == (3, 3, 4, 5)
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_failed_row_fails_its_request():
    batch = batch_of(numbers())
    batch.fail(np.int64(2), "bad", 415)
    batch.fail(1, "later")
    [(place, error)] = batch.failures.items()
    assert (place, error.http_status, error.message) == (1, 415, "bad")
    assert isinstance(error, InferenceError)
    for row in (3, -1):
        with pytest.raises(IndexError):
            batch.fail(row, "nobody's")
    with pytest.raises(ValueError, match="between 400 and 599"):
        batch.fail(0, "fine", 200)


def test_headers_and_parameters_reach_the_request():
    batch = batch_of(numbers())
    batch.set_header(0, "x-a", "1")
    batch.set_header(2, "x-b", "2")
    batch.set_parameter(1, "score", 0.5)
    assert batch.headers == {0: {"x-a": "1"}, 1: {"x-b": "2"}}
    batch.set_header(0, "x-a", 5)
    assert batch.headers[0] == {"x-a": "5"}
    for name, value in [("x-a", None), ("x-a", b"5"), ("x-a", ["5"]), (None, "a"), (b"x-a", "a")]:
        with pytest.raises(TypeError, match="header"):
            batch.set_header(0, name, value)
    assert batch.headers == {0: {"x-a": "5"}, 1: {"x-b": "2"}}
    assert batch.parameters == {1: {"score": 0.5}}
    with pytest.raises(TypeError, match="list"):
        batch.set_parameter(0, "bad", [1])


class Text(str):
    """A str subclass of the handler."""


class Kind(str, Enum):  # noqa: UP042  as older handlers have it
    CAT = "cat"


class Number(float):
    """A float subclass of the handler."""


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (HTTPStatus.OK, 200),
        (True, True),
        (Number(2.5), 2.5),
        (Text("a"), "a"),
        (Kind.CAT, "cat"),
        (np.float64(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.int64(-3), -3),
        (np.uint8(7), 7),
        (np.bool_(True), True),
        (np.str_("b"), "b"),
    ],
)
def test_values_of_other_classes_are_taken_as_python_s_own(value, plain):
    batch = batch_of(numbers())
    batch.set_parameter(0, Text("p"), value)
    batch.set_header(0, Text("x-p"), value)
    [(name, found)] = batch.parameters[0].items()
    assert (type(name), type(found), found) == (str, type(plain), plain)
    [(name, found)] = batch.headers[0].items()
    assert (type(name), type(found), found) == (str, str, str(plain))


@pytest.mark.parametrize(
    "value", [None, b"a", [1], 1j, np.datetime64(5, "ns"), np.timedelta64(5, "ns"), np.ones(1)]
)
def test_other_values_are_refused(value):
    batch = batch_of(numbers())
    with pytest.raises(TypeError, match=f"the parameter 'p' is a {type(value).__name__}"):
        batch.set_parameter(0, "p", value)
    with pytest.raises(TypeError, match=f"the header 'x-p' is a {type(value).__name__}"):
        batch.set_header(0, "x-p", value)


def test_a_batch_is_a_mapping_of_arrays():
    batch = batch_of(numbers("a"), numbers("b"))
    assert isinstance(batch, Mapping)
    assert (len(batch), list(batch.keys())) == (2, ["a", "b"])
    assert [array is batch[name] for name, array in batch.items()] == [True, True]
    assert batch.get("c") is None
    assert {**batch}["a"] is batch["a"]
    assert (batch == batch, batch == batch_of(numbers("a"), numbers("b"))) == (True, False)
    assert batch in {batch}

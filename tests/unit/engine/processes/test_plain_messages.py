"""Calls and results in the message itself: the same arrays at the other end, and nothing hostile gets in."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.process import plain_tensors
from ksrv._native.process.channel import ChannelError
from ksrv._native.process.shared_blocks import ImportedBlocks
from ksrv._native.tensor import datatype
from ksrv.engine.processes import messages
from ksrv.request import InferRequest, RequestedOutput, Tensor

FP32 = datatype.NAMES.index("FP32")


def tensor(name="x", shape=(2, 3), kind="FP32", dtype=np.float32):
    count = int(np.prod(shape))
    return Tensor(name, kind, shape, np.arange(count).astype(dtype).reshape(shape))


def record(nbytes=24, name=b"x", code=FP32, shape=(2, 3), rank=None, name_length=None):
    rank = len(shape) if rank is None else rank
    name_length = len(name) if name_length is None else name_length
    head = struct.pack("<IHBB", nbytes, name_length, code, rank)
    return head + struct.pack(f"<{len(shape)}q", *shape) + name


def payload(*records, count=None, model=b"m", model_length=None, span=b"", data=bytes(24)):
    model_length = len(model) if model_length is None else model_length
    count = len(records) if count is None else count
    head = struct.pack("<QIHH", 7, count, model_length, len(span))
    return head + model + span + b"".join(records) + data


def frame(text):
    return SimpleNamespace(payload=text, plain=True, lenient=False)


LIES = {
    "no bytes": b"",
    "half a head": payload()[:10],
    "more tensors than fit": payload(*[record(0, shape=(0,))] * 17, data=b""),
    "more tensors than there are": payload(record(), count=2),
    "more tensors than anybody has": payload(record(), count=2**32 - 1),
    "a model's name without an end": payload(record(), model_length=65535),
    "a model's name that is no text": payload(record(), model=b"\xff"),
    "a span that is no text": payload(record(), span=b"\xff\xfe"),
    "a tensor's name without an end": payload(record(name_length=65535)),
    "a tensor's name that is no text": payload(record(name=b"\xc3")),
    "texts": payload(record(code=datatype.NAMES.index("BYTES"))),
    "a datatype that is none": payload(record(code=255)),
    "too many dimensions": payload(record(4, shape=(1,) * 33), data=bytes(4)),
    "dimensions without an end": payload(record(rank=32)),
    "a negative dimension": payload(record(shape=(-2, -3))),
    "a dimension too large": payload(record(shape=(2**31, 0))),
    "a shape that overflows": payload(record(shape=(2**31 - 1,) * 3)),
    "a shape of another size": payload(record(shape=(2, 4))),
    "a tensor too large": payload(record(2**20, shape=(2**18,)), data=bytes(2**20)),
    "fewer bytes than announced": payload(record(), data=bytes(23)),
    "bytes behind the last tensor": payload(record(), data=bytes(25)),
}


@pytest.mark.parametrize("read", [messages.unpack_call, messages.unpack_result])
@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_does_not_add_up_is_refused(lie, read):
    with pytest.raises(ChannelError, match="do not add up"):
        read(frame(LIES[lie]), ImportedBlocks())


def test_the_same_message_without_a_lie_is_read():
    number, request = messages.unpack_call(frame(payload(record())), ImportedBlocks())
    assert (number, request.model_name, request.headers) == (7, "m", {})
    assert [(one.name, one.shape) for one in request.inputs] == [("x", (2, 3))]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(text):
    try:
        _, _, _, tensors = plain_tensors.read(text)
    except ValueError:
        return
    assert sum(one.nbytes for one in tensors) <= len(text)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (name, dtype)
        for name, dtype in zip(datatype.NAMES, datatype.DTYPES, strict=True)
        if name != "BYTES"
    ],
)
def test_arrays_of_each_datatype_come_as_they_went(kind, dtype):
    sent = [
        tensor("x", (2, 3), kind, dtype),
        tensor("é", (), kind, dtype),
        tensor("none", (0, 4), kind, dtype),
    ]
    number, model, span, found = plain_tensors.read(plain_tensors.write(9, "m", "00-1-2-00", sent))
    assert (number, model, span) == (9, "m", "00-1-2-00")
    for one, other in zip(sent, found, strict=True):
        assert (other.name, other.datatype, other.shape) == (one.name, one.datatype, one.shape)
        assert other.data.dtype == one.data.dtype
        assert np.array_equal(other.data, one.data)
        assert other.data.flags.writeable  # they are the reader's own


@pytest.mark.parametrize(
    "tensors",
    [
        [Tensor("x", "BYTES", (1,), [b"a"])],
        [Tensor("x", "FP32", (2,), np.zeros(2, "f8"))],
        [Tensor("x", "FP32", (3, 2), np.zeros((2, 3), "f4").T)],
        [Tensor("x", "FP32", (2,), np.zeros(2, ">f4"))],
        [Tensor("x", "FP32", (1,), np.zeros(1, "f4"), {"unit": "mm"})],
        [Tensor("\ud800", "FP32", (1,), np.zeros(1, "f4"))],
        [Tensor("x" * 5000, "FP32", (1,), np.zeros(1, "f4"))],
        [tensor(shape=(plain_tensors.PLAIN_BYTES // 4 + 1,))],
        [tensor(shape=(plain_tensors.PLAIN_BYTES // 8 + 1,))] * 2,
        [tensor()] * (plain_tensors.PLAIN_TENSORS + 1),
    ],
    ids=[
        "texts",
        "cast",
        "order",
        "swapped",
        "parameters",
        "surrogate",
        "name",
        "large",
        "sum",
        "many",
    ],
)
def test_what_is_of_another_form_is_left_to_the_general_way(tensors):
    assert plain_tensors.write(1, "m", "", tensors) is None


@pytest.mark.parametrize(
    "asked",
    [{"model_version": "2"}, {"outputs": [RequestedOutput("y")]}, {"parameters": {"a": 1}}],
)
def test_calls_that_ask_for_more_go_the_general_way(asked):
    assert messages.pack_plain_call(InferRequest("m", inputs=[tensor()]), 1) is not None
    assert messages.pack_plain_call(InferRequest("m", inputs=[tensor()], **asked), 1) is None

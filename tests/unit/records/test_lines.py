"""Tensors are read back from a line bit for bit, and truncated or malformed lines are reported."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv.model.datatypes import DTYPES
from ksrv.records import Record, RecordedTensor, RecordError, read_records
from ksrv.records.lines import recorded
from ksrv.request import Tensor


@given(st.sampled_from(sorted(set(DTYPES) - {"BYTES"})), st.binary(max_size=64))
def test_numbers_round_trip_bit_for_bit(name, data):
    size = np.dtype(DTYPES[name]).itemsize
    raw = data[: len(data) // size * size]
    if name == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, DTYPES[name])
    made = recorded(Tensor("x", name, array.shape, array))
    line = Record(0.0, "", "m", "", 0.0, (made,)).line()
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    again = made.tensor()
    assert again.data.tobytes() == raw
    assert again.shape == array.shape


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_elements_round_trip(elements):
    made = recorded(Tensor("x", "BYTES", (len(elements),), elements))
    assert made.tensor().data == elements
    assert made.array().tolist() == elements


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (
            RecordedTensor("x", "FP32", (2,), b"1234"),
            "has 4 bytes, and 8 by its datatype and shape",
        ),
        (RecordedTensor("x", "FP32", (1,), b"123"), "has 3 bytes, and 4 by"),
        (RecordedTensor("x", "FP32", (-3,), b"1234"), "dimension 0 is negative"),
        (RecordedTensor("x", "FP99", (1,), b"1234"), "unknown datatype"),
        (RecordedTensor("x", "BYTES", (1,), b"\x05\0\0\0abc"), "element 0 claims 5 bytes"),
        (RecordedTensor("x", "BYTES", (1,), b"\x05\0"), "element 0 needs a 4-byte length"),
        (RecordedTensor("x", "BYTES", (2,), b"\x01\0\0\0a"), "element 1 needs a 4-byte length"),
        (RecordedTensor("x", "BYTES", (1,)), "left out"),
    ],
)
def test_invalid_tensors_are_refused(tensor, told):
    with pytest.raises(ValueError, match=told):
        tensor.tensor()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "nonsense",
        '{"time": "x", "id": "", "model": "m", "version": "", "duration_ms": 1, "inputs": []}',
        '{"time": 1, "id": "", "model": "m", "version": "", "duration_ms": 1, "inputs": [{"name": "x"}]}',
        '{"time": 1, "id": "", "model": "m", "version": "", "duration_ms": 1, "inputs": 7}',
    ],
)
def test_lines_that_are_no_records_are_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    good = Record(1.0, "first", "m", "", 1.0, ())
    path.write_bytes(good.line() + line.encode() + b"\n")
    with pytest.raises(RecordError, match=r"a\.jsonl:2: the line is not a record"):
        list(read_records(path))


def test_a_last_line_that_is_cut_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    good = Record(1.0, "first", "m", "", 1.0, ())
    path.write_bytes(good.line() + good.line()[:-10])
    assert [one.id for one in read_records(path)] == ["first"]


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ksrv.records.reading.LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b" " * 1000)
    with pytest.raises(RecordError, match="more than 100 bytes"):
        list(read_records(path))

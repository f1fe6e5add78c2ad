"""Conversion between Python values and tensors of the protocol."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ksrv.client.tensors import Declared, decode, encode, from_json


def sent(value, datatype=None, shape=(-1,)):
    tensor = encode("x", value, None if datatype is None else Declared("x", datatype, shape))
    return tensor, decode(tensor.datatype, tensor.shape, memoryview(b"".join(tensor.blocks)))


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([1, 2], "FP32", np.float32([1, 2])),
        ([[1.5, 2]], "FP64", np.float64([[1.5, 2]])),
        (np.float64([1 / 3]), "FP32", np.float32([1 / 3])),
        (np.uint8([255]), "FP32", np.float32([255])),
        (np.int64([7]), "UINT8", np.uint8([7])),
        ([True, False], "BOOL", np.array([True, False])),
        ([True, False], "INT32", np.int32([1, 0])),
        (np.uint16([3]), "BF16", np.float32([3])),
        ([], "INT64", np.int64([])),
        (np.array([1, 2], ">i4"), "INT32", np.int32([1, 2])),
        (3, "INT64", np.int64([3])),
        (np.float32([1, 2, 3])[::2], "FP16", np.float16([1, 3])),
        (np.zeros((0,), np.float32), "FP32", np.float32([])),
    ],
)
def test_numbers_take_the_declared_datatype(value, datatype, expected):
    tensor, read = sent(value, datatype, (-1,) * max(expected.ndim, 1))
    assert tensor.datatype == datatype
    assert read.dtype == expected.dtype
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        ([1.5], "INT32", "takes INT32: FP64 does not become INT32"),
        ([300], "UINT8", "UINT8 ranges from 0 to 255"),
        ([-1], "UINT64", "ranges from 0"),
        ([1], "BOOL", "takes BOOL"),
        ([1j], "FP32", "complex128, which the protocol has no datatype for"),
        ([1.0, 1e300], "FP32", "too large for FP32, the first is 1e.300"),
        ([1.0, 1e300], "BF16", "too large for BF16, the first is 1e.300"),
        (np.float32([3.4e38]), "BF16", "too large"),
        ([70000.0], "FP16", "the first is 70000.0"),
        ([70000], "FP16", "the first is 70000"),
        ("cat.jpg", "FP32", "pathlib.Path"),
        ([[1], [1, 2]], "FP32", "is not an array"),
        ([["a"], ["b", "c"]], "BYTES", "different lengths"),
        (["a", 1], "BYTES", "type int"),
        (np.array([1 + 2j]), None, "no datatype"),
    ],
)
def test_lossy_conversion_is_refused(value, datatype, text):
    with pytest.raises(ValueError, match=text):
        sent(value, datatype)


def test_one_row_gets_its_batch_dimension():
    assert sent([1, 2, 3], "FP32", (-1, 3))[0].shape == (1, 3)
    assert sent([[1, 2, 3]], "FP32", (-1, 3))[0].shape == (1, 3)
    assert sent(b"abc", "FP32", (-1, 8, 8, 3))[0].shape == (1,)
    assert sent(["a", "b"], "BYTES", (-1, 1))[0].shape == (2, 1)
    assert sent("a", "BYTES", (-1, 1))[0].shape == (1, 1)
    assert sent("a", "BYTES", (-1,))[0].shape == (1,)


def test_bytes_texts_and_files_become_elements(tmp_path):
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"\xff\xd8")
    tensor, read = sent([path, b"", "ü", bytearray(b"x")], "BYTES")
    assert tensor.shape == (4,)
    assert read.tolist() == [b"\xff\xd8", b"", "ü".encode(), b"x"]
    assert sent(np.array([["a", "b"]]))[0].shape == (1, 2)
    assert sent(np.array([b"a", "b"], object))[1].tolist() == [b"a", b"b"]
    with pytest.raises(FileNotFoundError):
        sent(Path("/no/such/file"))


def test_bfloat16_is_rounded_to_the_nearest_and_read_exactly():
    values = np.float32([0, 1, 1 / 3, -2.5e38, 1e-40, np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8])
    tensor, read = sent(values, "BF16")
    expected = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(read, expected.astype(np.float32))
    assert sent(expected)[0] == tensor or np.isnan(values).any()
    np.testing.assert_array_equal(sent(expected, "BF16")[1], read)
    np.testing.assert_array_equal(sent(expected, "FP32")[1], read)


def test_answers_in_json_are_arrays():
    np.testing.assert_array_equal(from_json("FP32", [2, 1], [1, None]), np.float32([[1], [np.nan]]))
    assert from_json("INT64", [1], [2**62]).tolist() == [2**62]
    assert from_json("BYTES", [1, 2], [["a", "ü"]]).tolist() == [[b"a", "ü".encode()]]
    assert from_json("BYTES", [0], []).shape == (0,)


@pytest.mark.parametrize(
    ("datatype", "shape", "content"),
    [("FP32", [2], b"1234"), ("BYTES", [1], b"\x05\0\0\0ab"), ("BYTES", [2], b""), ("X", [0], b"")],
)
def test_an_answer_of_another_size_is_a_value_error(datatype, shape, content):
    with pytest.raises(ValueError):
        decode(datatype, shape, memoryview(content))

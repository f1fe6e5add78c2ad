"""The native writer of JSON numbers against orjson, byte for byte, and against what reads them."""

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv._native.json import number_array
from ksrv.model.datatypes import DTYPES

NUMBERS = [name for name in DTYPES if name not in ("FP16", "BF16", "BYTES")]


def check(array, datatype):
    text = number_array.write(array, datatype)
    assert text == orjson.dumps(array.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype.kind != "f" or np.isfinite(array).all():
        again = number_array.read(text, 0, len(text), datatype, array.size)
        assert again.tobytes() == array.tobytes()


@given(st.binary(max_size=96), st.sampled_from(NUMBERS))
@example(b"\0" * 16, "FP32")
@example(b"\0" * 16, "FP64")
@example(b"\xff" * 64, "INT64")
@example(b"\x7f" * 64, "UINT64")
def test_any_bits_read_back_equal(data, datatype):
    dtype = np.dtype(DTYPES[datatype])
    if datatype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    check(np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype), datatype)


@pytest.mark.parametrize(("datatype", "bits"), [("FP32", np.uint32), ("FP64", np.uint64)])
def test_many_reals(datatype, bits):
    draw = np.random.default_rng(7)
    whole = np.iinfo(bits)
    dtype = np.dtype(DTYPES[datatype])
    check(draw.integers(0, whole.max, 20000, bits, endpoint=True).view(dtype), datatype)
    # Each power of ten and of two with their neighbours, and numbers of few digits at every magnitude.
    with np.errstate(over="ignore"):
        powers = np.concatenate([10.0 ** np.arange(-323, 309), 2.0 ** np.arange(-1074, 1024)])
        powers = powers.astype(dtype)
        few = (draw.integers(1, 10**6, 4000) * 10.0 ** draw.integers(-320, 300, 4000)).astype(dtype)
        near = [np.nextafter(powers, dtype.type(to)) for to in (0, np.inf)]
    for array in (powers, few, *near, draw.integers(-(2**55), 2**55, 4000).astype(dtype)):
        check(array, datatype)
        check(-array, datatype)


@pytest.mark.parametrize("datatype", NUMBERS)
def test_bounds_and_none(datatype):
    dtype = np.dtype(DTYPES[datatype])
    check(np.zeros(0, dtype), datatype)
    if dtype.kind in "iu":
        check(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1], dtype), datatype)
    elif dtype.kind == "f":
        info = np.finfo(dtype)
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, info.min, info.tiny]
        check(np.array([*special, info.smallest_subnormal], dtype), datatype)

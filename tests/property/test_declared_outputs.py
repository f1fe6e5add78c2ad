"""Results that are just what is declared, against a slow oracle and the general reader."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.tensor.declared_outputs import DeclaredOutputs
from ksrv.errors import HandlerFailed
from ksrv.handlers.outputs import OutputConverter
from ksrv.model.spec import ModelSpec, TensorSpec

KINDS = {"FP32": "f4", "INT64": "i8", "UINT8": "u1", "BOOL": "?"}
tails = st.lists(st.integers(0, 3), max_size=2).map(tuple)
declarations = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(sorted(KINDS)), tails),
    min_size=1,
    max_size=3,
    unique_by=lambda entry: entry[0],
)


def declared(entries):
    return DeclaredOutputs(
        [(name, kind, np.dtype(KINDS[kind]), tail) for name, kind, tail in entries]
    )


@st.composite
def cases(draw):
    """Declared outputs, rows, and a result that often is what they say."""
    entries, rows = draw(declarations), draw(st.integers(1, 3))
    result = {}
    for name, kind, tail in draw(st.permutations(entries)):
        dtype, shape = np.dtype(KINDS[kind]), (rows, *tail)
        flaw = draw(
            st.sampled_from(["", "", "", "dtype", "swapped", "shape", "order", "rows", "list"])
        )
        if flaw == "dtype":
            dtype = np.dtype("f8")
        elif flaw == "swapped":
            dtype = dtype.newbyteorder()
        elif flaw == "shape":
            shape = draw(tails)
        elif flaw == "rows":
            shape = (rows + 1, *tail)
        array = np.ones(shape, dtype, order="F" if flaw == "order" else "C")
        result[name] = array.tolist() if flaw == "list" else array
    if draw(st.booleans()):
        result.pop(entries[0][0], None)
    if len(result) == 1 and draw(st.booleans()):
        result = next(iter(result.values()))
    return entries, rows, result


def expected(entries, rows, result):
    if type(result) is np.ndarray and len(entries) == 1:
        result = {entries[0][0]: result}
    if type(result) is not dict or sorted(result) != sorted(name for name, _, _ in entries):
        return None
    for name, kind, tail in entries:
        array = result[name]
        # An equal dtype that is another object is rare enough for the general reader.
        if type(array) is not np.ndarray or array.dtype is not np.dtype(KINDS[kind]):
            return None
        if array.shape != (rows, *tail) or not array.flags.c_contiguous:
            return None
    return [(name, kind, (rows, *tail), id(result[name])) for name, kind, tail in entries]


@given(cases())
def test_reader_takes_only_declared_outputs(case):
    entries, rows, result = case
    found = declared(entries).read(result, rows)
    told = found and [(one.name, one.datatype, one.shape, id(one.data)) for one in found]
    assert told == expected(entries, rows, result)


@given(cases())
def test_general_reader_gives_the_same_outputs(case):
    entries, rows, result = case
    found = declared(entries).read(result, rows)
    if found is None:
        return
    outputs = tuple(TensorSpec(name, kind, (-1, *tail)) for name, kind, tail in entries)
    general = OutputConverter(ModelSpec("m", outputs=outputs))
    general.fixed = None
    for mine, other in zip(found, general.read(result, rows), strict=True):
        assert (mine.name, mine.datatype, mine.shape) == (other.name, other.datatype, other.shape)
        assert mine.data is other.data


def test_other_types_are_left_to_the_general_reader():
    class Own(np.ndarray):
        pass

    one = declared([("y", "FP32", (2,))])
    array = np.ones((1, 2), "f4")
    assert one.read(array, 1)[0].data is array
    for other in (None, 1, "y", [array], (array,), {"y": None}, {"z": array}, {}, array.view(Own)):
        assert one.read(other, 1) is None


def test_reader_with_declared_outputs_reports_wrong_rows():
    reader = OutputConverter(ModelSpec("m", outputs=(TensorSpec("y", "FP32", (-1, 2)),)))
    with pytest.raises(HandlerFailed, match="2 rows"):
        reader.read({"y": np.ones((2, 2), "f4")}, 1)

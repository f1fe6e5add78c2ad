"""The reader of JSON numbers against Python's own, on numbers of every length and size."""

import itertools
import json
import random
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv._native.json import number_array
from ksrv._native.json.number_array import NumbersError
from tests.property.wire.header_oracle import INTEGERS


def read(text, datatype, count):
    """The values, or the error that refuses them."""
    body = text.encode()
    try:
        return number_array.read(body, 0, len(body), datatype, count)
    except NumbersError as error:
        return error


def expect(token, datatype):
    value = float(token)
    with np.errstate(over="ignore"):
        return np.dtype("f4" if datatype == "FP32" else "f8").type(value)


def check(tokens, datatype):
    expected = np.array([expect(token, datatype) for token in tokens])
    got = read(f"[{','.join(tokens)}]", datatype, len(tokens))
    if isinstance(got, NumbersError):
        assert got.code == "range" and np.isinf(expected[got.count])
        assert np.isfinite(expected[: got.count]).all()
        return
    # Bit for bit, the sign of zero included.
    assert got.tobytes() == expected.tobytes()


DIGITS = st.text("0123456789", min_size=1, max_size=40)
WHOLE = st.one_of(st.just("0"), st.builds(lambda a, b: a + b, st.sampled_from("123456789"), DIGITS))
TOKEN = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(("", "-")),
    WHOLE,
    st.one_of(st.just(""), DIGITS.map(lambda d: "." + d)),
    st.one_of(
        st.just(""),
        st.builds("{}{}".format, st.sampled_from(("e", "E+", "e-")), st.integers(0, 400)),
    ),
)


@given(st.lists(TOKEN, min_size=1, max_size=10), st.sampled_from(("FP32", "FP64")))
@example(["9007199254740993"], "FP64")
@example(["0.1", "1e23", "8.5e22", "4.9e-324", "2.4703282292062327e-324"], "FP64")
@example(["3.4028235677973366e38"], "FP32")
@example(["0." + "0" * 400 + "1e401"], "FP64")
@example(["1" + "0" * 400 + "e-400"], "FP64")
@example(["0e999999999999999999999"], "FP64")
@example(["1e-999999999999999999999"], "FP64")
@example(["1e-400", "123456e-500", "0." + "0" * 800 + "1e400", "-0." + "0" * 30 + "e400"], "FP64")
@example(["-1" + "0" * 309], "FP64")
@example(["12" + "0" * 400 + ".5"], "FP64")
@example(["1." + "1" * 500 + "e400"], "FP64")
@example(["0.001e312"], "FP64")
@example(["1" + "0" * 2000 + "e-1690"], "FP64")
@example(["1e99999999999999999999"], "FP64")
def test_decimal_strings(tokens, datatype):
    check(tokens, datatype)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_many_random_numbers(datatype):
    rng = random.Random(1)
    tokens = []
    for _ in range(20_000):
        match rng.randrange(4):
            case 0:
                (value,) = struct.unpack("d", rng.randbytes(8))
                tokens.append(repr(value) if np.isfinite(value) and abs(value) < 1e38 else "0")
            case 1:
                tokens.append(repr(rng.random() * 10 ** rng.randint(-8, 8)))
            case 2:
                # Halfway between two neighbours, written out: the hardest to round.
                low = np.float64(rng.random())
                high = np.nextafter(low, 2)
                tokens.append(f"{int(low * 2**60) + int(high * 2**60)}e0".replace("e0", ""))
            case _:
                tokens.append(f"{rng.uniform(-1, 1):.{rng.randint(1, 25)}f}")
    check(tokens, datatype)


@pytest.mark.parametrize("behind", ["", "0", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", " " * 40])
def test_every_length_of_a_fraction(behind):
    """The reader reads 32 bytes together while as many are left, then byte by byte."""
    digits = "31415926535897932384626433832795028841971"
    for length in range(1, len(digits)):
        for sign, whole in (("", "0"), ("-", "7"), ("-", "12"), ("", "9876543210")):
            for zeros in (0, 1, 9):
                token = f"{sign}{whole}.{'0' * zeros}{digits[:length]}"
                rest = behind if behind.isspace() or not behind else "," + behind
                count = 1 + rest.count(",")
                got = read(f"[{token}{rest}]", "FP64", count)
                assert got[0] == float(token), token
                assert got[1:].tolist() == list(range(count - 1))


@given(st.sampled_from(list(INTEGERS)), st.data())
def test_integers_are_exact_or_out_of_range(datatype, data):
    low, high = INTEGERS[datatype]
    near = st.one_of(st.integers(low - 3, low + 3), st.integers(high - 3, high + 4))
    values = data.draw(
        st.lists(st.one_of(near, st.integers(-(10**25), 10**25), st.integers(low, high)))
    )
    bad = next((i for i, value in enumerate(values) if not low <= value <= high), None)
    got = read(json.dumps(values), datatype, len(values))
    if isinstance(got, NumbersError):
        assert (got.code, got.count) == ("range", bad)
    else:
        assert bad is None and got.tolist() == values


NESTED = st.recursive(
    st.integers(0, 99), lambda inner: st.lists(inner, max_size=4), max_leaves=30
).filter(lambda value: isinstance(value, list))


def flatten(value):
    for item in value:
        if isinstance(item, list):
            yield from flatten(item)
        else:
            yield item


@given(NESTED, st.sampled_from((None, 1, "\t")), st.integers(-2, 2))
def test_nesting_and_white_space(value, indent, off):
    expected = list(flatten(value))
    count = max(len(expected) + off, 0)
    text = json.dumps(value, indent=indent)
    got = read(text, "UINT8", count)
    if isinstance(got, NumbersError):
        assert (got.code, got.count) == ("count", len(expected)) and count != len(expected)
    else:
        assert got.tolist() == expected


def plain(text):
    """Whether Python reads the text as an array of numbers, and which."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list):
        return None
    found = list(flatten(value))
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in found):
        return None
    return found


@given(st.text('[]],,0123456789.eE+- \n"tNaN', max_size=25).map(lambda text: f"[{text}]"))
def test_any_text_agrees_with_the_oracle(text):
    expected = plain(text)
    got = read(text, "FP64", len(expected) if expected is not None else 1)
    if isinstance(got, NumbersError):
        if expected is not None:
            assert got.code == "range" and not np.isfinite(np.array(expected, "f8")).all()
    else:
        assert expected is not None
        np.testing.assert_array_equal(got, np.array(expected, "f8"))


FAULTS = [
    # text, datatypes, code, the offset and the index of the value at fault
    ("[1,", "FP64 INT32 BOOL", "end", 3, 0),
    ("1]", "FP64 INT32 BOOL", "syntax", 0, 0),
    (",]", "FP64 INT32 BOOL", "syntax", 0, 0),
    ("[[1]", "FP64 INT32", "end", 4, 1),
    ("[[1] ", "FP64 INT32", "end", 5, 0),
    ("[1]]", "FP64 INT32", "syntax", 3, 1),
    ("[1] ]", "FP64 INT32", "syntax", 3, 1),
    ("[1 2]", "FP64 INT32", "syntax", 3, 1),
    ("[1,]", "FP64 INT32", "syntax", 3, 1),
    ("[1,,2]", "FP64 INT32", "syntax", 3, 1),
    ("[,1]", "FP64 INT32 BOOL", "syntax", 1, 0),
    ("[1,[]2]", "FP64 INT32", "syntax", 5, 1),
    ("[[1]2]", "FP64 INT32", "syntax", 4, 1),
    ("[1[2]]", "FP64 INT32", "syntax", 2, 1),
    ("[x]", "FP64 INT32 BOOL", "syntax", 1, 0),
    ("[-]", "FP64 INT32", "syntax", 1, 0),
    ("[3,-x]", "FP64 INT32", "syntax", 3, 1),
    ("[+1]", "FP64 INT32 BOOL", "syntax", 1, 0),
    ('["1"]', "FP64 INT32 BOOL", "kind", 1, 0),
    ("[{}]", "FP64 INT32 BOOL", "kind", 1, 0),
    ("[null]", "FP64 INT32 BOOL", "kind", 1, 0),
    ("[3, true]", "FP64 INT32", "kind", 4, 1),
    ("[false]", "FP64 INT32", "kind", 1, 0),
    ("[true, 1]", "BOOL", "kind", 7, 1),
    ("[-1]", "BOOL", "kind", 1, 0),
    ("[0]", "BOOL", "kind", 1, 0),
    ("[9]", "BOOL", "kind", 1, 0),
    ("[:]", "BOOL", "syntax", 1, 0),
    ("[trux]", "BOOL", "kind", 1, 0),
    ("[falsx]", "BOOL", "kind", 1, 0),
    ("[trueX]", "BOOL", "syntax", 5, 1),
    ("[NaN]", "INT32 BOOL", "syntax", 1, 0),
    ("[-NaN]", "FP64 FP32", "syntax", 1, 0),
    ("[Nan]", "FP64 FP32", "syntax", 1, 0),
    ("[Infinitx]", "FP64 FP32", "syntax", 1, 0),
    ("[-Infinitx]", "FP64 FP32", "syntax", 1, 0),
    ("[InfinityX]", "FP64 FP32", "syntax", 9, 1),
    ("[01]", "FP64 INT32 UINT64", "syntax", 1, 0),
    ("[-01]", "FP64 INT32", "syntax", 1, 0),
    ("[00]", "FP64 INT32", "syntax", 1, 0),
    ("[00.5]", "FP64 INT32", "syntax", 1, 0),
    ("[.5]", "FP64 INT32", "syntax", 1, 0),
    ("[1.0]", "INT32 UINT8", "fraction", 1, 0),
    ("[4,-1.5]", "INT32", "fraction", 3, 1),
    ("[1e0]", "INT32 UINT8", "fraction", 1, 0),
    ("[1E2]", "INT32 UINT8", "fraction", 1, 0),
    ("[1.]", "FP64 FP32", "syntax", 3, 0),
    ("[1.e1]", "FP64 FP32", "syntax", 3, 0),
    ("[1e]", "FP64 FP32", "syntax", 3, 0),
    ("[1e+]", "FP64 FP32", "syntax", 4, 0),
    ("[1e-]", "FP64 FP32", "syntax", 4, 0),
    ("[1e+-1]", "FP64 FP32", "syntax", 4, 0),
    ("[1e-+1]", "FP64 FP32", "syntax", 4, 0),
    ("[1e1.5]", "FP64 FP32", "syntax", 4, 1),
    ("[5,1e309]", "FP64", "range", 3, 1),
    ("[5,-1e309]", "FP64", "range", 3, 1),
    ("[1e39]", "FP32", "range", 1, 0),
    ("[3.4028235677973367e38]", "FP32", "range", 1, 0),
    ("[1e99999999999]", "FP64 FP32", "range", 1, 0),
    ("[18446744073709551616]", "UINT64", "range", 1, 0),
    ("[99999999999999999999]", "UINT64", "range", 1, 0),
    ("[100000000000000000000]", "UINT64 INT64", "range", 1, 0),
    ("[-1]", "UINT8 UINT16 UINT32 UINT64", "range", 1, 0),
    ("[-9223372036854775809]", "INT64", "range", 1, 0),
]


@pytest.mark.parametrize(("text", "datatypes", "code", "offset", "index"), FAULTS)
def test_each_fault_names_its_byte(text, datatypes, code, offset, index):
    """The number of bytes after the fault does not matter: the readers read 8 and 32 bytes together."""
    texts = [text]
    if offset < len(text) - 1:
        texts.append(text[:-1] + ",7" * 20 + "]")
    for datatype, one in itertools.product(datatypes.split(), texts):
        error = read(one, datatype, 1)
        assert isinstance(error, NumbersError), (one, datatype, error)
        assert (one, error.code, error.offset, error.count) == (one, code, offset, index)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_every_form_of_a_number_is_read(datatype):
    text = "[NaN,Infinity,-Infinity,-0,-0.0,0e5,1E1,1e+1,1e-1,10e00,0.5e001 ,\t2 , 3\n]"
    got = read(text, datatype, 13)
    values = [np.nan, np.inf, -np.inf, -0.0, -0.0, 0, 10, 10, 0.1, 10, 5, 2, 3]
    assert got.tobytes() == np.array(values, got.dtype).tobytes()


def test_span_without_a_whole_array_is_refused():
    for text in (b"", b"1", b"[1", b"[", b"]"):
        with pytest.raises(NumbersError):
            number_array.read(text, 0, len(text), "FP32", 1)

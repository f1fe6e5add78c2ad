"""The native body reader's own face: digits, views, bounds and what the header holds."""

import json

import numpy as np
import pytest

from ksrv._native.infer import infer_body
from ksrv._native.infer.infer_body import BodyError, Bounds


def read(document, tail=b"", **bounds):
    text = json.dumps(document).encode()
    return infer_body.read(text + tail, len(text), Bounds(**bounds))


@pytest.mark.parametrize(
    ("text", "limit", "value"),
    [
        ("0", 0, 0),
        ("12", 12, 12),
        ("0012", 12, 12),
        ("13", 12, -2),
        ("9999999999", 2**64 - 1, 9_999_999_999),
        ("10000000000", 2**64 - 1, -2),
        ("00000000001", 2**64 - 1, -2),
        ("9" * 1000, 2**64 - 1, -2),
        ("9" * 1000 + "x", 2**64 - 1, -1),
        ("", 9, -1),
        ("-1", 9, -1),
        ("+1", 9, -1),
        (" 1", 9, -1),
        ("1 ", 9, -1),
        ("1_0", 99, -1),
        ("1.0", 99, -1),
        ("\u0661", 99, -1),
        ("\ud800", 99, -1),
        ("1\0", 99, -1),
    ],
)
def test_digits(text, limit, value):
    assert infer_body.digits(text, limit) == value


class TestView:
    def test_arrays(self):
        source = np.arange(10, dtype="<i4")
        found = infer_body.view(source.tobytes(), 4, "INT32", (3, 3))
        np.testing.assert_array_equal(found, np.arange(1, 10).reshape(3, 3))
        assert infer_body.view(b"", 0, "FP64", (0,)).shape == (0,)
        assert infer_body.view(b"abcd", 0, "INT32", ()).shape == ()

    @pytest.mark.parametrize("datatype", ["BYTES", "fp32", "", "\ud800"])
    def test_datatypes(self, datatype):
        with pytest.raises(ValueError, match="not a datatype of fixed size"):
            infer_body.view(b"abcd", 0, datatype, (1,))

    @pytest.mark.parametrize(
        ("offset", "shape"), [(1, (1,)), (0, (2,)), (4, (1,)), (0, (-1,)), (0, (2**70,))]
    )
    def test_bounds(self, offset, shape):
        with pytest.raises(ValueError, match="do not lie within 4 bytes"):
            infer_body.view(b"abcd", offset, "INT32", shape)

    def test_bool(self):
        with pytest.raises(BodyError) as caught:
            infer_body.view(b"\0\1\7", 0, "BOOL", (3,), "flags", 4)
        error = caught.value
        assert (error.code, error.owner, error.index) == ("not_bool", "flags", 4)
        assert (error.expected, error.received, error.offset) == (2, 7, 2)


class TestRead:
    def test_places_of_tensors(self):
        header = read(
            {
                "inputs": [
                    {
                        "name": "a",
                        "shape": [2],
                        "datatype": "BYTES",
                        "parameters": {"binary_data_size": "3, 4"},
                    },
                    {"name": "b", "shape": [1], "datatype": "INT8", "data": [1]},
                    {"name": "c", "shape": [2], "datatype": "INT16"},
                ],
                "outputs": [{"name": "y"}],
            },
            b"aaabbbb\1\0\2\0",
        )
        a, b, c = header.inputs
        assert (a.sizes, a.length, a.elements, a.array) == ((3, 4), 7, 2, None)
        assert b.data is not None and b.data[1] - b.data[0] == len("[1]")
        assert c.offset == a.offset + 7 and c.array.tolist() == [1, 2]
        (y,) = header.outputs
        assert (y.binary, y.classification, y.parameters, y.shared_memory) == (None, 0, {}, None)

    def test_shared_memory_takes_no_bytes(self):
        region = {
            "shared_memory_region": "r\u00e9",
            "shared_memory_offset": 8,
            "shared_memory_byte_size": 16,
        }
        header = read(
            {
                "inputs": [
                    {
                        "name": "a",
                        "shape": [4],
                        "datatype": "FP32",
                        "parameters": {**region, "k": 1},
                    },
                    {"name": "b", "shape": [1], "datatype": "INT8"},
                ],
                "outputs": [{"name": "y", "parameters": region}],
            },
            b"\5",
        )
        a, b = header.inputs
        assert (
            a.shared_memory == ("r\u00e9", 8, 16) and a.array is None and a.parameters == {"k": 1}
        )
        assert b.array.tolist() == [5]
        assert header.outputs[0].shared_memory == ("r\u00e9", 8, 16)

    def test_many_inputs_move_to_the_heap(self):
        names = [f"input {i}" for i in range(40)]
        inputs = [
            {
                "name": name,
                "shape": [1] * 9,
                "datatype": "UINT8",
                "parameters": {"p": i, "q": "é\n"},
            }
            for i, name in enumerate(names)
        ]
        header = read(
            {"inputs": inputs, "outputs": [{"name": name} for name in names]}, bytes(range(40))
        )
        assert [entry.name for entry in header.inputs] == names
        assert [entry.array.item() for entry in header.inputs] == list(range(40))
        assert [entry.parameters for entry in header.inputs] == [
            {"p": i, "q": "é\n"} for i in range(40)
        ]
        assert [entry.name for entry in header.outputs] == names

    def test_long_headers_are_read_without_the_gil(self):
        header = read({"inputs": [], "filler": "x" * 100_000, "id": "é"})
        assert header.id == "é" and header.json_length > 100_000

    @pytest.mark.parametrize(
        "special",
        [
            b'\\"',
            b"\\\\",
            b"\\u00e9",
            b"\\ud83d\\ude00",
            "é".encode(),
            "😀".encode(),
            b"\x7f",
            b'"',
            b"\\",
            b"\x00",
            b"\x1f",
            b"\n",
            b"\x80",
            b"\xff",
            b"\xc3",
            b"\xed\xa0\x80",
        ],
    )
    def test_special_bytes_anywhere_in_a_string(self, special):
        """Strings are looked at eight bytes together: each place in a word, alone and in pairs."""
        for before in range(18):
            for between in (0, 1, 6, 7, 8):
                inside = b"a" * before + special + b"!" * between + special + b"z" * before
                text = b'{"inputs":[],"id":"' + inside + b'"}'
                try:
                    wanted = json.loads(text)["id"]
                    wanted.encode()
                except ValueError:  # not JSON, not UTF-8, or half a surrogate pair
                    with pytest.raises(BodyError):
                        infer_body.read(text, len(text))
                else:
                    assert infer_body.read(text, len(text)).id == wanted

    def test_header_beyond_the_body(self):
        with pytest.raises(ValueError, match="longer than the body"):
            infer_body.read(b"{}", 3)

    @pytest.mark.parametrize(
        ("bounds", "code"),
        [
            ({"depth": 3}, "depth"),
            ({"depth": 2}, "depth"),
            ({"depth": 0}, "depth"),
            ({"rank": 1}, "too_many"),
            ({"dimension": 2}, "dimension"),
            ({"inputs": 0}, "too_many"),
            ({"parameters": 0}, "too_many"),
            ({"size_list": 0}, "too_many"),
        ],
    )
    def test_bounds(self, bounds, code):
        document = {
            "inputs": [
                {
                    "shape": [3, 0],
                    "name": "a",
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": "0"},
                }
            ]
        }
        with pytest.raises(BodyError) as caught:
            read(document, **bounds)
        assert caught.value.code == code

    @pytest.mark.parametrize(
        ("before", "item", "after"),
        [
            ('{"inputs":[', '{"name":"%d","shape":[0],"datatype":"INT8"}', "]}"),
            ('{"inputs":[],"outputs":[', '{"name":"%d"}', "]}"),
            ('{"parameters":{', '"%d":1', "}}"),
            ('{"inputs":[{"name":"x","shape":[', "%d", "]}]}"),
            ('{"inputs":[{"name":"x","parameters":{"binary_data_size":"', "%d", '"}}]}'),
        ],
    )
    def test_counts_are_bounded_while_scanning(self, before, item, after):
        # The fault lies where the limit is passed, however much is still to come.
        text = (before + ",".join(item % i for i in range(100_000)) + after).encode()
        with pytest.raises(BodyError) as caught:
            infer_body.read(text, len(text))
        assert caught.value.code == "too_many"
        assert caught.value.offset < 20_000

    def test_not_a_buffer(self):
        with pytest.raises(TypeError):
            infer_body.read("{}", 2)
        with pytest.raises(BufferError):
            infer_body.read(memoryview(b"{ } ")[::2], 2)

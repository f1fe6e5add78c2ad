"""The Python interface of the native body reader: limits, faults and the header's fields."""

import itertools
import json

import pytest

from ksrv._native.infer import infer_body
from ksrv._native.infer.infer_body import BodyError, Bounds


def read(document, tail=b"", **bounds):
    text = json.dumps(document).encode()
    return infer_body.read(text + tail, len(text), Bounds(**bounds))


class TestRead:
    @pytest.mark.parametrize(
        "special",
        [
            b'\\"',
            b"\\\\",
            b"\\u00e9",
            b"\\ud83d\\ude00",
            b"\\u0000",
            b"\\u001F",
            b"\\uD7ff",
            b"\\ue000",
            b"\\uffff",
            b"\\ud800\\udc00",
            b"\\udbff\\udfff",
            b"\\ud800",
            b"\\udc00",
            b"\\udfff",
            b"\\ud800\\ud800",
            b"\\ud800\\ue000",
            b"\\ud800x",
            b"\\ud800xudc00",
            b"\\ud800\\xdc00",
            b"\\u00g0",
            b"\\u00",
            b"\\/\\b\\f\\n\\r\\t",
            b"\\a",
            b"\\U0041",
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
        """Strings are checked eight bytes at a time: test each position in a word, alone and in pairs."""
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
        # The fault is at the limit, however many bytes follow.
        text = (before + ",".join(item % i for i in range(100_000)) + after).encode()
        with pytest.raises(BodyError) as caught:
            infer_body.read(text, len(text))
        assert caught.value.code == "too_many"
        assert caught.value.offset < 20_000


class TestFaults:
    DOCUMENTS = (
        ('{"inputs":[],"other":{"a":1,@2}}', "syntax", "request", "", ""),
        ('{"inputs":[],"parameters":nul@}', "syntax", "request", "", ""),
        ('{"inputs":[{"data":["abc@', "end", "input 0", "", ""),
        ('{"inputs":[],"other":{@1}}', "syntax", "request", "", ""),
        ('{"inputs":[],"other":{"a"@,1}}', "syntax", "request", "", ""),
        ('{"inputs":[],"other":{"a":1@]}', "syntax", "request", "", ""),
        ('{"inputs":[],"other":[1@}}', "syntax", "request", "", ""),
        ('{"inputs":[],"parameters":{"sequence_id":"a}}@', "end", "request", "", "sequence_id"),
        ("@{}", "missing", "request", "", ""),
        ('{"inputs":@null}', "type", "request", "", ""),
        ('{"inputs":[],"inputs":@[]}', "twice", "request", "", "inputs"),
        ('{"inputs":[],"id":@1}', "type", "request", "", ""),
        ('{"inputs":[],"id":"a","id":@"a"}', "twice", "request", "", "id"),
        ('{"inputs":[],"outputs":@{}}', "type", "request", "", ""),
        ('{"inputs":[],"outputs":[],"outputs":@[]}', "twice", "request", "", "outputs"),
        ('{"inputs":[],"outputs":[@{}]}', "missing", "output 0", "", ""),
        ('{"inputs":[],"outputs":[{"name":"a"},@{"name":"a"}]}', "duplicate_name", "output 1", "a", "a"),
        ('{"inputs":[],"outputs":[{"name":"a","name":@"a"}]}', "twice", "output 0", "a", "name"),
        ('{"inputs":[],"outputs":[{"name":"a","parameters":{},"parameters":@{}}]}', "twice", "output 0", "a", "parameters"),
        ('{"inputs":[],"outputs":[{"name":@1}]}', "type", "output 0", "", ""),
        ('{"inputs":[],"outputs":[@1]}', "type", "request", "", ""),
        ('{"inputs":[@1]}', "type", "request", "", ""),
        ('{"inputs":[@{}]}', "missing", "input 0", "", ""),
        ('{"inputs":[@{"name":"a"}]}', "missing", "input 0", "a", ""),
        ('{"inputs":[@{"name":"a","datatype":"INT8"}]}', "missing", "input 0", "a", "INT8"),
        ('{"inputs":[@{"name":"a","shape":[0]}]}', "missing", "input 0", "a", ""),
        ('{"inputs":[@{"datatype":"INT8","shape":[0]}]}', "missing", "input 0", "", "INT8"),
        ('{"inputs":[{"name":"a","datatype":@"INT9"}]}', "datatype", "input 0", "a", "INT9"),
        ('{"inputs":[{"name":"a","datatype":@1}]}', "type", "input 0", "a", ""),
        ('{"inputs":[{"name":@1}]}', "type", "input 0", "", ""),
        ('{"inputs":[{"name":"a","name":@"a"}]}', "twice", "input 0", "a", "name"),
        ('{"inputs":[{"datatype":"INT8","datatype":@"INT8"}]}', "twice", "input 0", "", "datatype"),
        ('{"inputs":[{"shape":[0],"shape":@[0]}]}', "twice", "input 0", "", "shape"),
        ('{"inputs":[{"parameters":{},"parameters":@{}}]}', "twice", "input 0", "", "parameters"),
        ('{"inputs":[{"data":[],"data":@[]}]}', "twice", "input 0", "", "data"),
        ('{"inputs":[{"data":@{}}]}', "type", "input 0", "", ""),
        ('{"inputs":[{"data":[@}]}', "syntax", "input 0", "", ""),
        ('{"inputs":[]} @x', "trailing", "request", "", ""),
        ("@", "empty", "request", "", ""),
        ("@[]", "type", "request", "", ""),
        ("@1", "type", "request", "", ""),
    )  # fmt: skip

    def refused(self, marked):
        before, behind = marked.split("@")
        text = (before + behind).encode()
        with pytest.raises(BodyError) as caught:
            infer_body.read(text, len(text))
        assert caught.value.offset == len(before)
        return caught.value

    @pytest.mark.parametrize(("marked", "code", "place", "owner", "name"), DOCUMENTS)
    def test_documents(self, marked, code, place, owner, name):
        error = self.refused(marked)
        assert (error.code, error.owner, error.name) == (code, owner, name)
        assert place in (error.place, f"{error.place} {error.index}")

    def test_document_that_is_cut_anywhere_has_its_fault_at_the_end(self):
        whole = (
            '{"id":"a","inputs":[{"name":"x","shape":[1,22],"datatype":"BYTES","data":["a\\n",[1,2,3,4]],'
            '"parameters":{"p":"a}}"}}],"outputs":[{"name":"y"}],"other":{"a":1,"b":[1,{"c":[]}]}}'
        )
        assert read(json.loads(whole)).id == "a"
        for end in range(1, len(whole)):
            assert self.refused(whole[:end] + "@").code == "end"

    def test_what_is_odd_and_right(self):
        given = (
            '"a":null,"a":1,"triton":2,"zero":1e-400,"none":0e400,"low":-9223372036854775808,'
            '"high":18446744073709551615,"sequence_id":18446744073709551615,"sequence_end":false'
        )
        head = '{"id":null,"outputs":null,"other":[{},{"a":true,"b":[false,null],"c":-1.5e3}],"inputs":[],"parameters":{'
        text = (head + given + "}} \n").encode()
        header = infer_body.read(text, len(text))
        assert header.id == "" and header.outputs == []
        assert header.parameters == {
            "a": 1, "triton": 2, "zero": 0.0, "none": 0.0, "low": -(2**63), "high": 2**64 - 1,
            "sequence_id": 2**64 - 1, "sequence_end": False,
        }  # fmt: skip

    def test_levels_beyond_a_word_of_bits(self):
        for opens, times in itertools.product(
            ('[{"a":', '{"a":[', '{"a":[[', '[{"a":['), (20, 32, 40)
        ):
            closes = "".join({"[": "]", "{": "}"}[c] for c in reversed(opens) if c in "[{")
            text = ('{"inputs":[],"other":' + opens * times + "1" + closes * times + "}").encode()
            assert infer_body.read(text, len(text), Bounds(depth=128)).inputs == []

    @pytest.mark.parametrize("mark", ["]", "}", "[", "{", '\\"', "\\\\", '\\"]', ","])
    def test_brackets_and_quotes_in_texts(self, mark):
        """Texts are checked 8 bytes at a time: test each position in a word, with texts before and after."""
        for before, behind in itertools.product(range(20), (0, 1, 7, 8, 9, 31)):
            first, second = "x" * before + mark + "y" * behind, "z" * behind
            data = f'["{first}","{second}"]'
            head = '{"inputs":[{"name":"a","datatype":"BYTES","shape":[2],"data":'
            body = (head + data + "}]}").encode()
            begin, end = infer_body.read(body, len(body)).inputs[0].data
            assert body[begin:end].decode() == data

    @pytest.mark.parametrize("before", ["", "1,", "1,22,333,4444,", "[5],[6,7],"])
    @pytest.mark.parametrize(
        ("opens", "closes"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"]
    )
    def test_the_depth_of_what_is_read_over(self, before, opens, closes):
        """64 levels; the fourth is an input's data. Arrays are skipped 8 and 32 bytes at a time."""
        entry = '{"inputs":[{"name":"a","datatype":"INT8","shape":[0],"%s":%s}]}'
        for key, levels in (("other", 61), ("data", 61)):
            for more, leaf in itertools.product((0, 1, 9, 100), ("8", '"a"')):
                inner = levels - 1 + more
                value = "[" + before + opens * inner + leaf + closes * inner + "]"
                text = (entry % (key, value)).encode()
                try:
                    infer_body.read(text, len(text))
                    found = None
                except BodyError as error:
                    found = error.code
                assert (found == "depth") == (more > 0), (key, more, leaf, found)

    @pytest.mark.parametrize(
        ("bounds", "code"),
        [
            ({"depth": 4}, "depth"),
            ({"rank": 2}, "too_many"),
            ({"dimension": 3}, "dimension"),
            ({"inputs": 2}, "too_many"),
            ({"parameters": 3}, "too_many"),
            ({"size_list": 2}, "too_many"),
        ],
    )
    def test_each_bound_at_and_below_it(self, bounds, code):
        entry = {"shape": [1, 2], "datatype": "BYTES"}
        sizes = {"binary_data_size": "0,0", "p": 1, "q": 2}
        document = {
            "inputs": [
                {"name": "a", "parameters": sizes, **entry},
                {"name": "b", "shape": [3, 0], "datatype": "INT8"},
            ],
            "outputs": [{"name": "y", "parameters": {"p": 1, "q": 2, "r": 3}}, {"name": "z"}],
            "parameters": {"p": 1, "q": 2, "r": 3},
        }
        assert len(read(document, **bounds).inputs) == 2
        ((name, bound),) = bounds.items()
        with pytest.raises(BodyError) as caught:
            read(document, **{name: bound - 1})
        assert caught.value.code == code
        assert caught.value.expected == bound - 1 or code in ("depth", "dimension")

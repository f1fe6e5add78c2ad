"""Reading infer requests over REST: what is accepted, and what each refusal says."""

import json

import numpy as np
import pytest

from ksrv._native.infer import infer_body as native
from ksrv.errors import BodyTooLarge
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol.json_data import read_data
from ksrv.protocol.rest import parse_infer
from tests.support.wire.fake_memory import caller_memory
from tests.support.wire.rest_bodies import ADD, IMG, LIMITS, STR, X, one, parse, refusal


class TestJson:
    @pytest.mark.parametrize(
        ("datatype", "value", "text"),
        [
            ("BOOL", 1, "value 1 of 'data' is a number; BOOL takes true and false"),
            ("UINT8", 256, "value 1 of 'data' is out of range; UINT8 takes 0 to 255"),
            ("UINT8", -1, "out of range"),
            ("INT8", -129, "INT8 takes -128 to 127"),
            ("UINT64", 2**64, "out of range"),
            ("INT64", -(2**63) - 1, "out of range"),
            ("INT32", 1.5, "has a fraction or an exponent; INT32 takes integers"),
            ("INT32", True, "is true; INT32"),
            ("FP32", None, "is null"),
            ("FP32", "1", "is a string"),
            ("FP32", 1e39, "out of range"),
        ],
    )
    def test_wrong_values_name_input_index_and_range(self, datatype, value, text):
        good = False if datatype == "BOOL" else 1
        found = refusal(one(shape=(2,), datatype=datatype, data=[good, value]))
        assert found.startswith("input 'x' (index 0): value 1") and text in found

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    def test_half_precision_points_to_the_binary_form(self, datatype):
        assert "binary data format" in refusal(one(datatype=datatype, data=[1, 2, 3, 4]))

    @pytest.mark.parametrize(
        ("count", "shape"), [(3, (1, 4)), (5, (1, 4)), (1, (3,)), (0, (1,)), (1, (0,))]
    )
    def test_count_mismatch_gives_both_numbers(self, count, shape):
        text = refusal(one(shape=shape, data=[1] * count))
        expected = int(np.prod(shape))
        assert f"asks for {expected} values, but 'data' holds {count}" in text

    def test_claimed_shape_is_not_allocated(self):
        text = refusal(one(shape=(2**31 - 1, 1000), data=[1]))
        assert f"asks for {(2**31 - 1) * 1000} values, but 'data' holds 1" in text


HI = "aGk="
URL_FORM = "a data URL has the form data:TYPE;base64,TEXT"
LONGEST_TYPE = "x" * (256 - len(";base64"))


@pytest.mark.parametrize(
    ("spec", "kind", "value", "expected"),
    [
        (STR, None, HI, b"aGk="),
        (STR, None, f"data:;base64,{HI}", f"data:;base64,{HI}".encode()),
        (STR, None, {"b64": HI}, b"hi"),
        (STR, None, {"b64": f"data:;base64,{HI}"}, b"hi"),
        (STR, None, {"b64": "a"}, "not a multiple of 4"),
        (STR, None, {"b64": 3}, "value 1 of 'data' is not a string"),
        (STR, None, {"b64": HI, "more": 1}, "value 1 of 'data' is not a string"),
        (STR, None, {"more": HI}, "value 1 of 'data' is not a string"),
        (STR, None, {}, "value 1 of 'data' is not a string"),
        (STR, "base64", HI, b"hi"),
        (STR, "base64", [[HI]], b"hi"),
        (STR, "base64", "a", "element 1 of 'data' is not base64: "),
        (STR, "str", HI, b"aGk="),
        (STR, "base64", f"DATA:image/PNG;BASE64,{HI}", b"hi"),
        (STR, "base64", f"data:{LONGEST_TYPE};base64,{HI}", b"hi"),
        (STR, "base64", f"data:x{LONGEST_TYPE};base64,{HI}", URL_FORM),
        (STR, "base64", f"data:image/png,{HI}", URL_FORM),
        (STR, "base64", "data:;base64", URL_FORM),
        (STR, "base64", f"data:,;base64,{HI}", URL_FORM),
        (STR, "base64", "data:,", URL_FORM),
        (
            STR,
            "base64",
            "data:;base64, " + HI,
            "character 0 is ' '; leave out line ends and blanks",
        ),
        (STR, "base64", "aG\nk=", r"character 2 is '\n'; leave out line ends and blanks"),
        (STR, "base64", "aG_=", "character 2 is '_'; this is base64url: write + for each -"),
        (STR, "base64", "aGk", "its padding (=)"),
        (STR, "base64", "http://h/a.jpg", "ksrv fetches no URLs"),
        (STR, "base64", "https://h/a.jpg", "ksrv fetches no URLs"),
        (STR, "base64", "a.jpg", "expected the bytes of the file in base64"),
        (IMG, None, HI, b"hi"),
        (IMG, "base64", HI, b"hi"),
        (IMG, "str", HI, b"aGk="),
        (IMG, None, "a", "element 1 of 'data' is not base64: "),
    ],
)
def test_base64_elements_are_decoded(spec, kind, value, expected):
    name = spec.inputs[0].name
    body = one(name, (2,), "BYTES", data=[HI, value])
    body["inputs"][0]["parameters"] = {"content_type": kind} if kind else {}
    if isinstance(expected, bytes):
        assert bytes(parse(body, spec=spec).inputs[0].data[1]) == expected
    else:
        text = refusal(body, spec=spec)
        assert text.startswith(f"input '{name}' (index 0): ") and expected in text


def test_texts_are_no_base64_unless_the_input_takes_images():
    body = json.dumps(one("s", (1,), "BYTES", data=[HI])).encode()
    (entry,) = native.read(body, len(body)).inputs
    assert read_data(memoryview(body), entry, 0) == [b"aGk="]
    assert read_data(memoryview(body), entry, 0, is_image=True) == [b"hi"]


@pytest.mark.parametrize("before", ["", "é", "\U0001f600"])
def test_syntax_error_names_the_byte(before):
    lone = b"\\ud800"
    body = b'{"inputs":[{"name":"s","shape":[1],"datatype":"BYTES","data":["%s"]}]}'
    body %= before.encode() + lone
    assert refusal(body, spec=STR).endswith(f"at byte {body.index(lone)}")


def test_missing_json_data_is_an_error():
    (entry,) = native.read(b'{"inputs":[{"name":"x","shape":[0],"datatype":"INT8"}]}', 55).inputs
    with pytest.raises(ValueError, match="input 'x' has no JSON data"):
        read_data(memoryview(b""), entry, 0)


class TestDocument:
    """Which faults are found, and where, is tested in tests/unit/native/infer/test_infer_body.py."""

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b" \n", "the body is empty"),
            (b"null", "must be a JSON object, not null"),
            (b"{}", "the request has no 'inputs'"),
            (b'{"inputs":[[]]}', "must be an object, not an array"),
            (b'{"inputs":[],"outputs":[{}]}', "output 0 has no 'name'"),
            (b'{"inputs":[{"name":"a"}]}', "input 'a' (index 0) has no 'datatype'"),
            (b'{"inputs":[{"name":"a","datatype":"fp32"}]}', "not a datatype; expected FP32"),
            (b'{"inputs":[{"name":"a","datatype":"str"}]}', "not a datatype; expected BYTES"),
            (b'{"inputs":[{"name":"a","datatype":"x"}]}', "not a datatype; expected one of BOOL, "),
            (b'{"inputs":[{"shape":3}]}', "'shape' must be an array of integers"),
            (b'{"inputs":[{"shape":[1,-1]}]}', "dimension 1 of 'shape' is negative; expected the"),
            (b'{"inputs":[{"shape":[true]}]}', "but there is true"),
            (b'{"inputs":[],"\\u0069nputs":[]}', "the key 'inputs' appears twice"),
            (b'{"inputs":[]', "ends inside a value at byte 12"),
            (b'{"inputs":[],}', "unexpected '}' at byte 13"),
            (b'{"a":"\n"}', "control character"),
            (b'{"a":"\\x"}', "invalid escape"),
            (b'{"a":"\xff"}', "not UTF-8"),
            (b"\xff\xd8", "raw bytes need the header Inference-Header-Content-Length: 0"),
        ],
    )
    @pytest.mark.parametrize("header", [True, False])
    def test_refused(self, body, text, header):
        assert text in refusal(body, header=header)

    def test_empty_body(self):
        assert "the body is empty" in refusal(b"", header=False)

    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    def test_nesting_is_limited(self, opening):
        closing = {b"[": b"]", b'{"a":': b"}"}[opening]
        for levels, fine in ((63, True), (64, False), (250_000, False)):
            nested = opening * levels + (b"1" if opening != b"[" else b"") + closing * levels
            body = b'{"inputs":[],"x":%s}' % nested
            if fine:
                assert parse(body).inputs == []
            else:
                assert "--limits-json-depth" in refusal(body)

    def test_counts_are_bounded(self):
        entry = {"shape": [1], "datatype": "FP32", "data": [1]}
        many = {"inputs": [{"name": str(i), **entry} for i in range(257)]}
        assert "more than 256 inputs" in refusal(many)
        assert len(parse({"inputs": many["inputs"][:256]}).inputs) == 256
        outputs = {"inputs": [], "outputs": [{"name": str(i)} for i in range(257)]}
        assert "more than 256 outputs" in refusal(outputs)
        assert "more than 32 dimensions" in refusal(one(shape=(1,) * 33, data=[1]))
        assert parse(one(shape=(1,) * 32, data=[1])).inputs[0].data.ndim == 32
        parameters = {"inputs": [], "parameters": {str(i): 1 for i in range(1025)}}
        assert "more than 1024 parameters" in refusal(parameters)
        assert "more than 1023 parameters" in refusal(parameters, limits=Limits(parameters=1023))

    def test_overflowing_shape_is_refused(self):
        assert "product of the shape exceeds" in refusal(one(shape=(2**31 - 1,) * 3, data=[1]))
        # numpy cannot compute strides for this shape, although it is empty.
        assert "product of the shape exceeds" in refusal(one(shape=(*(2**31 - 1,) * 3, 0), data=[]))
        (tensor,) = parse(one(shape=(2**29 - 1, 0, 2**30 - 1), data=[])).inputs
        assert tensor.data.shape == (2**29 - 1, 0, 2**30 - 1)

    def test_duplicate_names_are_refused(self):
        entry = one(data=[1, 2, 3, 4])["inputs"][0]
        assert "input 'x' appears twice" in refusal({"inputs": [entry, entry]})
        assert "output 'y' appears twice" in refusal(
            {"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}
        )

    def test_client_text_is_cut(self):
        text = refusal(one("é\x1b" * 5000, datatype="x" * 5000, data=[1]))
        assert len(text) < 500 and "\x1b" not in text

    def test_sizes_are_limited(self):
        limits = Limits(json=100, body=200)
        with pytest.raises(
            BodyTooLarge, match="201 bytes, above the limit --limits-body \\(200 bytes"
        ):
            parse_infer(bytes(201), None, ADD, limits)
        with pytest.raises(
            BodyTooLarge, match="101 bytes, above the limit --limits-json \\(100 bytes"
        ):
            parse_infer(bytes(101), None, ADD, limits)


class TestParameters:
    """The types of reserved names are tested in test_parameters.py, for REST and gRPC together."""

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"a": {}}, "parameter 'a' must be a string, a number, true or false, not an object"),
            ({"a": [1]}, "not an array"),
            ({"a": 2**64}, "out of range"),
            ({"a": -(2**63) - 1}, "out of range"),
            ({"triton_x": 1}, "'triton_x' is unknown"),
            ({"timeout": -1}, "'timeout' must be an unsigned integer"),
        ],
    )
    def test_refused(self, given, text):
        assert text in refusal(one(data=[1, 2, 3, 4], parameters=given))

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"binary_data": "yes"}, "'binary_data' must be true, false or \"base64\", not 'yes'"),
            ({"classification": -1}, "'classification' must be an unsigned integer"),
            ({"shared_memory_region": "r"}, "shared memory is not enabled"),
        ],
    )
    def test_refused_for_outputs(self, given, text):
        body = one(data=[1, 2, 3, 4], outputs=[{"name": "y", "parameters": given}])
        assert text in refusal(body)

    def test_shared_memory_inputs_are_read(self):
        body = one()
        region = {
            "shared_memory_region": "r",
            "shared_memory_offset": 0,
            "shared_memory_byte_size": 16,
        }
        body["inputs"][0]["parameters"] = region
        assert "shared memory is not enabled" in refusal(body)
        body["inputs"][0]["data"] = [1, 2, 3, 4]
        assert "and data too" in refusal(body)


class TestTextsOfOpenShape:
    SPEC = ModelSpec("any", accepts_any_inputs=True)

    def body(self, texts):
        return one("s", (-1,), "BYTES", data=texts)

    def test_number_of_texts_becomes_the_shape(self):
        request = parse(self.body(["a", "b"]), spec=self.SPEC)
        assert request.inputs[0].shape == (2,) and request.inputs[0].data == [b"a", b"b"]


class TestSharedMemory:
    def body(self, *sizes):
        body = one()
        body["inputs"] = [
            {
                "name": f"x{index}",
                "shape": [1, size // 4],
                "datatype": "FP32",
                "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": size},
            }
            for index, size in enumerate(sizes)
        ]
        return body

    def test_what_lies_there_counts_as_the_request_does(self):
        text = json.dumps(self.body(16, 8)).encode()
        request = parse_infer(text, None, ADD, LIMITS, memory=caller_memory())
        assert request.nbytes == len(text) + 24
        assert [tensor.data.tolist() for tensor in request.inputs] == [[[0, 1, 2, 3]], [[0, 1]]]
        alone = json.dumps(one(data=[1, 2, 3, 4])).encode()
        assert parse_infer(alone, None, ADD, LIMITS, memory=caller_memory()).nbytes == len(alone)

    def test_all_of_it_together_is_within_the_limit_of_a_body(self):
        text = json.dumps(self.body(16, 8)).encode()
        for body, fits in ((len(text) + 24, True), (len(text) + 23, False)):
            limits = Limits(body=body, json=len(text))
            if fits:
                assert len(parse_infer(text, None, ADD, limits, memory=caller_memory()).inputs) == 2
                continue
            with pytest.raises(BodyTooLarge, match=f"shared memory have {len(text) + 24} bytes"):
                parse_infer(text, None, ADD, limits, memory=caller_memory())


@pytest.mark.parametrize("kind", ["b", "c", "H"])
def test_a_body_may_be_any_buffer(kind):
    text = json.dumps(one(data=[1, 2, 3, 4])).encode()
    text += b" " * (len(text) % 2)
    for body in (memoryview(text).cast(kind), np.frombuffer(text, np.uint8).reshape(2, -1)):
        assert parse_infer(body, None, ADD, LIMITS).inputs[0].data.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("accept", "binary"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("text/html", True),
        ("application/json", False),
        ("Application/JSON ; q=1", False),
        ("text/html, application/json;charset=utf-8", False),
        ("application/json, */*", True),
        ("application/json, */*;q=0.1", True),
    ],
)
def test_a_raw_body_is_answered_in_binary_unless_json_alone_is_accepted(accept, binary):
    headers = {} if accept is None else {"accept": accept}
    request = parse_infer(X.tobytes(), "0", ADD, LIMITS, headers=headers)
    assert request.binary_output == binary


def test_texts_of_open_shape_are_counted_alone():
    spec = ModelSpec("any", accepts_any_inputs=True)
    body = one("s", (-1,), "BYTES", data=["a", "b"])
    body["inputs"].append({"name": "n", "shape": [1, 2], "datatype": "FP32", "data": [[3, 4]]})
    texts, numbers = parse(body, spec=spec).inputs
    assert (texts.shape, numbers.shape) == ((2,), (1, 2))
    assert "is negative" in refusal(one("s", (-1,), "BYTES", data=["a"]), spec=STR)
    body["inputs"][1]["shape"] = [-1]
    assert "is negative" in refusal(body, spec=spec)

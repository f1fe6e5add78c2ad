"""Reading infer requests over REST: what is accepted, and what each refusal says."""

import json

import pytest

from ksrv.errors import BodyTooLarge
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
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

    def test_claimed_shape_is_not_allocated(self):
        text = refusal(one(shape=(2**31 - 1, 1000), data=[1]))
        assert f"asks for {(2**31 - 1) * 1000} values, but 'data' holds 1" in text


HI = "aGk="
URL_FORM = "a data URL has the form data:TYPE;base64,TEXT"
LONGEST_TYPE = "x" * (256 - len(";base64"))


@pytest.mark.parametrize(
    ("spec", "kind", "value", "expected"),
    [
        (STR, None, {"b64": f"data:;base64,{HI}"}, b"hi"),
        (STR, "base64", [[HI]], b"hi"),
        (STR, "str", HI, b"aGk="),
        (IMG, "str", HI, b"aGk="),
        (STR, "base64", f"data:{LONGEST_TYPE};base64,{HI}", b"hi"),
        (STR, "base64", f"data:x{LONGEST_TYPE};base64,{HI}", URL_FORM),
        (STR, "base64", f"data:,;base64,{HI}", URL_FORM),
        (STR, "base64", "data:,", URL_FORM),
        (STR, "base64", "http://h/a.jpg", "ksrv fetches no URLs"),
        (STR, "base64", "a.jpg", "expected the bytes of the file in base64"),
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


@pytest.mark.parametrize("before", ["", "é", "\U0001f600"])
def test_syntax_error_names_the_byte(before):
    lone = b"\\ud800"
    body = b'{"inputs":[{"name":"s","shape":[1],"datatype":"BYTES","data":["%s"]}]}'
    body %= before.encode() + lone
    assert refusal(body, spec=STR).endswith(f"at byte {body.index(lone)}")


class TestDocument:
    """Which faults are found, and where, is tested in tests/unit/native/infer/test_infer_body.py."""

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b" \n", "the body is empty"),
            (b"{}", "the request has no 'inputs'"),
            (b'{"inputs":[],"outputs":[{}]}', "output 0 has no 'name'"),
            (b'{"inputs":[{"name":"a"}]}', "input 'a' (index 0) has no 'datatype'"),
            (b'{"inputs":[{"name":"a","datatype":"fp32"}]}', "not a datatype; expected FP32"),
            (b'{"inputs":[{"name":"a","datatype":"str"}]}', "not a datatype; expected BYTES"),
            (b'{"inputs":[{"name":"a","datatype":"x"}]}', "not a datatype; expected one of BOOL, "),
            (b'{"inputs":[{"shape":3}]}', "'shape' must be an array of integers"),
            (b'{"inputs":[{"shape":[1,-1]}]}', "dimension 1 of 'shape' is negative; expected the"),
            (b'{"inputs":[],"\\u0069nputs":[]}', "the key 'inputs' appears twice"),
            (b'{"a":"\n"}', "control character"),
            (b'{"a":"\\x"}', "invalid escape"),
            (b'{"a":"\xff"}', "not UTF-8"),
            (b"\xff\xd8", "raw bytes need the header Inference-Header-Content-Length: 0"),
        ],
    )
    @pytest.mark.parametrize("header", [True, False])
    def test_refused(self, body, text, header):
        assert text in refusal(body, header=header)

    def test_counts_are_bounded(self):
        entry = {"shape": [1], "datatype": "FP32", "data": [1]}
        many = {"inputs": [{"name": str(i), **entry} for i in range(257)]}
        assert "more than 256 inputs, the limit --limits-inputs" in refusal(many)
        assert len(parse({"inputs": many["inputs"][:256]}).inputs) == 256
        outputs = {"inputs": [], "outputs": [{"name": str(i)} for i in range(257)]}
        assert "more than 256 outputs, the limit --limits-inputs" in refusal(outputs)
        assert "dimensions in 'shape', the limit --limits-rank" in refusal(
            one(shape=(1,) * 33, data=[1])
        )
        assert parse(one(shape=(1,) * 32, data=[1])).inputs[0].data.ndim == 32
        parameters = {"inputs": [], "parameters": {str(i): 1 for i in range(1025)}}
        assert "more than 1024 parameters, the limit --limits-parameters" in refusal(parameters)
        assert "more than 1023 parameters" in refusal(parameters, limits=Limits(parameters=1023))
        sizes = one(shape=(3,), datatype="BYTES")
        sizes["inputs"][0]["parameters"] = {"binary_data_size": "1,1,1"}
        assert "the limit --limits-size-list" in refusal(sizes, limits=Limits(size_list=2))

    def test_overflowing_shape_is_refused(self):
        assert "product of the shape exceeds" in refusal(one(shape=(2**31 - 1,) * 3, data=[1]))
        # numpy cannot compute strides for this shape, although it is empty.
        assert "product of the shape exceeds" in refusal(one(shape=(*(2**31 - 1,) * 3, 0), data=[]))
        (tensor,) = parse(one(shape=(2**29 - 1, 0, 2**30 - 1), data=[])).inputs
        assert tensor.data.shape == (2**29 - 1, 0, 2**30 - 1)

    def test_client_text_is_cut(self):
        text = refusal(one("é\x1b" * 5000, datatype="x" * 5000, data=[1]))
        assert len(text) < 500 and "\x1b" not in text


class TestParameters:
    """The types of reserved names are tested in test_parameters.py, for REST and gRPC together."""

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

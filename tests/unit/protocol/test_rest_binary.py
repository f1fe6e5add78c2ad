"""Binary tensors behind the JSON header: sizes, layout, alignment, images and raw requests."""

import json

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol.rest import parse_infer
from tests.support.wire.rest_bodies import (
    ADD,
    IMG,
    JPEG,
    LIMITS,
    X,
    one,
    parse,
    refusal,
)

DTYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "FP16": "f2",
    "BF16": "u2",
    "FP32": "f4",
    "FP64": "f8",
}


class TestHeaderLength:
    BODY = json.dumps(one(size=16)).encode()

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("-1", "unsigned decimal number, got '-1'"),
            ("abc", "got 'abc'"),
            ("12abc", "got '12abc'"),
            ("", "got ''"),
            (" 12", "got ' 12'"),
            ("12,12", "got '12,12'"),
            ("1\u0661", "unsigned decimal number"),
            ("1000000", "should be in range"),
            ("99999999999", "should be in range"),
            ("9" * 500, "should be in range"),
            ("5", "ends inside a value at byte 5"),
        ],
    )
    def test_refused(self, value, text):
        with pytest.raises(InvalidRequest) as caught:
            parse_infer(self.BODY + X.tobytes(), value, ADD, LIMITS)
        assert text in str(caught.value) and len(str(caught.value)) < 400

    def test_white_space_after_the_object_is_accepted(self):
        body = self.BODY + b" \n\t\r"
        request = parse_infer(body + X.tobytes(), str(len(body)), ADD, LIMITS)
        np.testing.assert_array_equal(request.inputs[0].data, X)


class TestSizes:
    @pytest.mark.parametrize("size", [16, "16", " 16 ", "4, 12", "4,4,4,4", None])
    def test_accepted(self, size):
        (tensor,) = parse(one(size=size), X.tobytes()).inputs
        np.testing.assert_array_equal(tensor.data, X)

    @pytest.mark.parametrize("size", [16.0, [16], {}, ",16", "+16", "1 6", 10**10, "1" * 11])
    def test_invalid(self, size):
        text = refusal(one(size=size), X.tobytes())
        assert (
            "input 'x' (index 0): 'binary_data_size' must be an unsigned integer, or a string"
            in text
        )

    @pytest.mark.parametrize(
        ("size", "sent", "text"),
        [
            (16, 12, "it takes 16 bytes, but 12 remain in the body; expecting 4 additional bytes"),
            (16, 17, "account for 16 bytes after the JSON header, but 17 follow"),
            (15, 15, "Expected 16 by datatype and shape, got 15"),
            ("8,9", 17, "Expected 16 by datatype and shape, got 17"),
            (0, 0, "Expected 16 by datatype and shape, got 0"),
            (None, 15, "expecting 1 additional bytes"),
            (None, 17, "account for 16 bytes after the JSON header, but 17 follow"),
            (None, 0, "has no 'data', and no bytes are left for it"),
        ],
    )
    def test_disagreement_names_both_numbers(self, size, sent, text):
        assert text in refusal(one(size=size), bytes(sent))

    def test_data_with_binary_size_is_refused(self):
        assert "has both 'data' and 'binary_data_size'" in refusal(
            one(size=16, data=[1, 2, 3, 4]), X.tobytes()
        )

    def test_size_list_is_limited(self):
        limits = Limits(size_list=3)
        body = one("image", (3,), "BYTES", size="1,1,1")
        assert len(parse(body, b"abc", IMG, limits).inputs[0].data) == 3
        body = one("image", (4,), "BYTES", size="1,1,1,1")
        assert "more than 3 sizes" in refusal(body, b"abcd", IMG, limits)


class TestMemory:
    @pytest.mark.parametrize("datatype", DTYPES)
    @pytest.mark.parametrize("shift", range(9))
    def test_view_where_aligned_else_one_counted_copy(self, datatype, shift):
        dtype = np.dtype(DTYPES[datatype])
        rng = np.random.default_rng(shift)
        values = rng.integers(0, 2 if datatype == "BOOL" else 256, 6 * dtype.itemsize, dtype="u1")
        text = json.dumps(one(shape=(2, 3), datatype=datatype, size=values.size)).encode()
        block = buffer_pool.lease(512)
        start = 64 - len(text) % 64 + shift
        body = memoryview(block)[start : start + len(text) + values.size]
        body[:] = text + values.tobytes()
        before = buffer_pool.copied_bytes()
        (tensor,) = parse_infer(body, str(len(text)), ADD, LIMITS).inputs
        copied = buffer_pool.copied_bytes() - before
        aligned = (start + len(text)) % dtype.itemsize == 0
        assert np.shares_memory(tensor.data, np.asarray(block)) == aligned
        assert copied == (0 if aligned else values.size)
        assert tensor.data.dtype == dtype and tensor.data.flags.aligned
        assert tensor.data.tobytes() == values.tobytes()
        assert tensor.data.flags.writeable

    def test_read_only_body_gives_read_only_views(self):
        text = json.dumps(one(size=16)).encode()
        text += b" " * (-len(text) % 8)
        (tensor,) = parse_infer(text + X.tobytes(), str(len(text)), ADD, LIMITS).inputs
        assert not tensor.data.flags.writeable

    def test_bool_bytes_are_checked(self):
        body = one(shape=(4,), datatype="BOOL", size=4)
        assert parse(body, b"\0\1\1\0").inputs[0].data.tolist() == [False, True, True, False]
        assert "byte 2 is 255; a BOOL byte must be 0 or 1" in refusal(body, b"\0\1\xff\0")


class TestBytes:
    @pytest.mark.parametrize(
        ("shape", "size", "tail", "text"),
        [
            ((3,), "44,44", JPEG * 2, "lists 2 sizes, but the shape has 3 elements"),
            ((2,), "44,43", JPEG * 2, "account for 87 bytes after the JSON header, but 88 follow"),
            ((2,), "44,45", JPEG * 2, "takes 89 bytes, but 88 remain"),
            ((2,), 88, JPEG * 2, "4-byte little-endian length"),
            ((2,), None, JPEG * 2, "needs 'binary_data_size'"),
            ((1,), None, b"", "has no 'data', and no bytes are left"),
            ((1,), 0, b"", "'binary_data_size' is 0, but the shape has 1 elements"),
        ],
    )
    def test_images_with_wrong_sizes_are_refused(self, shape, size, tail, text):
        found = refusal(one("image", shape, "BYTES", size=size), tail, IMG)
        assert text in found and ("'image'" in found or "inputs account" in found)

    def test_omitted_size_needs_a_sole_input(self):
        body = {
            "inputs": [
                one("image", (1,), "BYTES")["inputs"][0],
                one("y", (1,), "INT8", data=[1])["inputs"][0],
            ]
        }
        assert "sole input of one element" in refusal(body, JPEG, IMG)


class TestRawRequest:
    @staticmethod
    def raw(body, *inputs):
        return parse_infer(body, "0", ModelSpec("m", "2", inputs=inputs), LIMITS)

    def test_one_tensor(self):
        request = self.raw(X.tobytes(), TensorSpec("x", "FP32", (-1, 4)))
        (tensor,) = request.inputs
        assert tensor.shape == (1, 4) and request.binary_output
        assert (request.model_name, request.model_version, request.nbytes) == ("m", "2", 16)
        np.testing.assert_array_equal(tensor.data, X)
        assert self.raw(bytes(8), TensorSpec("x", "INT16", (2, 2))).inputs[0].shape == (2, 2)
        assert self.raw(bytes(12), TensorSpec("x", "UINT8", (1, (2, 8), 3))).inputs[0].shape == (
            1,
            4,
            3,
        )

    @pytest.mark.parametrize(
        ("body", "inputs", "text"),
        [
            (16, (), "declares 0"),
            (16, (TensorSpec("x", "FP32", (4,)), TensorSpec("y", "FP32", (4,))), "declares 2"),
            (16, (TensorSpec("x", "FP32", (-1, -1)),), "at most one variable dimension"),
            (16, (TensorSpec("x", "FP32", ((1, 9), -1)),), "at most one variable dimension"),
            (15, (TensorSpec("x", "FP32", (-1, 4)),), "the 15 bytes of the raw binary request"),
            (0, (TensorSpec("x", "FP32", (-1, 4)),), "the 0 bytes"),
            (12, (TensorSpec("x", "FP32", (4,)),), "the 12 bytes"),
            (12, (TensorSpec("x", "FP32", (-1, 0)),), "the 12 bytes"),
            (3, (TensorSpec("x", "BYTES", (2,)),), "one BYTES element"),
        ],
    )
    def test_refused(self, body, inputs, text):
        with pytest.raises(InvalidRequest, match=text):
            self.raw(bytes(body), *inputs)

    def test_raw_body_is_one_row_if_another_dimension_is_open(self):
        """As in Triton, whose own tests send such bodies."""

        def shape(size, *declared):
            spec = ModelSpec("m", inputs=(TensorSpec("x", "FP32", declared),), max_batch_size=8)
            return parse_infer(bytes(size), "0", spec, LIMITS).inputs[0].shape

        assert shape(16, -1, -1) == (1, 4)
        assert shape(24, -1, 3, (1, 9)) == (1, 3, 2)
        assert shape(32, -1, 4) == (2, 4)
        with pytest.raises(InvalidRequest, match="at most one variable dimension"):
            shape(16, -1, -1, -1)

    def test_bool_is_checked(self):
        with pytest.raises(InvalidRequest, match="a BOOL byte must be 0 or 1"):
            self.raw(b"\1\2", TensorSpec("x", "BOOL", (-1,)))

    def test_single_bare_element_is_read(self):
        (tensor,) = self.raw(b"hello", TensorSpec("s", "BYTES", (-1,))).inputs
        assert tensor.shape == (1,) and tensor.data == [b"hello"]
        (tensor,) = self.raw(JPEG, *IMG.inputs).inputs
        assert (tensor.datatype, tensor.shape, tensor.data) == ("BYTES", (1,), [JPEG])

    def test_raw_pixels_are_accepted_for_an_image_input(self):
        (tensor,) = self.raw(bytes(8 * 8 * 3 * 4), *IMG.inputs).inputs
        assert (tensor.datatype, tensor.shape) == ("FP32", (1, 8, 8, 3))

    def test_other_bytes_are_left_to_the_image_reader(self):
        (tensor,) = self.raw(b"text", TensorSpec("i", "FP32", (-1, -1, -1, 3), ImageSpec())).inputs
        assert tensor.data == [b"text"]


def test_a_body_that_is_an_image_is_the_input():
    for headers in (
        {"content-type": "image/jpeg"},
        {"content-type": "image/jpeg", "accept": "x/y"},
    ):
        request = parse_infer(JPEG, None, IMG, LIMITS, headers=headers)
        (tensor,) = request.inputs
        assert (tensor.name, tensor.datatype, tensor.shape) == ("image", "BYTES", (1,))
        assert bytes(tensor.data[0]) == JPEG
        assert (request.binary_output, request.nbytes) == (False, len(JPEG))
    accept = {"content-type": "image/jpeg", "accept": "application/octet-stream;q=1"}
    assert parse_infer(JPEG, None, IMG, LIMITS, headers=accept).binary_output
    document = json.dumps(one(size=16)).encode()
    request = parse_infer(document + X.tobytes(), str(len(document)), ADD, LIMITS, headers=accept)
    assert (
        request.inputs[0].data.tolist() == X.tolist()
    )  # its header has a length: it is a document


def test_file_for_a_numeric_input_is_parsed():
    """Validation says then why the input takes none."""
    body = one("x", (1,), "BYTES", size=len(JPEG))
    assert [bytes(file) for file in parse(body, JPEG).inputs[0].data] == [JPEG]


def test_raw_body_is_the_only_required_input():
    spec = ModelSpec("m", inputs=(*ADD.inputs, TensorSpec("m", "FP32", (-1, 4), optional=True)))
    (tensor,) = parse_infer(X.tobytes(), "0", spec, LIMITS).inputs
    assert (tensor.name, tensor.shape) == ("x", (1, 4))


def test_raw_body_with_an_image_signature_is_an_image_only_for_image_inputs():
    tiny = ModelSpec("m", inputs=(TensorSpec("i", "UINT8", (-1, 1, 1, 1), ImageSpec()),))
    (tensor,) = parse_infer(JPEG, "0", tiny, LIMITS).inputs
    assert (tensor.datatype, tensor.shape) == ("BYTES", (1,))
    (tensor,) = parse_infer(JPEG[:16], "0", ADD, LIMITS).inputs
    assert (tensor.datatype, tensor.shape) == ("FP32", (1, 4))


def test_a_body_as_large_as_the_limit():
    text = json.dumps(one(data=[1, 2, 3, 4])).encode()
    assert parse(text, limits=Limits(body=len(text), json=len(text))).inputs
    with pytest.raises(BodyTooLarge, match=f"the body has {len(text)} bytes"):
        parse(text, limits=Limits(body=len(text) - 1, json=len(text) - 1))

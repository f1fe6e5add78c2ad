"""Binary tensors behind the JSON header: sizes, layout, alignment, images and raw requests."""

import numpy as np
import pytest

from ksrv.errors import InvalidRequest
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


class TestSizes:
    @pytest.mark.parametrize("size", [16, "16", " 16 ", "4, 12", "4,4,4,4", None])
    def test_accepted(self, size):
        (tensor,) = parse(one(size=size), X.tobytes()).inputs
        np.testing.assert_array_equal(tensor.data, X)

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


class TestMemory:
    def test_bool_bytes_are_checked(self):
        body = one(shape=(4,), datatype="BOOL", size=4)
        assert parse(body, b"\0\1\1\0").inputs[0].data.tolist() == [False, True, True, False]
        assert "byte 2 is 255; a BOOL byte must be 0 or 1" in refusal(body, b"\0\1\xff\0")


class TestBytes:
    @pytest.mark.parametrize(
        ("shape", "size", "tail", "text"),
        [
            ((2,), None, JPEG * 2, "needs 'binary_data_size'"),
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

    def test_raw_pixels_are_accepted_for_an_image_input(self):
        (tensor,) = self.raw(bytes(8 * 8 * 3 * 4), *IMG.inputs).inputs
        assert (tensor.datatype, tensor.shape) == ("FP32", (1, 8, 8, 3))

    def test_other_bytes_are_left_to_the_image_reader(self):
        (tensor,) = self.raw(b"text", TensorSpec("i", "FP32", (-1, -1, -1, 3), ImageSpec())).inputs
        assert tensor.data == [b"text"]


def test_raw_body_with_an_image_signature_is_an_image_only_for_image_inputs():
    tiny = ModelSpec("m", inputs=(TensorSpec("i", "UINT8", (-1, 1, 1, 1), ImageSpec()),))
    (tensor,) = parse_infer(JPEG, "0", tiny, LIMITS).inputs
    assert (tensor.datatype, tensor.shape) == ("BYTES", (1,))
    (tensor,) = parse_infer(JPEG[:16], "0", ADD, LIMITS).inputs
    assert (tensor.datatype, tensor.shape) == ("FP32", (1, 4))

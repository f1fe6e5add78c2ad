"""Requests that are refused before the queue, the value that the error names, and which requests share batches."""

import numpy as np
import pytest

from ksrv.engine.requests.validation import MOST_KNOWN_KEYS, RequestValidator
from ksrv.errors import InvalidRequest
from ksrv.model.spec import ModelSpec, OutputImageSpec, TensorSpec
from ksrv.request import CheckedImages, InferRequest, RequestedOutput, Tensor

X = TensorSpec("x", "FP32", (-1, 4))
OPEN = TensorSpec("open", "FP32", (-1, -1, (2, 5)))
TEXT = TensorSpec("text", "BYTES", (-1, 1))
SIDE = TensorSpec("side", "INT64", (2, 3))
SECOND = TensorSpec("second", "FP32", (-1, 2))
MAYBE = TensorSpec("maybe", "FP32", (-1, 4), optional=True)
Y = TensorSpec("y", "FP32", (-1, 4))
PICTURE = TensorSpec("picture", "UINT8", (-1, 8, 8, 3), output_image=OutputImageSpec())
DTYPES = {"FP32": np.float32, "INT64": np.int64}


def validator(*inputs, split=False, **facts):
    facts.setdefault("max_batch_size", 8)
    return RequestValidator(
        ModelSpec("m", inputs=inputs, outputs=(Y, PICTURE), **facts), split=split
    )


def zeros(name, shape, datatype="FP32"):
    return Tensor(name, datatype, shape, np.zeros(shape, DTYPES[datatype]))


def texts(name, shape, *values):
    return Tensor(name, "BYTES", shape, list(values))


def asked(*tensors, outputs=(), **fields):
    return InferRequest("m", inputs=list(tensors), outputs=list(outputs), **fields)


def refusal(made, request):
    with pytest.raises(InvalidRequest) as refused:
        made.validate(request)
    return str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "tensors", "sentence"),
    [
        ((X,), [], "the input 'x' is missing; the inputs of the model m are 'x'"),
        ((X, SECOND), [zeros("x", (1, 4))], "the input 'second' is missing"),
        ((X,), [zeros("z", (1, 4))], "unknown input 'z'; the inputs of the model m are 'x'"),
        ((X,), [zeros("x", (1, 4))] * 2, "the input 'x' is given twice"),
        ((X, MAYBE), [zeros("x", (1, 4))] * 2, "the input 'x' is given twice"),
        ((X, MAYBE), [zeros("maybe", (1, 4))], "the input 'x' is missing; the inputs of the model m are 'maybe', 'x'"),
        ((X, SIDE), [zeros("x", (1, 4)), zeros("z", (1, 4))], "unknown input 'z'"),
        ((X,), [zeros("x", (1, 5))], "the input 'x' has the shape [1, 5]; the model m expects [-1, 4]"),
        ((X,), [zeros("x", (4,))], "the input 'x' has the shape [4]; the model m expects [-1, 4]"),
        ((X,), [zeros("x", (1, 1, 4))], "the input 'x' has the shape [1, 1, 4]"),
        ((X,), [Tensor("x", "INT64", (1, 4), np.zeros((1, 4), np.float32))], "has the datatype 'INT64'"),
        ((X,), [zeros("x", (1, 4, 1))], "the input 'x' has the shape [1, 4, 1]"),
        ((X,), [zeros("x", (1,) * 9)], "has the shape [1, 1, 1, 1, 1, 1, 1]... (9 long)"),
        ((X,), [zeros("x", (1,) * 8)], "has the shape [1, 1, 1, 1, 1, 1, 1, 1];"),
        ((SIDE,), [zeros("side", (1, 3), "INT64")], "the input 'side' has the shape [1, 3]; the model m expects [2, 3]"),
        ((OPEN,), [zeros("open", (1, 7, 1))], "has the shape [1, 7, 1]; the model m expects [-1, -1, 2:5]"),
        ((OPEN,), [zeros("open", (1, 7, 6))], "has the shape [1, 7, 6]; the model m expects [-1, -1, 2:5]"),
        ((X,), [zeros("x", (1, 4), "INT64")], "the input 'x' has the datatype 'INT64'; the model m expects FP32"),
        ((X, OPEN), [zeros("x", (2, 4)), zeros("open", (3, 1, 2))],
         "the input 'open' has 3 rows and the input 'x' has 2; all inputs of a request need the same number of rows"),
        ((X,), [zeros("x", (9, 4))], "the request has 9 rows, above the"),
    ],
)  # fmt: skip
def test_invalid_inputs_are_refused(inputs, tensors, sentence):
    assert sentence in refusal(validator(*inputs), asked(*tensors))


@pytest.mark.parametrize(
    ("inputs", "tensors", "rows"),
    [
        ((X,), [zeros("x", (1, 4))], 1),
        ((X,), [zeros("x", (0, 4))], 0),
        ((X,), [zeros("x", (8, 4))], 8),
        ((X, MAYBE), [zeros("x", (3, 4))], 3),
        ((X, MAYBE), [zeros("maybe", (3, 4)), zeros("x", (3, 4))], 3),
        ((X, SIDE), [zeros("side", (2, 3), "INT64"), zeros("x", (5, 4))], 5),
        ((SIDE,), [zeros("side", (2, 3), "INT64")], 2),
        ((SIDE, MAYBE), [zeros("side", (2, 3), "INT64")], 1),
        ((OPEN,), [zeros("open", (2, 0, 2))], 2),
        ((OPEN,), [zeros("open", (2, 9, 5))], 2),
        ((OPEN,), [zeros("open", (1, 0, 5))], 1),
        ((OPEN,), [zeros("open", (0, 2**30, 2))], 0),
        ((TensorSpec("x", "FP32", (-1, 2**30, 0)),), [zeros("x", (1, 2**30, 0))], 1),
        ((), [zeros("a", (0, 3, 2160, 3840))], 0),
        ((), [zeros("a", (1, 65_536, 0)), zeros("b", (1, 5))], 1),
        ((TEXT,), [texts("text", (2, 1), b"a", "b")], 2),
        ((TensorSpec("s", "FP32", ()),), [zeros("s", ())], 1),
        ((), [zeros("a", (3, 2)), zeros("b", (3,))], 3),
        ((), [texts("a", (2,), b"", b"")], 2),
        ((), [zeros("a", (0, 2))], 0),
    ],
)  # fmt: skip
def test_valid_inputs_give_their_rows(inputs, tensors, rows):
    assert validator(*inputs).validate(asked(*tensors)).rows == rows


def test_more_rows_than_a_batch_are_refused():
    nine = asked(zeros("x", (9, 4)))
    assert validator(X, split=True).validate(nine).rows == 9
    assert validator(X, max_batch_size=0).validate(nine).rows == 9
    assert validator(X, row_limit=9).validate(nine).rows == 9
    assert "9 rows" in refusal(
        RequestValidator(ModelSpec("m", inputs=(X,), max_batch_size=8)), nine
    )
    assert "9 rows" in refusal(validator(X, row_limit=8, max_batch_size=16), nine)


class Pictures:
    """Replaces an input's preparer: each image has the height 8 and an individual decode time."""

    def __init__(self, decode_ns=1, height=8):
        self.decode_ns = decode_ns
        self.height = height
        self.checked = 0

    def check(self, elements, count):
        assert len(elements) == count
        self.checked += count
        return CheckedImages((count, self.height, 8, 3), [None] * count, self.decode_ns)


def shown(shape, pictures=None, *, split=False):
    spec = ModelSpec("m", inputs=(TensorSpec("x", "FP32", shape),), max_batch_size=8)
    return RequestValidator(spec, {"x": pictures or Pictures()}, split=split)


def files(*shape):
    return texts("x", shape, *[b"png"] * int(np.prod(shape)))


def test_no_header_is_read_of_more_images_than_a_request_may_have():
    pictures = Pictures()
    assert "9 rows" in refusal(shown((-1, 8, 8, 3), pictures), asked(files(9)))
    assert pictures.checked == 0
    nine = asked(files(9))
    assert shown((-1, 8, 8, 3), pictures, split=True).validate(nine).rows == 9
    assert nine.images["x"].shape == (9, 8, 8, 3)


def test_images_of_equal_size_share_a_batch():
    pictures = Pictures()
    made = shown((-1, -1, -1, 3), pictures)
    eight = key(made, files(1))
    assert key(made, files(2)) == eight
    pictures.height = 9
    assert key(made, files(1)) != eight


def test_unknown_and_repeated_outputs_are_refused():
    def said(*names):
        outputs = [RequestedOutput(name) for name in names]
        return refusal(validator(X), asked(zeros("x", (1, 4)), outputs=outputs))

    assert "the model m has no output 'z'; it has 'picture', 'y'" in said("z")
    assert "the output 'y' is requested twice" in said("y", "y")


def test_undeclared_model_refuses_inconsistent_inputs():
    made = validator()
    assert "given twice" in refusal(made, asked(zeros("a", (1,)), zeros("a", (1,))))
    assert "have 'a' 1, 'b' 2" in refusal(made, asked(zeros("a", (1,)), zeros("b", (2,))))
    assert "have 'a' none, 'b' 2" in refusal(made, asked(zeros("a", ()), zeros("b", (2,))))
    many = [zeros(f"t{index}", (1 + index,)) for index in range(9)]
    assert "'t7' 8 and 1 more" in refusal(made, asked(*many))
    assert refusal(made, asked(*many[:8])).endswith("'t7' 8")


def key(made, *tensors, **fields):
    return made.validate(asked(*tensors, **fields)).batch_key


class Sink:
    """Replaces a stream: the validator only checks whether it exists."""


def test_declared_inputs_share_a_batch():
    made = validator(X)
    assert key(made, zeros("x", (1, 4))) == key(made, zeros("x", (3, 4))) == 0
    assert key(made, zeros("x", (1, 4)), explain=True) == 1
    assert key(made, zeros("x", (1, 4)), stream=Sink()) == 2
    assert key(made, zeros("x", (1, 4)), explain=True, stream=Sink()) == 3
    assert key(made, zeros("x", (1, 4)), dialect="d") >= 4


def test_open_shapes_share_a_batch_if_equal():
    made = validator(OPEN, MAYBE)
    first = key(made, zeros("open", (1, 3, 2)))
    assert first >= 4
    assert key(made, zeros("open", (2, 3, 2))) == first
    others = [
        key(made, zeros("open", (1, 4, 2))),
        key(made, zeros("open", (1, 3, 3))),
        key(made, zeros("open", (1, 3, 2)), zeros("maybe", (1, 4))),
        key(made, zeros("open", (1, 3, 2)), explain=True),
        key(made, zeros("open", (1, 3, 2)), stream=Sink()),
    ]
    assert len({first, *others}) == 6


def test_undeclared_inputs_share_a_batch_if_equal():
    made = validator()
    first = key(made, zeros("a", (1, 3)))
    assert key(made, zeros("a", (2, 3))) == first
    others = [
        key(made, zeros("b", (1, 3))),
        key(made, zeros("a", (1, 4))),
        key(made, zeros("a", (1, 3), "INT64")),
        key(made, zeros("a", (1, 3)), dialect="d"),
        key(made, dialect="d"),
        key(made, dialect="d"),  # without rows it runs alone
    ]
    assert len({first, *others}) == 7


def test_example_inputs_do_not_restrict_requests():
    made = validator(X, accepts_any_inputs=True)
    assert made.validate(asked(zeros("z", (3, 2), "INT64"))).rows == 3
    assert made.validate(asked(zeros("z", ()))).rows == 1
    assert made.validate(asked(zeros("z", (0, 2)))).rows == 1
    assert made.validate(asked()).rows == 1
    assert key(made, zeros("z", ())) != key(made, zeros("z", ()))
    assert key(made, zeros("z", (1, 2))) == key(made, zeros("z", (1, 2)))
    unlike = [zeros("a", (1,)), zeros("b", (2,)), zeros("c", (2,))]
    assert key(made, *unlike) != key(made, *unlike)


@pytest.mark.parametrize(
    ("inputs", "tensors", "shape"),
    [
        ((), [zeros("a", (1, 8_000_000, 0))], "the input 'a' has the shape [1, 8000000, 0]"),
        ((), [zeros("a", (2**31 - 1, 0))], "the input 'a' has the shape [2147483647, 0]"),
        ((), [texts("a", (1, 65_537, 0))], "the input 'a' has the shape [1, 65537, 0]"),
        ((), [zeros(name, (1, 40_000, 0)) for name in "ab"], "the input 'b' has the shape [1, 40000, 0]"),
        ((OPEN,), [zeros("open", (65_537, 0, 5))], "the input 'open' has the shape [65537, 0, 5]"),
        ((TensorSpec("x", "FP32", (-1, 0)),), [zeros("x", (65_537, 0))], "the input 'x' has the shape [65537, 0]"),
        ((TensorSpec("t", "BYTES", (-1, 0)),), [texts("t", (65_537, 0))], "the input 't' has the shape [65537, 0]"),
    ],
)  # fmt: skip
def test_empty_tensors_with_huge_shapes_are_refused(inputs, tensors, shape):
    """A body of 85 bytes made a handler of lists use 580 MiB."""
    assert refusal(validator(*inputs, max_batch_size=0), asked(*tensors)) == (
        f"{shape} and no values; the dimensions of such inputs that are not 0 and that the model leaves open may have "
        "a product of 65536 at most, in all inputs of a request together"
    )


def test_batch_keys_are_never_reused():
    made = validator(OPEN)
    first = key(made, zeros("open", (1, 0, 2)))
    keys = {key(made, zeros("open", (1, length, 2))) for length in range(MOST_KNOWN_KEYS + 2)}
    assert len(keys) == MOST_KNOWN_KEYS + 2
    assert key(made, zeros("open", (1, 0, 2))) not in keys - {first}

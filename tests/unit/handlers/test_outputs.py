"""Return values of handlers become tensors, or an error that names the mismatch."""

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed
from ksrv.handlers.outputs import OutputConverter
from ksrv.model.spec import ModelSpec, TensorSpec

torch = pytest.importorskip("torch")

NONE = ModelSpec("m")
MASKED = np.ma.array(np.ones((1, 2), np.float32), mask=[[False, True]])


def declared(*outputs, inputs=()):
    specs = tuple(TensorSpec(name, datatype, shape) for name, datatype, shape in outputs)
    return ModelSpec("m", inputs=inputs, outputs=specs)


def output_tensors(value, rows, spec, **options):
    return OutputConverter(spec).read(value, rows, **options)


def one(value, rows, spec=NONE):
    [tensor] = output_tensors(value, rows, spec)
    return tensor


def test_mapping_keeps_its_order_or_takes_the_declared_order():
    result = {"b": np.ones((1, 1), np.float32), "a": np.ones((1, 2), np.float32)}
    assert [tensor.name for tensor in output_tensors(result, 1, NONE)] == ["b", "a"]
    spec = declared(("a", "FP32", (-1, 2)), ("b", "FP32", (-1, 1)))
    assert [tensor.name for tensor in output_tensors(result, 1, spec)] == ["a", "b"]


def test_a_tuple_takes_the_declared_names_or_numbers():
    pair = (np.ones(1, np.float32), np.ones(1, np.int32))
    assert [t.name for t in output_tensors(pair, 1, NONE)] == ["output_0", "output_1"]
    spec = declared(("x", "FP32", (-1,)), ("y", "INT32", (-1,)))
    assert [t.name for t in output_tensors(pair, 1, spec)] == ["x", "y"]


def test_list_items_become_bytes_text_or_compact_json():
    values = [b"a", "\u00e9", {"k": [1, 2.5, None], 3: np.float32(1)}, [torch.tensor([1, 2])], 5]
    tensor = one(values, 5)
    assert (tensor.datatype, tensor.shape) == ("BYTES", (5,))
    assert tensor.data == [b"a", "\u00e9".encode(), b'{"k":[1,2.5,null],"3":1.0}', b"[[1,2]]", b"5"]


def test_a_list_of_numbers_follows_a_numeric_declaration():
    tensor = one([1, 2], 2, declared(("n", "FP32", (-1,))))
    assert (tensor.datatype, tensor.data.dtype, tensor.data.tolist()) == (
        "FP32",
        np.float32,
        [1, 2],
    )
    tensor = one([[1, 2], torch.tensor([3, 4])], 2, declared(("n", "INT64", (-1, 2))))
    assert tensor.data.tolist() == [[1, 2], [3, 4]]


def test_a_list_is_cast_as_the_array_that_it_makes():
    exact = torch.tensor([0.1, 0.2], dtype=torch.float64)
    for rows in ([exact, exact], [exact.numpy(), exact], [[0.1, 0.2], exact]):
        assert one(rows, 2, declared(("n", "FP64", (-1, 2)))).data.tolist() == [[0.1, 0.2]] * 2
    halves = torch.tensor([1.5, 3.0], dtype=torch.bfloat16)
    for rows in ([halves], [halves.float()], [[1.5, 3.0]], [np.array([0x3FC0, 0x4040], "u2")]):
        assert one(rows, 1, declared(("n", "BF16", (-1, 2)))).data.tolist() == [[0x3FC0, 0x4040]]
    patterns = one([halves], 1, declared(("n", "FP32", (-1, 2)))).data
    assert patterns.tolist() == [[1.5, 3.0]]


def test_tensors_in_json_keep_their_digits():
    exact = torch.tensor([0.1], dtype=torch.float64)
    assert one([{"score": exact}], 1).data == [b'{"score":[0.1]}']


@pytest.mark.parametrize("values", [["a", "b"], [[1], [1, 2]], [None, 1]])
def test_list_that_is_not_numeric_is_refused(values):
    with pytest.raises(HandlerFailed, match="'n'"):
        one(values, 2, declared(("n", "FP32", (-1,))))


def test_text_arrays_become_bytes():
    assert one(np.array(["a", "bc"]), 2).data == [b"a", b"bc"]
    assert one(np.array([b"a", b"bc"]), 2).data == [b"a", b"bc"]
    tensor = one(np.array([["a", b"b"], [bytearray(b"c"), memoryview(b"d")]], dtype=object), 2)
    assert (tensor.shape, tensor.data) == ((2, 2), [b"a", b"b", b"c", b"d"])
    with pytest.raises(HandlerFailed, match="with a int as"):
        one(np.array([1, "a"], dtype=object), 2)


@pytest.mark.parametrize(
    ("value", "datatype", "want"),
    [
        (np.array([1.5], "f8"), "FP32", [1.5]),
        (np.array([1.5], "f4"), "FP64", [1.5]),
        (np.array([1.5], "f4"), "FP16", [1.5]),
        (np.array([1.5], "f4"), "BF16", [0x3FC0]),
        (np.array([0x3FC0], "u2"), "BF16", [0x3FC0]),
        (np.array([7], "i8"), "INT32", [7]),
        (np.array([7], "i8"), "UINT8", [7]),
        (np.array([7], "i8"), "FP32", [7]),
        (torch.tensor([1.5], dtype=torch.bfloat16), "FP32", [1.5]),
        (torch.tensor([1.5], dtype=torch.bfloat16), "BF16", [0x3FC0]),
        (np.array([1.5], ">f4"), "FP32", [1.5]),
        (np.array([np.inf], "f8"), "FP32", [np.inf]),
    ],
)
def test_cast_within_the_kind_is_accepted(value, datatype, want):
    tensor = one(value, 1, declared(("x", datatype, (-1,))))
    assert (tensor.datatype, tensor.data.tolist()) == (datatype, want)


@pytest.mark.parametrize(
    ("value", "datatype", "words"),
    [
        (np.array([1.0]), "INT64", "FP64.*INT64"),
        (np.array([1]), "BOOL", "INT64.*BOOL"),
        (np.array([True]), "FP32", "BOOL.*FP32"),
        (np.array([300]), "UINT8", "300.*0 to 255"),
        (np.array([-1]), "UINT64", "-1"),
        (np.array([1e39]), "FP32", "too large"),
        (np.array([1e300]), "BF16", "1e.300; the largest finite value of BF16"),
        (np.array([3.4e38], "f4"), "BF16", "too large"),
        (np.array([70000]), "FP16", "70000; the largest finite value of FP16 is 65504"),
        (np.array([70000], "f4"), "FP16", "too large"),
        (np.array([1.0]), "BYTES", "FP64.*BYTES"),
        (np.array(["a"]), "FP32", "BYTES.*FP32"),
        (torch.tensor([1.0], dtype=torch.bfloat16), "INT64", "BF16.*INT64"),
    ],
)
def test_cast_to_another_kind_is_refused(value, datatype, words):
    with pytest.raises(HandlerFailed, match=words):
        one(value, 1, declared(("x", datatype, (-1,))))


@pytest.mark.parametrize(
    "form",
    [
        lambda array: [array],
        lambda array: [list(array)],
        lambda array: [array.tolist()],
        lambda array: [torch.from_numpy(array)],
        lambda array: [torch.from_numpy(array).requires_grad_()],
        lambda array: torch.from_numpy(array)[None],
    ],
)
def test_rows_in_any_form_are_cast_by_the_rule_of_arrays(form):
    exact = np.array([0.1, 1e300, 1 / 3])
    assert one(form(exact), 1, declared(("x", "FP64", (-1, 3)))).data.tolist() == [exact.tolist()]
    for datatype in ("FP32", "FP16", "BF16"):
        with pytest.raises(HandlerFailed, match=f"too large for {datatype}"):
            one(form(exact), 1, declared(("x", datatype, (-1, 3))))
    edge = np.array([np.inf, -np.inf, 65519.0])
    found = one(form(edge), 1, declared(("x", "FP16", (-1, 3)))).data
    assert found.tolist() == [[np.inf, -np.inf, 65504.0]]


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan():
    values = np.array([1.00390625, 1.01171875, np.nan, -np.inf, 3.3895314e38], np.float32)
    bits = one(values, 5, declared(("x", "BF16", (-1,)))).data
    want = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert bits[[0, 1, 3, 4]].tolist() == want[[0, 1, 3, 4]].tolist()
    assert np.isnan((bits[2:3].astype(np.uint32) << 16).view(np.float32))[0]


@pytest.mark.parametrize("shape", [(2,), (), (4, 1)])
def test_a_wrong_number_of_rows_names_both(shape):
    with pytest.raises(HandlerFailed) as caught:
        one(np.ones(shape, np.float32), 3)
    assert "batch of 3 rows" in caught.value.message
    assert f"{shape[0] if shape else 'no'} rows" in caught.value.message


def test_rows_are_not_counted_where_the_model_has_no_batch():
    spec = declared(("x", "FP32", (5,)), inputs=(TensorSpec("i", "FP32", (3,)),))
    assert one(np.ones(5, np.float32), 1, spec).shape == (5,)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, r"returned None \(is a `return` missing\?\)"),
        (3, "int"),
        ({}, "an empty mapping; expected outputs by name"),
        ({1: np.ones(1)}, "names are texts"),
        (
            {"a\ud800": np.ones(1)},
            r"name of an output has '\\ud800' at 1, half of a surrogate pair",
        ),
        (MASKED, "a masked array as the output 'output', .* return array.filled"),
        ({"x": np.ma.array(np.ones(1), mask=False)}, "a masked array as the output 'x'"),
        ({"x": None}, r"returned None \(is a `return` missing\?\) as the output 'x'"),
        ({"x": np.ones(1, complex)}, "complex128"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (torch.ones(1, dtype=torch.complex64), "complex64"),
        (torch.eye(2).to_sparse(), "sparse"),
        ([object()], "row 0"),
    ],
)
def test_invalid_return_value_is_a_server_error(value, words):
    with pytest.raises(HandlerFailed, match=words) as caught:
        output_tensors(value, 1, NONE)
    assert caught.value.http_status == 500


def test_masked_arrays_are_refused_where_outputs_are_declared():
    spec = declared(("x", "FP32", (-1, 2)))
    for value in (MASKED, [MASKED[0]], {"x": MASKED}):
        with pytest.raises(HandlerFailed, match="a masked array as the output 'x'"):
            output_tensors(value, 1, spec)


def test_undeclared_output_names_are_refused():
    spec = declared(("a", "FP32", (-1,)), ("b", "FP32", (-1,)))
    ones = np.ones(1, np.float32)
    for value in ({"a": ones}, {"a": ones, "b": ones, "c": ones}, ones, (ones,)):
        with pytest.raises(HandlerFailed, match="declared"):
            output_tensors(value, 1, spec)


def test_an_explanation_is_not_held_to_the_declared_outputs():
    spec = declared(("a", "FP32", (-1,)))
    [tensor] = output_tensors({"why": ["x"]}, 1, spec, explained=True)
    assert (tensor.name, tensor.data) == ("why", [b"x"])


def test_a_fresh_torch_tensor_is_not_copied():
    tensor = torch.ones(2, 2)
    address = tensor.data_ptr()
    before = buffer_pool.copied_bytes()
    assert one(tensor, 2).data.ctypes.data == address
    assert buffer_pool.copied_bytes() == before


def test_an_array_in_another_order_is_copied_and_counted():
    before = buffer_pool.copied_bytes()
    data = one(np.ones((2, 3), np.float32).T, 3).data
    assert data.flags.c_contiguous
    assert buffer_pool.copied_bytes() == before + 24
    before = buffer_pool.copied_bytes()
    assert one(torch.ones(2, 3).T, 3).data.flags.c_contiguous
    assert buffer_pool.copied_bytes() == before + 24


def test_torch_tensor_is_read_without_a_copy():
    """The aliasing check decides for all outputs together whether they are sent without a copy."""
    buffer = np.ones((2, 2), np.float32)
    module = torch.nn.Linear(2, 2)
    before = buffer_pool.copied_bytes()
    assert one(torch.from_numpy(buffer), 2).data.ctypes.data == buffer.ctypes.data
    assert one(module.weight, 2).data.ctypes.data == module.weight.data_ptr()
    assert buffer_pool.copied_bytes() == before

"""The keys of `pad`, the names of lengths in shapes, and the errors; type hints mean the same."""

import numpy as np
import pytest

from ksrv import Float32, Int64
from ksrv.errors import PromiseBroken
from ksrv.handlers.declared.tensor_types import TensorTypeError
from ksrv.model.fault import ConfigError
from ksrv.model.spec import Padding
from ksrv.repository.model_yaml import load_model_config
from ksrv.testing import LoadFailed, load

IDS = "{name: ids, datatype: INT64, shape: [-1, -1], pad: {%s}}"
MASK = "{name: mask, datatype: INT64, shape: [-1, -1]}"


def read(tmp_path, inputs, outputs=(), more=""):
    (tmp_path / "handler.py").write_text("")
    yaml = f"handler: handler.py\n{more}"
    for key, entries in (("inputs", inputs), ("outputs", outputs)):
        if entries:
            yaml += f"{key}:\n" + "".join(f"- {entry}\n" for entry in entries)
    (tmp_path / "model.yaml").write_text(yaml)
    return load_model_config(tmp_path)


def test_the_free_dimension_is_named_after_its_input(tmp_path):
    config = read(
        tmp_path,
        [IDS % "value: 3, multiple: 8, mask: mask, waste: 0.5", MASK],
        ["{name: tokens, datatype: FP32, shape: [-1, ids, 4]}"],
    )
    ids, mask = config.inputs
    assert ids.pad == Padding(value=3, multiple=8, mask="mask", waste=0.5)
    assert ids.lengths == mask.lengths == ("", "ids")
    assert ids.shape == (-1, -1) and mask.mask_of == "ids" and mask.may_be_left_out
    assert config.outputs[0].lengths == ("", "ids", "") and config.outputs[0].shape == (-1, -1, 4)
    assert config.spec("m").required_inputs == (ids,)


def test_inputs_that_name_one_mask_have_one_length(tmp_path):
    types = "{name: types, datatype: INT64, shape: [-1, -1], pad: {mask: mask}}"
    config = read(tmp_path, [IDS % "mask: mask", types, MASK])
    assert {one.lengths for one in config.inputs} == {("", "ids")}


def test_several_lengths_stand_beside_one_another(tmp_path):
    config = read(
        tmp_path,
        [
            "{name: source, datatype: INT64, shape: [-1, -1], pad: {exact: true}}",
            '{name: target, datatype: FP32, shape: [-1, "2:9"], pad: {value: 0.5, exact: true}}',
            "{name: sound, datatype: FP32, shape: [-1, frames, 80], pad: {exact: true}}",
            "{name: image, datatype: FP32, shape: [-1, h, w, 3], pad: {exact: true}}",
        ],
    )
    assert [one.lengths[1:] for one in config.inputs] == [
        ("source",),
        ("target",),
        ("frames", ""),
        ("h", "w", ""),
    ]
    assert config.inputs[3].image is None  # its rows are padded, so that it is not an image


BAD = {
    "a list": (["{name: ids, datatype: INT64, shape: [-1, -1], pad: [8]}"], "pad: "),
    "unknown key": ([IDS % "valeu: 3"], "unknown key"),
    "multiple 0": ([IDS % "multiple: 0"], "multiple: expected"),
    "multiple text": ([IDS % "multiple: many"], "multiple: expected"),
    "multiple too large": ([IDS % "multiple: 1000001"], "multiple: expected"),
    "waste 1": ([IDS % "waste: 1.0"], "waste: expected"),
    "waste negative": ([IDS % "waste: -0.1"], "waste: expected"),
    "value text": ([IDS % "value: zero"], "value: expected a number, true or false, found 'zero'"),
    "value none of the datatype": ([IDS % "value: 0.5"], "0.5 cannot fill INT64"),
    "value too large": (
        ["{name: a, datatype: INT8, shape: [-1, -1], pad: {value: 300}}"],
        "300 cannot fill INT8",
    ),
    "value infinite": (
        ["{name: a, datatype: FP32, shape: [-1, -1], pad: {value: .inf}}"],
        "value: expected a finite number",
    ),
    "value for BOOL": (
        ["{name: a, datatype: BOOL, shape: [-1, -1], pad: {value: 2}}"],
        "2 cannot fill BOOL",
    ),
    "no free dimension": (
        ["{name: a, datatype: FP32, shape: [-1, 4], pad: {}}"],
        "no open dimension behind the batch's",
    ),
    "several free dimensions": (
        ["{name: a, datatype: FP32, shape: [-1, -1, -1], pad: {}}"],
        "2 open dimensions behind the batch's; write the name",
    ),
    "no batch": (
        ["{name: a, datatype: FP32, shape: [4, -1], pad: {}}"],
        "must begin with -1",
    ),
    "a named batch": (["{name: a, datatype: FP32, shape: [n, 4]}"], "the dimension 0 of 'a'"),
    "BYTES": (["{name: a, datatype: BYTES, shape: [-1, -1], pad: {}}"], "BYTES, which are not"),
    "images": (
        ["{name: a, datatype: FP32, shape: [-1, h, 4, 3], image: {}}"],
        "images, which are not padded",
    ),
    "no such mask": ([IDS % "mask: musk", MASK], "'musk' is not another input; the others: mask"),
    "the input itself as mask": ([IDS % "mask: ids"], "'ids' is not another input; the others:"),
    "a mask with pad": (
        [IDS % "mask: mask", "{name: mask, datatype: INT64, shape: [-1, -1], pad: {}}"],
        "padded by zeros; leave pad out",
    ),
    "an optional mask": (
        [IDS % "mask: mask", "{name: mask, datatype: INT64, shape: [-1, -1], optional: true}"],
        "which the server makes",
    ),
    "a mask of texts": (
        [IDS % "mask: mask", "{name: mask, datatype: BYTES, shape: [-1, -1]}"],
        "declare numbers or BOOL of the shape [-1, -1]",
    ),
    "a mask of another rank": (
        [IDS % "mask: mask", "{name: mask, datatype: INT64, shape: [-1, 1, -1]}"],
        "declare numbers or BOOL of the shape [-1, -1]",
    ),
    "a mask of another length": (
        [IDS % "mask: mask", "{name: mask, datatype: INT64, shape: [-1, other]}"],
        "its shape names the length 'other'",
    ),
    "a mask of two lengths": (
        ["{name: a, datatype: FP32, shape: [-1, h, w], pad: {mask: mask}}", MASK],
        "a mask is for one",
    ),
    "disagreement": (
        [
            IDS % "multiple: 8",
            "{name: types, datatype: INT64, shape: [-1, ids], pad: {multiple: 4}}",
        ],
        "'types' and 'ids' are padded together to the length 'ids', and multiple is 4 here and 8 there",
    ),
    "nothing to make a mask of": (
        [
            "{name: ids, datatype: INT64, shape: [-1, -1], optional: true, pad: {mask: mask}}",
            MASK,
        ],
        "a request without 'ids' has no length",
    ),
    "no mask": ([IDS % "multiple: 8"], "the length 'ids' has no mask"),
    "exact is not a truth value": ([IDS % "exact: 1"], "exact: expected"),
    "a bad name": (["{name: a, datatype: FP32, shape: [-1, '4 x']}"], "the name of a length"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_place_and_cause(tmp_path, case):
    inputs, sentence = BAD[case]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, inputs)
    assert sentence in str(caught.value)
    assert "model.yaml, line " in str(caught.value) and "inputs[" in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{name: o, datatype: FP32, shape: [-1, idz]}", "'idz' is the length of no input; the le"),
        ("{name: o, datatype: FP32, shape: [ids, 4]}", "with -1 first"),
        ("{name: o, datatype: BYTES, shape: [-1, ids]}", "holds numbers or BOOL"),
        ("{name: o, datatype: FP32, shape: [-1, 4], pad: {}}", "unknown key"),
    ],
)
def test_bad_output_names_place_and_cause(tmp_path, entry, sentence):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, [IDS % "exact: true"], [entry])
    assert sentence in str(caught.value) and "outputs[0]" in str(caught.value)


def test_a_length_of_no_input_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no input is padded"):
        read(
            tmp_path,
            ["{name: x, datatype: FP32, shape: [-1, 4]}"],
            ["{name: o, datatype: FP32, shape: [-1, ids]}"],
        )


def test_without_rows_nothing_is_padded(tmp_path):
    with pytest.raises(ConfigError, match="no batch dimension"):
        read(tmp_path, [IDS % ""], more="batching: off\n")


def test_hints_mean_the_same():
    hint = Int64["ids"].padded(value=1, multiple=8, mask="mask", waste=0.5)
    spec = hint.spec("ids")
    assert spec.lengths == ("", "ids") and spec.shape == (-1, -1)
    assert spec.pad == Padding(value=1, multiple=8, mask="mask", waste=0.5)
    assert hint.entry("ids") == {
        "name": "ids",
        "datatype": "INT64",
        "shape": [-1, "ids"],
        "pad": {"value": 1, "multiple": 8, "mask": "mask", "waste": 0.5},
    }
    assert str(Float32["ids", 4]) == "Float32['ids', 4]"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"valeu": 1}, "pad has no key 'valeu'"),
        ({"multiple": "8"}, "Expected `int`"),
        ({"multiple": 0}, "multiple is from 1 to 1000000"),
        ({"waste": 1.5}, "waste from 0 to 0.99"),
    ],
)
def test_bad_hint_is_reported(keys, sentence):
    with pytest.raises(TensorTypeError, match=sentence):
        Int64["ids"].padded(**keys)


def unknown_length(ids: Int64["ids"].padded(exact=True)) -> Int64["idz"]:  # noqa: F821
    return ids


def unknown_mask(ids: Int64["ids"].padded(mask="musk")) -> Int64["ids"]:  # noqa: F821
    return ids


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (unknown_length, "outputs: output.shape: 'idz' is the length of no input"),
        (unknown_mask, "inputs: ids.pad.mask: 'musk' is not another input"),
    ],
)
def test_hints_that_do_not_hold_together_fail_the_load(handler, sentence):
    with pytest.raises(LoadFailed, match=sentence):
        load(handler)


def too_short(ids: Int64["ids"].padded(exact=True)) -> Int64["ids"]:  # noqa: F821
    return ids[:, :-1]


def test_an_output_that_is_not_as_long_as_the_batch_is_refused():
    sentence = "its dimension 1 is declared as the length 'ids', which"
    with (
        load(too_short, batching={"max_batch_size": 4}, warmup=False) as model,
        pytest.raises(PromiseBroken, match=sentence),
    ):
        model.infer([[1, 2, 3]])


def doubled(x: Float32["x"].padded(exact=True)) -> Float32["x"]:  # noqa: F821
    return x * 2


def mean(x: Float32["x"].padded(exact=True)) -> Float32:  # noqa: F821
    return x.mean(axis=1)


def mean_of_values(x: Float32["x"].padded(exact=True), batch) -> Float32:  # noqa: F821
    return x.sum(axis=1) / batch.lengths["x"]


def padded_with_ones(x: Float32["x"].padded(exact=True, value=1)) -> Float32:  # noqa: F821
    return x.mean(axis=1)


def refuses(x: Float32["x"].padded(exact=True)) -> Float32:  # noqa: F821
    raise ValueError("ones")


BATCHES = {"batching": {"max_batch_size": 4}}


@pytest.mark.parametrize("handler", [doubled, mean_of_values])
def test_padding_that_changes_no_answer_is_exact(handler):
    with load(handler, **BATCHES) as model:
        rows = [[[1, 2, 3]], [[4, 5, 6, 7]]]
        alone = [model.infer(row)["output"].tolist() for row in rows]
        assert [one["output"].tolist() for one in model.infer_many(rows)] == alone


@pytest.mark.parametrize("handler", [mean, padded_with_ones])
def test_padding_that_changes_answers_is_not_exact(handler):
    with pytest.raises(
        LoadFailed, match="its output 'output' depends on the padding; name an input"
    ):
        load(handler, **BATCHES)


def test_a_sample_shows_that_padding_is_not_exact(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 5), np.float32))
    (tmp_path / "handler.py").write_text("def inference(x):\n    return x.mean(axis=1)\n")
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\nwarmup: [x.npy]\n"
        "inputs: [{name: x, datatype: FP32, shape: [-1, -1], pad: {exact: true}}]\n"
    )
    with pytest.raises(LoadFailed, match="depends on the padding"):
        load(tmp_path)


def test_uncheckable_padding_is_reported():
    with load(refuses, **BATCHES) as model:
        [line] = model.engine.index()
    assert (line.state, "could not be checked" in line.reason) == ("READY", True)


def test_a_hint_without_a_mask_is_refused():
    def hinted(ids: Int64["ids"]) -> Int64["ids"]:  # noqa: F821
        return ids

    with pytest.raises(LoadFailed, match="the length 'ids' has no mask"):
        load(hinted)

"""Ensembles that cannot be served: their steps, and the models that the steps name."""

import pytest

from ksrv.dialects.registry import formats
from ksrv.dialects.triton.declarations import TritonDeclarations
from ksrv.repository.layout import Repository

ENDS = (
    'platform: "ensemble"\n'
    'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: 4 }\n'
)
MODEL = (
    'backend: "onnxruntime"\n'
    'input { name: "a" data_type: TYPE_FP32 dims: 4 } input { name: "b" data_type: TYPE_FP32 dims: 4 }\n'
    'output { name: "c" data_type: TYPE_FP32 dims: 4 }\n'
)


def step(model, inputs, outputs, extra=""):
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'ensemble_scheduling {{ step {{ model_name: "{model}" {extra} {" ".join(maps)} }} }}\n'


def steps(*entries):
    inner = [
        one.removeprefix("ensemble_scheduling {").rstrip().removesuffix("}") for one in entries
    ]
    return f"ensemble_scheduling {{ {' '.join(inner)} }}\n"


WHOLE = step("model", {"a": "x", "b": "x"}, {"c": "y"})


def scan(root, **configs):
    for name, config in configs.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if "onnxruntime" in config:
            (root / name / "1/model.onnx").write_bytes(b"")
    return Repository([root], formats()).scan()


def test_an_ensemble_whose_models_are_there(tmp_path):
    entries = scan(tmp_path, model=MODEL, both=ENDS + WHOLE)
    assert entries["both"].error is None
    (found,) = TritonDeclarations.of(entries["both"].versions["1"].config).steps
    assert (found.model, found.inputs, found.outputs) == ("model", {"a": "x", "b": "x"}, {"c": "y"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an ensemble needs a step"),
        ("ensemble_scheduling { }", "an ensemble needs a step"),
        (step("model", {}, {"c": "y"}), "input_map: a step needs it"),
        (step("model", {"a": "x", "b": "x"}, {}), "output_map: a step needs it"),
        (step("model", {"a": "lost", "b": "x"}, {"c": "y"}), "gives the tensor 'lost'"),
        (step("model", {"a": "x", "b": "x"}, {"c": "z"}), "no step gives the output 'y'"),
        (step("model", {"a": "x", "b": "x"}, {"c": "x"}), "the tensor 'x' is given twice"),
        (step("model", {"a": "y", "b": "x"}, {"c": "y"}), "circle: model -> model"),
        (steps(step("model", {"a": "q", "b": "x"}, {"c": "y"}),
               step("model", {"a": "y", "b": "x"}, {"c": "q"})), "wait for each other in a circle"),
        (step("model", {"a": "x", "b": "x"}, {"c": "y"}, "model_namespace: 'n'"), "namespaces"),
        (step("none", {"a": "x"}, {"c": "y"}), "calls the model 'none', which is not there"),
        (step("model", {"a": "x"}, {"c": "y"}), "without its input 'b'"),
        (step("model", {"a": "x", "z": "x"}, {"c": "y"}), "with the input 'z'; it has a, b"),
        (step("model", {"a": "x", "b": "x"}, {"z": "y"}), "with the output 'z'; it has c"),
        (step("model", {"a": "x", "b": "x"}, {"c": "y"}, "model_version: 4"),
         "in version 4; served are 1"),
        (step("ens", {"x": "x"}, {"y": "y"}), "in a circle: ens -> ens"),
        (step("broken", {"a": "x"}, {"c": "y"}), "which cannot be served:"),
        (step("model", {"a": "x", "b": "x"}, {"c": "y"}, "model_version: -2"), "whole number from -1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_sentence(tmp_path, text, said):
    broken = MODEL + 'default_model_filename: "../x.onnx"\nbatch_input { kind: X }\n'
    entries = scan(tmp_path, model=MODEL, broken=broken, ens=ENDS + text)
    assert not entries["ens"].versions
    assert said in entries["ens"].error and str(tmp_path / "ens") in entries["ens"].error
    assert entries["model"].error is None


def test_a_step_is_compared_with_the_version_that_it_names(tmp_path):
    for version, name in (("1", "a"), ("2", "other")):
        (tmp_path / "m" / version).mkdir(parents=True)
        (tmp_path / "m" / version / "model.onnx").write_bytes(b"")
        (tmp_path / "m" / version / "model.yaml").write_text(
            f"model: model.onnx\ninputs:\n- {{name: {name}, datatype: FP32, shape: [4]}}\n"
        )
    (tmp_path / "m/model.yaml").write_text("version_policy: all\n")
    entries = scan(
        tmp_path,
        first=ENDS + step("m", {"a": "x"}, {"c": "y"}, "model_version: 1"),
        any=ENDS + step("m", {"a": "x"}, {"c": "y"}),
    )
    assert entries["first"].error is None
    assert "with the input 'a'; it has other" in entries["any"].error


def test_ensembles_that_call_each_other_are_all_refused(tmp_path):
    entries = scan(
        tmp_path,
        one=ENDS + step("two", {"x": "x"}, {"y": "y"}),
        two=ENDS + step("three", {"x": "x"}, {"y": "y"}),
        three=ENDS + step("one", {"x": "x"}, {"y": "y"}),
        outside=ENDS + step("one", {"x": "x"}, {"y": "y"}),
    )
    assert "one -> two -> three -> one" in entries["one"].error
    assert "three -> one -> two -> three" in entries["three"].error
    assert "which cannot be served" in entries["outside"].error


def test_a_long_chain_of_ensembles_is_looked_through(tmp_path):
    chain = {
        f"e{number}": ENDS + step(f"e{number + 1}", {"x": "x"}, {"y": "y"}) for number in range(300)
    }
    entries = scan(tmp_path, **chain, e300=ENDS + WHOLE, model=MODEL)
    assert {entry.error for entry in entries.values()} == {None}


@pytest.mark.parametrize(
    ("model", "ensemble", "said"),
    [
        (("FP64", "4", 0), ("FP32", "4", 0), "FP32 [4] by the ensemble and FP64 [4] by the model 'm'"),
        (("FP32", "5", 0), ("FP32", "4", 0), "FP32 [4] by the ensemble and FP32 [5] by the model 'm'"),
        (("FP32", "[ 4, 4 ]", 0), ("FP32", "4", 0), "FP32 [4] by the ensemble and FP32 [4, 4]"),
        (("FP32", "4", 2), ("FP32", "4", 8), "takes 2 rows at most, and the ensemble 8"),
        (("FP32", "-1", 0), ("FP32", "4", 0), None),
        (("FP32", "4", 8), ("FP32", "4", 8), None),
        (("FP32", "4", 8), ("FP32", "4", 0), None),  # a batch dimension is added
        (("FP32", "[ -1, 4 ]", 0), ("FP32", "4", 8), None),  # the model gets the whole batch
        (("FP32", "[ 2, 4 ]", 0), ("FP32", "4", 8), None),
        (("FP32", "[ -1, 5 ]", 0), ("FP32", "4", 8), "FP32 [-1, 4] by the ensemble and FP32 [-1, 5]"),
    ],
)  # fmt: skip
def test_a_tensor_that_two_models_declare_differently_is_refused(tmp_path, model, ensemble, said):
    def tensors(datatype, dims, size):
        one = f"data_type: TYPE_{datatype} dims: {dims} }}\n"
        return f'max_batch_size: {size}\ninput {{ name: "x" {one} output {{ name: "y" {one}'

    entries = scan(
        tmp_path,
        m='backend: "onnxruntime"\n' + tensors(*model),
        ens='platform: "ensemble"\n' + tensors(*ensemble) + step("m", {"x": "x"}, {"y": "y"}),
    )
    error = entries["ens"].error
    assert error is None if said is None else said in error

"""`outputs:` by name, `rename:`, `constants:` and `state:`: a model file whose inputs and outputs model.yaml changes."""

import re

import numpy as np
import pytest

from ksrv.errors import KsrvError
from ksrv.repository.layout import RepositoryError
from ksrv.testing import LoadFailed, load
from tests.support.model_files.onnx_models import write_graph
from tests.support.paths import ROOT

REFUSED = (LoadFailed, RepositoryError)
SCALED = """model: m.onnx
batching: {max_batch_size: 8}
rename: {"in.1": x, "out:1": double}
"""


def write_scaled(path):
    """out:1 = in.1 * rate * weights, other = in.1 + text length; rate is INT64 [1], weights FP32 [N, 3]."""
    write_graph(
        path,
        [
            ("Cast", ["rate"], ["r"], {"to": 1}),
            ("Mul", ["in.1", "r"], ["scaled"], {}),
            ("Mul", ["scaled", "weights"], ["out:1"], {}),
            ("Neg", ["in.1"], ["other"], {}),
        ],
        {"in.1": ("FP32", ("N", 3)), "rate": ("INT64", (1,)), "weights": ("FP32", ("N", 3))},
        {"out:1": ("FP32", ("N", 3)), "other": ("FP32", ("N", 3))},
    )


def write_recurrent(path, rows="N", size=2):
    """out = sum of x over the sequence, beside a state [2, N, 3] whose second layer counts the steps."""
    write_graph(
        path,
        [
            ("Unsqueeze", ["x", "axis"], ["x1"], {}),
            ("Concat", ["x1", "ones"], ["step"], {"axis": 0})
            if rows == 1
            else ("Concat", ["x1", "x1"], ["step"], {"axis": 0}),
            ("Add", ["h", "step"], ["hn"], {}),
            ("Gather", ["hn", "first"], ["out"], {"axis": 0}),
        ],
        {"x": ("FP32", (rows, 3)), "h": ("FP32", (size, rows, 3))},
        {"out": ("FP32", (rows, 3)), "hn": ("FP32", (size, rows, 3))},
        {
            "axis": np.int64([0]),
            "first": np.int64(0),
            **({"ones": np.ones((1, 1, 3), np.float32)} if rows == 1 else {}),
        },
    )


@pytest.mark.parametrize("outputs", ["", "outputs: [output_0]\n"])
def test_exported_program_keeps_its_state(tmp_path, outputs):
    torch = pytest.importorskip("torch")

    class Adds(torch.nn.Module):
        def forward(self, x, h, scale):
            total = h + x[None] * scale
            return total.sum(0), total

    rows = torch.export.Dim("rows", min=1, max=8)
    program = torch.export.export(
        Adds(),
        (torch.ones(2, 3), torch.ones(1, 2, 3), torch.ones(2, 3)),
        dynamic_shapes=({0: rows}, {1: rows}, {0: rows}),
    )
    torch.export.save(program, tmp_path / "m.pt2")
    (tmp_path / "model.yaml").write_text(
        f"model: m.pt2\n{outputs}batching: {{max_batch_size: 4}}\nconstants: {{scale: [1, 2, 3]}}\n"
        "state: [{input: h, output: output_1, batch_dimension: 1}]\nrename: {x: signal}\n"
    )
    with load(tmp_path) as model:
        for step in (1, 2, 3):
            parameters = {"sequence_id": 7, "sequence_start": step == 1}
            found = model.infer({"signal": np.ones((1, 3), "f4")}, parameters=parameters)
            assert {name: value.tolist() for name, value in found.items()} == {
                "output_0": [[step, 2 * step, 3 * step]]
            }


def test_openvino_computes_no_output_that_is_not_served(tmp_path):
    openvino = pytest.importorskip("openvino")
    write_scaled(tmp_path / "source.onnx")
    made = openvino.convert_model(tmp_path / "source.onnx")
    openvino.save_model(made, tmp_path / "m.xml", compress_to_fp16=False)
    (tmp_path / "source.onnx").unlink()
    settings = SCALED.replace("m.onnx", "m.xml")
    (tmp_path / "model.yaml").write_text(
        f"{settings}outputs: [other]\nconstants: {{rate: 2, weights: [1, 1, 1]}}\nhandler: handler.py\n"
    )
    (tmp_path / "handler.py").write_text(
        "from ksrv import BaseHandler\n\n\nclass H(BaseHandler):\n    def initialize(self, context):\n"
        "        super().initialize(context)\n"
        "        assert len(self.model.compiled.outputs) == 1\n"
    )
    with load(tmp_path) as model:
        found = model.infer({"x": np.float32([[1, 2, 3]])})
        assert {name: value.tolist() for name, value in found.items()} == {"other": [[-1, -2, -3]]}


def folder(tmp_path, settings, write=write_scaled, handler=""):
    write(tmp_path / "m.onnx")
    (tmp_path / "model.yaml").write_text(settings)
    if handler:
        (tmp_path / "handler.py").write_text(handler)
    return tmp_path


def test_renamed_subset_with_constants_answers_as_the_file(tmp_path):
    text = SCALED + "outputs: [double]\nconstants: {rate: [2], weights: [1, 10, 100]}\n"
    with load(folder(tmp_path, text)) as model:
        rows = np.float32([[1, 2, 3], [4, 5, 6]])
        found = model.infer({"x": rows})
        assert list(found) == ["double"]
        assert found["double"].tolist() == (rows * 2 * [1, 10, 100]).tolist()
        many = model.infer_many([{"x": rows[:1]}, {"x": rows}])
        assert [one["double"].tolist() for one in many] == [
            found["double"][:1].tolist(),
            found["double"].tolist(),
        ]


def test_declared_outputs_may_be_some_of_the_file(tmp_path):
    text = SCALED + (
        "outputs: [{name: other, datatype: FP32, shape: [-1, 3]}]\n"
        "constants: {rate: 2, weights: [1.0, 1.0, 1.0]}\n"
    )
    with load(folder(tmp_path, text)) as model:
        assert model.infer({"x": np.float32([[1, 2, 3]])})["other"].tolist() == [[-1, -2, -3]]


def test_handler_calls_the_model_with_the_new_names(tmp_path):
    code = """
from ksrv import BaseHandler


class Half(BaseHandler):
    def inference(self, x):
        assert self.model.session.get_providers()
        return {"half": self.model(x=x)["double"] / 4}
"""
    text = "handler: handler.py\n" + SCALED + "constants: {rate: [2], weights: [1, 1, 1]}\n"
    with load(folder(tmp_path, text, handler=code)) as model:
        assert model.infer({"x": np.float32([[2, 4, 6]])})["half"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_state_with_rows_in_the_second_dimension_is_kept_for_each_sequence(tmp_path, executor):
    from ksrv.client import Client
    from ksrv.testing import Server

    settings = (
        f"model: m.onnx\nexecutor: {executor}\nbatching: {{max_batch_size: 4}}\n"
        "state: [{input: h, output: hn, batch_dimension: 1}]\n"
    )
    at = tmp_path / "m"
    at.mkdir()
    with Server(folder(at, settings, write_recurrent)) as server, Client(server.http) as client:
        about = client.metadata("m")
        assert [one["name"] for one in about["inputs"]] == ["x"]
        assert [one["name"] for one in about["outputs"]] == ["out"]
        for step in range(1, 4):
            for number in (5, 6):
                parameters = {"sequence_id": number, "sequence_start": step == 1}
                x = np.full((1, 3), number, np.float32)
                out = client.infer("m", {"x": x}, parameters=parameters)["out"]
                assert out.tolist() == [[step * number] * 3]


def test_rows_of_several_sequences_share_a_batch(tmp_path):
    settings = (
        "model: m.onnx\nbatching: {max_batch_size: 4}\n"
        "state: [{input: h, output: hn, batch_dimension: 1}]\n"
    )
    with load(folder(tmp_path, settings, write_recurrent)) as model:
        for step in range(1, 3):
            found = [
                model.infer(
                    {"x": np.float32([[n, n, n]])},
                    parameters={"sequence_id": n, "sequence_start": step == 1},
                )["out"].tolist()
                for n in (1, 2, 3)
            ]
            assert found == [[[step * n] * 3] for n in (1, 2, 3)]
        with pytest.raises(KsrvError, match="one row"):
            model.infer({"x": np.ones((2, 3), np.float32)}, parameters={"sequence_id": 1})


def test_served_state_and_file_with_one_row(tmp_path):
    settings = (
        "model: m.onnx\noutputs: [out]\nsequences: {max: 2}\n"
        "state: [{input: h, output: hn, batch_dimension: 1, initial_shape: [2, 3]}]\n"
    )
    with load(folder(tmp_path, settings, lambda at: write_recurrent(at, rows=1))) as model:
        start = {"sequence_id": "a", "sequence_start": True}
        assert model.infer({"x": np.ones((1, 3), "f4")}, parameters=start)["out"].tolist() == [
            [1] * 3
        ]
        more = {"sequence_id": "a"}
        assert model.infer({"x": np.ones((1, 3), "f4")}, parameters=more)["out"].tolist() == [
            [2] * 3
        ]


@pytest.mark.parametrize("shape", [("N", 1), ("N", 2, 1), ("N",)])
def test_state_output_of_another_shape_is_refused(tmp_path, shape):
    """The first request of a sequence, which gets zeros, would pass, and the second would fail."""
    settings = "model: m.onnx\nstate: [{input: h, output: hn}]\n"
    sizes = np.int64([-1, *shape[1:]])

    def write(at):
        write_graph(
            at,
            [("Reshape", ["h", "sizes"], ["hn"], {}), ("Neg", ["x"], ["y"], {})],
            {"x": ("FP32", ("N", 3)), "h": ("FP32", ("N", 2))},
            {"y": ("FP32", ("N", 3)), "hn": ("FP32", shape)},
            {"sizes": sizes},
        )

    with pytest.raises(REFUSED, match=r"the output 'hn' cannot be the next state, because it is"):
        load(folder(tmp_path, settings, write)).__enter__()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rename: {in1: x}", r"rename: the model file has no 'in1'; it has in.1, rate"),
        ("rename: {in.1: rate}", "'rate' and 'in.1' of the model file would both be 'rate'"),
        ("rename: [a]", "expected names and new names, found a list"),
        ("rename: {in.1: ''}", "expected names and new names"),
        ("outputs: [nothing]", "outputs: the model file has no 'nothing'; it has out:1, other"),
        ("outputs: [other, other]", r"outputs: 'other' is named twice"),
        (
            "outputs: [other, {name: b, datatype: FP32, shape: [-1]}]",
            "write all in one form",
        ),
        ("outputs: [3]", r"outputs\[0\]: expected "),
        ("constants: {sr: 1}", "constants: the model file has no 'sr'"),
        (
            "constants: {rate: 1.5}",
            "'rate' is INT64 in the model file, and the value is not: FP64 does not",
        ),
        ("constants: {rate: [1, 2]}", r"'rate' has the shape \[2\]; in the model file it is \[1\]"),
        ("constants: {rate: [[1], [2, 3]]}", "'rate' is INT64 in the model file"),
        ("constants: {rate: word}", "BYTES does not become INT64"),
        ("constants: {weights: [.nan, 1, 1]}", r"constants.weights\[0\]: expected a finite number"),
        ("constants: {weights: {a: 1}}", "constants: expected names and their values"),
        ("constants: [1]", "constants: expected names and their values"),
        ("state: [{input: rate}]", r"state\[0\].output: this section needs a output"),
        ("state: [{input: a, output: other}]", "state: the model file has no 'a'"),
        ("state: [{input: rate, output: b}]", "state: the model file has no 'b'"),
        ("state: [{input: rate, output: other, batch: 1}]", "unknown key"),
        (
            "state: [{input: weights, output: other, batch_dimension: 2}]",
            "whose dimension 2 does not count rows",
        ),
        (
            "state: [{input: weights, output: other, batch_dimension: 1}]",
            "whose dimension 1 does not count rows",
        ),
        (
            "state: [{input: weights, output: other, batch_dimension: -1}]",
            "expected a whole number from 0",
        ),
        (
            "state: [{input: weights, output: other, initial_shape: [4]}]",
            r"the initial_shape \[4\] does not fit",
        ),
        (
            "state: [{input: rate, output: other}]",
            r"'rate' is INT64 \[1\] in the model file, and the output 'other' cannot be the next state",
        ),
        ("state: {input: a, output: b}", "state: expected a list"),
        (
            "state: [{input: a, output: b}, {input: a, output: c}]",
            r"state: 'a' is named twice",
        ),
        (
            "constants: {a: 1}\nstate: [{input: a, output: b}]",
            "state: 'a' is named twice, here or in constants:",
        ),
        (
            "sequences: {several_rows: true}\nstate: [{input: a, output: b}]",
            "a model with state: takes one row at a time",
        ),
        ("cuda_graphs: true\nstate: [{input: a, output: b}]", "cuda_graphs: the launches"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, settings, said):
    with pytest.raises(REFUSED, match=said):
        load(folder(tmp_path, f"model: m.onnx\n{settings}\n")).__enter__()


def test_documented_voice_detector_keeps_its_state(tmp_path):
    text = (ROOT / "docs/models.md").read_text()
    [settings] = re.findall(r'yaml title="models/voice/model.yaml"\n(.*?)```', text, re.DOTALL)
    (tmp_path / "model.yaml").write_text(settings)
    shape = (2, "N", 128)
    write_graph(
        tmp_path / "voice.onnx",
        [
            ("Cast", ["sr"], ["rate"], {"to": 1}),
            ("ReduceSum", ["input", "one"], ["sum"], {"keepdims": 1}),
            ("Div", ["sum", "rate"], ["step"], {}),
            ("Add", ["state", "step"], ["stateN"], {}),
            ("ReduceMean", ["stateN"], ["all"], {"axes": [0, 2], "keepdims": 0}),
            ("Unsqueeze", ["all", "one"], ["output"], {}),
        ],
        {"input": ("FP32", ("N", 512)), "state": ("FP32", shape), "sr": ("INT64", ())},
        {"output": ("FP32", ("N", 1)), "stateN": ("FP32", shape)},
        {"one": np.int64([1])},
    )
    with load(tmp_path) as model:
        for step in (1, 2):
            parameters = {"sequence_id": "a", "sequence_start": step == 1}
            samples = np.full((1, 512), 16000 / 512, np.float32)
            found = model.infer({"samples": samples}, parameters=parameters)
            assert found["probability"].tolist() == [[step]]
            assert list(found) == ["probability"]


def test_names_alone_need_a_handler_that_answers_with_the_file(tmp_path):
    code = "from ksrv import BaseHandler\n\n\nclass H(BaseHandler):\n    def postprocess(self, y):\n        return y\n"
    text = "handler: handler.py\nmodel: m.onnx\noutputs: [other]\n"
    with pytest.raises(REFUSED, match="'other' is a name alone, and this handler makes"):
        load(folder(tmp_path, text, handler=code)).__enter__()


def test_keys_need_a_model_file(tmp_path):
    (tmp_path / "handler.py").write_text("def score(x):\n    return x\n")
    (tmp_path / "model.yaml").write_text("handler: handler.py:score\nrename: {a: b}\n")
    with pytest.raises(REFUSED, match=r"rename: changes tensors of a model file"):
        load(tmp_path).__enter__()

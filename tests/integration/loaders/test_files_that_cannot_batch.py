"""Model files and handlers that fail at a batch size: they are never ready as if nothing were wrong."""

import numpy as np
import pytest

from ksrv.testing import LoadFailed, Server, load
from tests.support.models import write_model
from tests.support.wait_until import wait_until

onnx = pytest.importorskip("onnx")
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def value(name, *shape):
    return onnx.helper.make_tensor_value_info(name, FLOAT, shape)


def write_onnx(tmp_path, nodes, inputs, outputs, settings, initializers=()):
    folder = tmp_path / "m"
    folder.mkdir()
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")
    (folder / "model.yaml").write_text(f"model: m.onnx\n{settings}")
    return folder


node = onnx.helper.make_node
DOUBLE = [node("Add", ["x", "x"], ["y"])]
BATCHES = "batching: {max_batch_size: 8}\n"
ROWS = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"


def test_a_file_with_a_fixed_batch_is_refused_with_batching(tmp_path):
    folder = write_onnx(tmp_path, DOUBLE, [value("x", 1, 4)], [value("y", 1, 4)], BATCHES)
    with pytest.raises(LoadFailed, match=r"'x' is \[1, 4\]\. Leave batching: out"):
        load(folder)


def test_declared_rows_do_not_hide_a_file_of_one_row(tmp_path):
    folder = write_onnx(tmp_path, DOUBLE, [value("x", 1, 4)], [value("y", 1, 4)], BATCHES + ROWS)
    with pytest.raises(LoadFailed, match="'x', and the model file takes 1 of them"):
        load(folder)


def test_a_file_with_a_fixed_batch_serves_without_batching(tmp_path):
    folder = write_onnx(tmp_path, DOUBLE, [value("x", 1, 4)], [value("y", 1, 4)], "")
    with load(folder) as model:
        assert model.infer({"x": [[1, 2, 3, 4]]})["y"].tolist() == [[2, 4, 6, 8]]


def test_a_file_that_reshapes_to_one_row_is_refused_at_two(tmp_path):
    shape = onnx.helper.make_tensor("shape", INT64, [2], [1, 4])
    folder = write_onnx(
        tmp_path,
        [node("Reshape", ["x", "shape"], ["y"])],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        BATCHES,
        [shape],
    )
    with pytest.raises(LoadFailed, match="It takes up to 1 rows and not 2: leave batching: out"):
        load(folder)


def test_a_file_that_keeps_one_row_is_refused_at_two(tmp_path):
    mean = [node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)]
    folder = write_onnx(tmp_path, mean, [value("x", "N", 4)], [value("y", "M", 4)], BATCHES)
    with pytest.raises(LoadFailed, match=r"returned 1 rows .* takes up to 1 rows and not 2"):
        load(folder)


RECURRENT = [node("Add", ["x", "x"], ["y"]), node("Identity", ["h"], ["next"])]


@pytest.mark.parametrize("rows", [1, "N"])
@pytest.mark.parametrize("settings", ["", BATCHES])
def test_a_state_beside_the_rows_needs_whole_shapes(tmp_path, rows, settings):
    folder = write_onnx(
        tmp_path,
        RECURRENT,
        [value("x", "N", 4), value("h", 2, rows, 3)],
        [value("y", "N", 4), value("next", 2, rows, 3)],
        settings,
    )
    with pytest.raises(LoadFailed, match=r"'next' of the model file has 2 rows.*batching: off"):
        load(folder)


def test_a_state_is_served_with_whole_shapes(tmp_path):
    folder = write_onnx(
        tmp_path,
        RECURRENT,
        [value("x", "N", 4), value("h", 2, "N", 3)],
        [value("y", "N", 4), value("next", 2, "N", 3)],
        "batching: off\n",
    )
    with load(folder) as model:
        answer = model.infer({"x": np.ones((5, 4)), "h": np.ones((2, 5, 3))})
    assert answer["y"].shape == (5, 4) and answer["next"].shape == (2, 5, 3)


def test_a_file_that_fails_with_zeros_is_not_ready(tmp_path):
    nodes = [
        node("Cast", ["x"], ["whole"], to=INT64),
        node("Add", ["whole", "five"], ["place"]),
        node("Gather", ["table", "place"], ["y"]),
    ]
    five = onnx.helper.make_tensor("five", INT64, [1], [5])
    table = onnx.helper.make_tensor("table", FLOAT, [2], [1, 2])
    inputs, outputs = [value("x", "N", 4)], [value("y", "N", 4)]
    folder = write_onnx(tmp_path, nodes, inputs, outputs, "", [five, table])
    with pytest.raises(LoadFailed, match=r"warm-up with zeros: .*warmup: false"):
        load(folder)
    (folder / "model.yaml").write_text("model: m.onnx\nwarmup: false\n")
    with load(folder) as model:
        assert model.infer({"x": [[-5, -4, -5, -4]]})["y"].tolist() == [[1, 2, 1, 2]]


VECTOR = "inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]\n"


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "assert len(x) < 3\n    return x",
            "It takes up to 2 rows and not 3: lower max_batch_size",
        ),
        ("return x.reshape(2, -1)[:, :2]", "warm-up with zeros"),
        ("assert len(x) > 1\n    return x", "It fails with 1 rows, and not with 4"),
        ("return x[:1]", "up to 1 rows and not 2"),
    ],
)
def test_a_handler_that_fails_at_a_size_is_not_ready(tmp_path, body, said, executor):
    settings = f"{VECTOR}batching: {{max_batch_size: 4}}\n"
    code = f"def inference(x):\n    {body}\n"
    if executor == "inline":
        write_model(tmp_path, "m", code, settings)
        with pytest.raises(LoadFailed, match=said):
            load(tmp_path / "m")
        return
    write_model(tmp_path, "m", code, f"{settings}executor: process\n")
    with Server(tmp_path, start_timeout=120, wait_ready=False) as server:
        wait_until(lambda: "models loaded" in server.log)
        assert server.get("/v2/models/m/ready")[0] == 503
        assert said in server.log


@pytest.mark.parametrize(
    "body",
    [
        "return missing",
        "import no_such_package",
        "raise NotImplementedError",
        "return len(3)",
    ],
)
def test_an_error_of_the_program_with_zeros_keeps_the_model_from_being_ready(tmp_path, body):
    write_model(tmp_path, "m", f"def inference(x):\n    {body}\n", VECTOR)
    with pytest.raises(LoadFailed, match=r"warm-up with zeros: .*Error.*warmup: false"):
        load(tmp_path / "m")

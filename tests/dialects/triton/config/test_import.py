"""`ksrv import` on a Triton repository: a line for each key of each model."""

from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.model_files.triton_repository import write_folder

GOOD = """
backend: "onnxruntime" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: 2 }
optimization { priority: PRIORITY_MAX }
"""


def run(*arguments):
    found = CliRunner().invoke(main, ["import", *map(str, arguments)])
    return found.exit_code, [line.strip() for line in found.output.splitlines()]


def test_a_line_for_each_key(tmp_path):
    for name, config in (
        ("good", GOOD),
        ("other", 'backend: "dali"\n' + GOOD.split("\n", 2)[2]),
    ):
        write_folder(tmp_path, name, config)
        (tmp_path / name / "1/model.onnx").write_bytes(b"")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/handler.py").write_text("def inference(x):\n    return x\n")
    status, lines = run(tmp_path)
    assert status == 0
    assert lines[0] == "good 1"
    assert "max_batch_size: batches of up to 4 rows, as in Triton" in lines
    assert "dynamic_batching: requests are joined; the oldest waits up to 0.5 ms" in lines
    assert "input: x FP32 [-1, 4]" in lines
    assert any(one.startswith("dynamic_batching.preferred_batch_size: ignored, ") for one in lines)
    assert any(one.startswith("optimization.priority: ignored, ") for one in lines)
    assert "other" in lines
    assert any(one.startswith("backend: REFUSED, 'dali' is not served") for one in lines)
    assert not any(one.startswith("own") for one in lines)


def test_one_model_alone_and_one_that_cannot_be_read(tmp_path):
    write_folder(tmp_path, "good", GOOD)
    status, lines = run(tmp_path / "good")
    assert status == 0 and lines[0] == "good 1"
    assert any(one.startswith("ERROR: ") and "model.onnx is missing" in one for one in lines)
    write_folder(tmp_path, "bad", "max_batch_size: x")
    status, lines = run(tmp_path)
    assert status == 1
    assert any("config.pbtxt, line 1, column 17: " in one for one in lines)


def test_folders_are_made_of_archives_alone(tmp_path):
    write_folder(tmp_path / "store", "good", GOOD)
    status, lines = run(tmp_path / "store", "--to", tmp_path / "models")
    assert status == 2 and "serves these as they are" in lines[-1]
    assert not (tmp_path / "models").exists()

"""`ksrv check`: what it prints and with which status it ends."""

import json

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.model_files.onnx_models import write_graph
from tests.support.models import VECTOR, write_broken, write_double, write_model

FAILS = 'def inference(x): raise RuntimeError("not with zeros")\n'


@pytest.fixture
def check():
    return lambda *arguments: CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_models_that_serve(check, tmp_path):
    write_double(tmp_path)
    done = check(tmp_path)
    assert done.exit_code == 0, done.output
    assert "double" in done.output and "FP32[-1,4]" in done.output
    assert done.output.endswith("1 of 1 models are ready\n")


def test_models_that_do_not_serve_are_status_1(check, tmp_path):
    write_double(tmp_path)
    write_broken(tmp_path)
    write_model(tmp_path, "fails", FAILS, VECTOR)
    done = check(tmp_path)
    assert done.exit_code == 1
    assert "the weights are gone" in done.output
    assert "2 of 3 models cannot be served as they are: broken, fails" in done.output


def test_skipped_checks_are_reported(check, tmp_path):
    write_model(tmp_path, "fails", FAILS, VECTOR + "warmup: false\n")
    done = check(tmp_path)
    assert done.exit_code == 0, done.output
    assert "fails: ready, but not run" in done.output
    assert "If it has a model.yaml, sample files under `warmup:` there run it" in done.output


def test_settings_that_cannot_be_read_are_status_1(check, tmp_path):
    folder = write_double(tmp_path)
    (folder / "model.yaml").write_text("handler: handler.py\nbatchng: {}\n")
    for path in (tmp_path, folder):
        done = check(path)
        assert done.exit_code == 1, done.output
        assert "line 2" in done.output and "batching" in done.output


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_nothing_to_serve_is_status_2(check, tmp_path, name):
    (tmp_path / "empty").mkdir()
    done = check(tmp_path / name)
    assert done.exit_code == 2
    assert "Error: " in done.output
    assert check().exit_code == 2


def test_misspelt_path_suggests_the_nearest_path(check, tmp_path):
    write_double(tmp_path)
    assert "no such file or folder (did you mean double?)" in check(tmp_path / "duoble").output
    assert f"no such file or folder in {tmp_path}" in check(tmp_path / "xyz").output
    assert f"; {tmp_path}/none cannot be looked at either" in check(tmp_path / "none" / "m").output
    target = f"{tmp_path / 'double' / 'handler.py'}:Doubel"
    assert "has no Doubel at its top level (did you mean Double?)" in check(target).output
    assert "at its top level; it has Double" in check(target.replace("Doubel", "Xyz")).output


def test_duplicate_model_name_names_the_remedy(check, tmp_path):
    folder = write_double(tmp_path)
    assert "; rename one, or serve only one of them" in check(folder, folder).output


def test_the_result_as_json(check, tmp_path):
    write_double(tmp_path)
    write_broken(tmp_path)
    done = CliRunner().invoke(main, ["check", "--json", "--log-level", "error", str(tmp_path)])
    found = {one["name"]: one for one in json.loads(done.stdout)["models"]}
    assert done.exit_code == 1
    assert found["double"]["ok"] and found["double"]["warm"]
    assert found["double"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert not found["broken"]["ok"] and "the weights are gone" in found["broken"]["reason"]


QUANTIZED = """
import os

import numpy as np
from ksrv import BaseHandler, Float32


class Quantized(BaseHandler):
    '''Rounds to 255 steps of the batch, whose scale depends on the neighbours; counts its calls.'''

    calls = 0

    def inference(self, x: Float32[4]):
        Quantized.calls += 1
        step = np.abs(x).max() / 255
        numbers = {"calls": np.full(len(x), self.calls), "process": np.full(len(x), os.getpid())}
        return {"y": np.round(x / step) * step, "name": ["a"] * len(x), **numbers}
"""
PADDED = """model: model.onnx
batching: {max_batch_size: 4}
inputs: [{name: x, datatype: FP32, shape: [-1, -1], pad: {mask: mask}}, {name: mask, datatype: FP32, shape: [-1, x]}]
"""


def compare(check, *arguments):
    done = check(*arguments, "--json")
    [model] = json.loads(done.output)["models"]
    found = {(one["sample"], one["comparison"], one["output"]): one for one in model["samples"]}
    return done.exit_code, found


def test_sample_shows_outputs_that_depend_on_the_run(check, tmp_path):
    write_model(tmp_path / "models", "quantized", QUANTIZED, "")
    np.save(tmp_path / "x.npy", np.float32([[0.1, 0.2, 0.3, 0.7]]))
    status, found = compare(check, tmp_path / "models", "--sample", tmp_path / "x.npy")
    assert status == 1
    shown = {key[1:]: one["ok"] for key, one in found.items()}
    assert shown[("run twice", "y")] and not shown[("run twice", "calls")]
    assert not shown[("in a batch of 8", "y")]
    assert shown[("with executor: process", "y")] and shown[("with executor: process", "name")]
    assert shown[("run twice", "process")] and not shown[("with executor: process", "process")]
    assert 0.001 < found[("x.npy", "in a batch of 8", "y")]["difference"] < 0.02
    text = check(tmp_path / "models", "--sample", tmp_path / "x.npy").output
    assert "x.npy in a batch of 8: y differs by up to 0.0" in text
    assert "1 of 1 models are ready" in text


PRINTS = """print("import")
from ksrv import BaseHandler, Float32

class Prints(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        print("initialize")

    def inference(self, x: Float32[4]):
        print("inference")
        return x

    def close(self):
        print("close")
"""


def test_json_stays_whole_if_a_handler_prints(check, tmp_path):
    write_model(tmp_path / "models", "prints", PRINTS, "")
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3, 4]]))
    done = check(tmp_path / "models", "--json", "--sample", tmp_path / "x.npy")
    assert json.loads(done.stdout)["models"][0]["ok"]
    assert "inference" in done.stderr


UNSTABLE = """import numpy as np
from ksrv import BaseHandler, Float32

class Unstable(BaseHandler):
    calls = 0

    def inference(self, x: Float32[4]):
        Unstable.calls += 1
        values = [np.nan, np.inf, -np.inf, 1.0]
        return {"same": x * 0 + values, "moved": x * 0 + np.roll(values, self.calls)}
"""


def test_sample_compares_answers_with_nan_and_infinity(check, tmp_path, recwarn):
    write_model(tmp_path / "models", "unstable", UNSTABLE, "warmup: false")
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3, 4]]))
    status, found = compare(check, tmp_path / "models", "--sample", tmp_path / "x.npy")
    assert status == 1 and not recwarn.list
    assert found[("x.npy", "run twice", "same")]["ok"]
    moved = found[("x.npy", "run twice", "moved")]
    assert moved["result"].endswith("; values that are NaN or infinite differ")
    assert moved["difference"] == 0  # not NaN, which is not JSON


def write_padded(folder, *, masked):
    """y = the mean of x * mask over the mask, or over all places."""
    write_graph(
        folder / "model.onnx",
        [
            ("Mul", ["x", "mask"], ["kept"], {}),
            ("ReduceSum", ["kept", "one"], ["sum"], {"keepdims": 0}),
            ("ReduceSum", ["mask", "one"], ["count"], {"keepdims": 0}),
            ("Div", ["sum", "count"], ["y"], {})
            if masked
            else ("ReduceMean", ["kept"], ["y"], {"axes": [1], "keepdims": 0}),
        ],
        {"x": ("FP32", ("N", "L")), "mask": ("FP32", ("N", "L"))},
        {"y": ("FP32", ("N",))},
        {"one": np.int64([1])},
    )
    (folder / "model.yaml").write_text(PADDED)


@pytest.mark.parametrize("masked", [True, False])
def test_sample_is_padded_beside_a_longer_row(check, tmp_path, masked):
    write_padded(tmp_path / "m", masked=masked)
    rows = [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [[1, 2, 4]]}]
    (tmp_path / "x.json").write_text(json.dumps({"inputs": rows}))
    status, found = compare(check, tmp_path / "m", "--sample", tmp_path / "x.json")
    [padded] = [one for key, one in found.items() if key[1].startswith("padded")]
    assert (padded["ok"], status) == ((True, 0) if masked else (False, 1)), found


def test_sample_of_a_recurrent_file_needs_no_sequence(check, tmp_path):
    shape = ("FP32", ("N", 2))
    write_graph(
        tmp_path / "m/model.onnx",
        [("Add", ["x", "h"], ["y"], {})],
        {"x": shape, "h": shape},
        {"y": shape},
    )
    (tmp_path / "m/model.yaml").write_text(
        "model: model.onnx\nstate: [{input: h, output: y}]\noutputs: [y]\n"
    )
    np.save(tmp_path / "x.npy", np.float32([[1, 2]]))
    status, found = compare(check, tmp_path / "m", "--sample", tmp_path / "x.npy")
    assert status == 0 and {one["result"] for one in found.values()} == {"is equal"}, found


def test_pictures_and_texts_are_samples(check, tmp_path):
    code = "from ksrv import Image, Float32\n\n\ndef inference(image: Image[8, 8, 3]) -> Float32[3]:\n    return image.mean(axis=(1, 2))\n"
    write_model(tmp_path / "models", "picture", code, "")
    ok, png = cv2.imencode(".png", np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    (tmp_path / "a.png").write_bytes(png.tobytes())
    status, found = compare(check, tmp_path / "models", "--sample", tmp_path / "a.png")
    assert ok and status == 0, found
    assert {one["result"] for one in found.values()} == {"is equal"}


def test_samples_that_cannot_run(check, tmp_path):
    write_double(tmp_path / "models")
    (tmp_path / "x.npy").write_bytes(b"nothing")
    done = check(tmp_path / "models", "--sample", tmp_path / "x.npy")
    assert done.exit_code == 1 and "x.npy of the model double cannot be read" in done.output
    np.save(tmp_path / "x.npy", np.ones((1, 5), np.float32))
    done = check(tmp_path / "models", "--sample", tmp_path / "x.npy")
    assert done.exit_code == 1 and "Error: " in done.output and "[-1, 4]" in done.output
    write_model(tmp_path / "models", "fails", FAILS, VECTOR)
    done = check(tmp_path / "models", "--sample", tmp_path / "x.npy")
    assert done.exit_code == 2 and "--sample is for one model, and PATHS have 2" in done.output
    done = check(tmp_path / "models", "--sample", tmp_path / "missing.npy")
    assert done.exit_code == 2 and "does not exist" in done.output

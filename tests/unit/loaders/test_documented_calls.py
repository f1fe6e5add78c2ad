"""The table of docs/handlers.md that says what `self.model` takes and returns: each example runs on its kind of file."""

import re

import numpy as np
import pytest

from ksrv.testing import load
from tests.support.model_files.format_files import (
    LAYERS,
    NET,
    compiled_package,
    exported,
    network,
    shared_object,
    state_of,
    write_onnx,
)
from tests.support.paths import ROOT

torch = pytest.importorskip("torch")

TEXT = (ROOT / "docs/handlers.md").read_text().partition("### What self.model takes")[2]
ROWS = re.findall(r"^\| (.*?) \| .* \| `(y = .*?)` \|$", TEXT.partition("\n## ")[0], re.MULTILINE)
X = np.float32([[1, -2, 3, 0.5], [0, 1, 0, -1]])
INPUTS = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"


def write_openvino(folder):
    openvino = pytest.importorskip("openvino")
    write_onnx(network(), folder / "source.onnx")
    made = openvino.convert_model(folder / "source.onnx")
    openvino.save_model(made, folder / "net.xml", compress_to_fp16=False)
    return "model: net.xml\n"


def write_script(folder):
    torch.jit.save(torch.jit.trace(network(), torch.zeros(1, 4)), folder / "net.pt")
    return f"model: net.pt\n{INPUTS}"


def write_class(folder):
    (folder / "net.py").write_text(NET)
    (folder / "layers.py").write_text(LAYERS)
    torch.save(state_of(network()), folder / "net.pth")
    return f"model: net.pth\nclass: net.py:Net\n{INPUTS}"


def write_named(folder):
    write_onnx(network(), folder / "net.onnx")
    return "model: net.onnx\nrename: {y: other}\n"


def write_plain(folder):
    write_onnx(network(), folder / "net.onnx")
    return "model: net.onnx\n"


def write_program(folder):
    torch.export.save(exported(network()), folder / "net.pt2")
    return "model: net.pt2\n"


def write_compiled(folder):
    (folder / "net.pt2").write_bytes(compiled_package().read_bytes())
    return f"model: net.pt2\n{INPUTS}"


def write_library(folder):
    (folder / "net.so").write_bytes(shared_object(compiled_package()))
    return f"model: net.so\n{INPUTS}"


WRITERS = {
    "`.onnx`": [write_plain],
    "`.xml`, `.tflite`, `saved_model.pb`": [write_openvino],
    "`.pt` (TorchScript)": [write_script],
    "`.pt`, `.pth`, `.safetensors` with `class:`": [write_class],
    "`model.safetensors` of transformers": [],  # tests/integration/packages has such folders
    "`.pt2` of `torch.export`": [write_program],
    "`.pt2` of AOTInductor, `.so`": [write_compiled, write_library],
    "with [`rename:`, `constants:` or `state:`](models.md#tensors-of-a-model-file)": [write_named],
}


def test_every_row_has_a_file():
    assert [kind for kind, _ in ROWS] == list(WRITERS)


@pytest.mark.parametrize(
    ("write", "line"),
    [
        pytest.param(write, line, id=write.__name__)
        for kind, line in ROWS
        for write in WRITERS.get(kind, ())
    ],
)
def test_example_answers_as_the_network(tmp_path, write, line):
    settings = write(tmp_path)
    if write is write_named:
        line = line.replace('"y"', '"other"')
    (tmp_path / "handler.py").write_text(
        "from ksrv import BaseHandler\n\n\nclass H(BaseHandler):\n"
        f"    def inference(self, x):\n        {line}\n        return {{'found': y}}\n"
    )
    (tmp_path / "model.yaml").write_text(f"handler: handler.py\n{settings}warmup: false\n")
    with load(tmp_path) as model:
        found = model.infer({"x": X})["found"]
    with torch.no_grad():
        assert np.allclose(found, network()(torch.from_numpy(X)).numpy(), atol=1e-5)

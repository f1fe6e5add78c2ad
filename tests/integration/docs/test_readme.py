"""README.md, followed from top to bottom in an empty folder that has the pictures and networks that it names."""

import json
import shutil
from importlib import resources

import cv2
import numpy as np
import pytest

from tests.support.documents import Reader, blocks_of
from tests.support.paths import ROOT

README = ROOT / "README.md"
CLASSES = 1000


def write_pictures(folder):
    folder.mkdir()
    # The photograph whose answers README shows.
    photograph = resources.files("sklearn.datasets.images") / "flower.jpg"
    (folder / "photo.jpg").write_bytes(photograph.read_bytes())
    for name in ("cat.jpg", "dog.png"):
        assert cv2.imwrite(str(folder / name), np.full((300, 400, 3), (30, 90, 200), np.uint8))


def write_networks(cats):
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    cats.mkdir(parents=True)
    (cats / "labels.json").write_text(json.dumps({str(n): f"class {n}" for n in range(CLASSES)}))
    network = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, CLASSES)
    )
    torch.jit.script(network.eval()).save(str(cats / "cats.pt"))
    helper, one = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights"], ["logits"]),
        ],
        "cats",
        [helper.make_tensor_value_info("image", one, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", one, ["N", CLASSES])],
        [helper.make_tensor("weights", one, (3, CLASSES), [0.0] * 3 * CLASSES)],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(cats / "cats.onnx"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_reader_gets_through(tmp_path):
    pytest.importorskip("sklearn")
    blocks = blocks_of(README)
    assert {block.language for block in blocks} == {"console", "sh", "python", "text", "yaml"}
    own = next(number for number, block in enumerate(blocks) if block.title.startswith("models/"))
    write_pictures(tmp_path / "work")
    reader = Reader(tmp_path)
    reader.follow(blocks[:own])
    write_networks(tmp_path / "work/models/cats")
    reader.follow(blocks[own:])


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 100


def test_every_fence_is_read():
    assert README.read_text().count("\n```") == 2 * len(blocks_of(README))

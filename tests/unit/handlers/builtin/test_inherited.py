"""Handlers can inherit from the four built-in handler classes."""

import io
import json

import numpy as np
import pytest

from ksrv.testing import load

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

NET = {
    "ImageClassifier": "return x.mean((2, 3))",
    "ImageSegmenter": "return {'out': x}",
    "ObjectDetector": """
        rows = len(x)
        scores = torch.tensor([[0.9, 0.6]]).repeat(rows, 1)
        return {"boxes": torch.ones(rows, 2, 4), "labels": torch.ones(rows, 2).long(), "scores": scores}
""",
}

HANDLER = """
from ksrv import {base}


class Mine({base}):
    def postprocess(self, outputs):
        answer = super().postprocess(outputs)
        return answer | {{"class": answer["class"] + 100}}
"""


def write(folder, base, forward, init="pass"):
    (folder / "handler.py").write_text(HANDLER.format(base=base))
    (folder / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {init}\n\n"
        f"    def forward(self, x, *more):\n        {forward.strip()}\n"
    )
    (folder / "model.yaml").write_text("handler: handler.py\nclass: net.py:Net\n")
    return folder


@pytest.mark.parametrize("base", NET)
def test_image_handler_can_be_subclassed(tmp_path, base):
    file = io.BytesIO()
    Image.fromarray(np.full((300, 300, 3), 90, np.uint8)).save(file, "PNG")
    with load(write(tmp_path, base, NET[base])) as model:
        answer = model.infer([file.getvalue()])
        assert answer["class"].min() >= 100
        assert len(answer) > 1


def test_text_classifier_can_be_subclassed(tmp_path):
    (tmp_path / "source_vocab.json").write_text(json.dumps({"<unk>": 0, "good": 1}))
    bag = "self.bag = torch.nn.EmbeddingBag(2, 3, mode='sum')"
    folder = write(tmp_path, "TextClassifier", "return self.bag(x, *more)", bag)
    with load(folder) as model:
        assert model.infer(["good"])["class"].min() >= 100

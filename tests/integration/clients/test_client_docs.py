"""The Python of docs/client.md, run unchanged but for the addresses."""

import re

import cv2
import numpy as np

from ksrv.testing import Server
from tests.support.models import write_double, write_model
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "client.md"

CATS = 'def inference(image): return {"probabilities": image.mean(axis=(1, 2))}\n'


STORYTELLER = """
def inference(text_input):
    for word in [*text_input[0].decode().split(), "the end"]:
        yield [word + " "]
"""


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    write_double(tmp_path / "models")
    write_model(
        tmp_path / "models", "cats", CATS,
        "inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]\n"
        "outputs: [{name: probabilities, datatype: FP32, shape: [-1, 3]}]\n",
    )  # fmt: skip
    write_model(
        tmp_path / "models", "storyteller", STORYTELLER,
        "inputs: [{name: text_input, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: text_output, datatype: BYTES, shape: [-1]}]\nwarmup: false\n",
    )  # fmt: skip
    for name in ("cat.jpg", "dog.png"):
        assert cv2.imwrite(str(tmp_path / name), np.zeros((20, 10, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names = {}
    with Server(tmp_path / "models") as server:
        for block in blocks:
            code = block.replace("http://127.0.0.1:8080", server.url)
            exec(code.replace("127.0.0.1:9000", server.grpc), names)
    printed = capsys.readouterr().out
    assert "404 " in printed and "9900.0" in printed and "cats  READY" in printed
    assert "Once upon a time the end" in printed

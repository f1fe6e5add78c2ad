"""Handlers of the pages on streams, composition and sequences, served with the parts that the pages leave out."""

import re
import sys

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server, load
from tests.support.documents import blocks_of, check_model_yaml
from tests.support.images import files
from tests.support.model_files.onnx_models import write_graph
from tests.support.models import write_model
from tests.support.paths import ROOT


def python_of(page):
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


LEFT_OUT = """
from ksrv import BaseHandler

def crop(image, boxes):
    return image[:, : int(boxes[0, 0])]


"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    root = tmp_path_factory.mktemp("fragments")
    _, asks = python_of("streams.md")
    storyteller = blocks_of(ROOT / "docs/streams.md")[0].text
    [pipeline] = python_of("composition.md")
    two = (
        "inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]\n"
    )
    write_model(
        root, "storyteller", storyteller,
        "inputs: [{name: text_input, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: text_output, datatype: BYTES, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(root, "resnet", "def inference(x):\n    return {'y': 2 * x}\n", two)
    write_model(root, "asks", LEFT_OUT + asks, two)
    write_model(
        root, "detector",
        "import numpy\n\ndef inference(image):\n"
        "    return {'box': numpy.ones((len(image), 4), 'f4')}\n",
        "inputs: [{name: image, datatype: FP32, shape: [-1, 2]}]\n"
        "outputs: [{name: box, datatype: FP32, shape: [-1, 4]}]\n",
    )  # fmt: skip
    write_model(
        root, "classifier", "def inference(crop):\n    return {'y': crop + 1}\n",
        "inputs: [{name: crop, datatype: FP32, shape: [-1, 1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]\n",
    )  # fmt: skip
    write_model(
        root, "pipeline", LEFT_OUT + pipeline,
        "inputs: [{name: image, datatype: FP32, shape: [-1, 2]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]\n",
    )  # fmt: skip
    with Server(root) as server, Client(server.url) as opened:
        yield opened


def test_the_storyteller_tells_a_client_in_parts(client, capsys):
    shown, _ = python_of("streams.md")
    exec(shown.replace("http://127.0.0.1:8080", client.url), {})
    assert capsys.readouterr().out == "and then it rained"


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [("asks", {"x": [[1, 2]]}, [[2, 4]]), ("pipeline", {"image": [[5, 7]]}, [[6]])],
)
def test_handlers_that_call_models_are_answered(client, model, given, expected):
    inputs = {name: np.array(value, np.float32) for name, value in given.items()}
    assert client.infer(model, inputs)["y"].tolist() == expected


def test_the_page_on_sequences_shows_its_example():
    [shown] = python_of("sequences.md")
    example = (ROOT / "examples/sequences/smoother/handler.py").read_text()
    lines = [line for line in shown.splitlines() if line.strip() != "..."]
    signature = "    def inference(self, value, sequences):"
    assert signature in lines
    for line in lines:
        assert line == signature or f"{line}\n" in example, line


def test_the_breakpoint_of_the_page_is_reached(tmp_path, monkeypatch):
    (block,) = [one for one in blocks_of(ROOT / "docs/debugging.md") if one.title == "paused.py"]
    (tmp_path / "paused.py").write_text(block.text)
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    with load(tmp_path / "paused.py") as model:
        assert stops == []
        assert model.infer([1, 2, 3])["output"].tolist() == [[2, 4, 6]]
    assert stops == [1]


def test_the_detector_of_the_page_answers_boxes_of_the_picture(tmp_path):
    settings, handler = (block.text for block in blocks_of(ROOT / "docs/pictures.md"))
    write_model(tmp_path, "yolo", handler, settings.replace("handler: handler.py\n", ""))
    write_graph(
        tmp_path / "yolo/1/yolo11n.onnx",
        [
            ("ReduceMean", ["images"], ["mean"], {"axes": [1, 2, 3], "keepdims": 0}),
            ("Mul", ["mean", "zero"], ["zeros"], {}),
            ("Reshape", ["zeros", "column"], ["rows"], {}),
            ("Add", ["rows", "box"], ["boxes"], {}),
        ],
        {"images": ("FP32", ("N", 3, 640, 640))},
        {"boxes": ("FP32", ("N", 1, 4))},
        {
            "zero": np.float32(0),
            "column": np.array([-1, 1, 1]),
            "box": np.array([[[320, 200, 640, 480]]], np.float32),
        },
    )
    with Server(tmp_path) as server, Client(server.url) as opened:
        got = opened.infer("yolo", {"images": [files.jpeg(320, 640), files.jpeg(640, 320)]})
    assert got["boxes"].tolist() == [[[320, 40, 640, 320]], [[160, 200, 320, 480]]]


def test_the_yolo_of_the_page_answers_labelled_boxes_of_the_picture(tmp_path):
    settings = blocks_of(ROOT / "docs/postprocess.md")[0].text
    (tmp_path / "model.yaml").write_text(settings)
    (tmp_path / "coco.txt").write_text("person\nbicycle\n")
    write_graph(
        tmp_path / "yolo11n.onnx",
        [
            ("ReduceMean", ["images"], ["mean"], {"axes": [1, 2, 3], "keepdims": 0}),
            ("Mul", ["mean", "zero"], ["zeros"], {}),
            ("Reshape", ["zeros", "column"], ["rows"], {}),
            ("Add", ["rows", "found"], ["output0"], {}),
        ],
        {"images": ("FP32", ("N", 3, 640, 640))},
        {"output0": ("FP32", ("N", 6, 2))},
        {
            "zero": np.float32(0),
            "column": np.array([-1, 1, 1]),
            "found": np.float32([[480, 340, 320, 280, 0.1, 0.9], [478, 340, 320, 280, 0.2, 0.8]]).T[None],
        },
    )  # fmt: skip
    with load(tmp_path) as model:
        got = model.infer({"images": [files.jpeg(320, 640), files.jpeg(640, 320)]})
    assert got["boxes"].tolist() == [[[320, 40, 640, 320]], [[160, 200, 320, 480]]]
    assert got["label"].tolist() == [[b"bicycle"], [b"bicycle"]]
    assert got["count"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("number", "name", "shape", "made"),
    [
        (1, "scores", (100,), ["class", "score", "label"]),
        (2, "scores", (100,), ["class", "score", "label", "count"]),
        (3, "characters", (10, 4), ["text", "score"]),
        (4, "alpha", (8, 8), ["alpha"]),
    ],
)
def test_the_other_steps_of_the_page_are_served(tmp_path, number, name, shape, made):
    steps = blocks_of(ROOT / "docs/postprocess.md")[number].text
    (tmp_path / "ppocr_keys_v1.txt").write_text("a\nb\n \n")
    (tmp_path / "labels.txt").write_text("\n".join(map(str, range(100))))
    (tmp_path / "model.yaml").write_text(f"model: m.onnx\nlabels: labels.txt\n{steps}")
    tensor = ("FP32", ("N", *shape))
    write_graph(
        tmp_path / "m.onnx", [("Identity", ["x"], [name], {})], {"x": tensor}, {name: tensor}
    )
    with load(tmp_path) as model:
        assert list(model.infer({"x": np.ones((2, *shape), np.float32)})) == made


def test_the_settings_of_devices_are_those_of_a_model():
    [settings] = [
        block for block in blocks_of(ROOT / "docs/devices.md") if block.language == "yaml"
    ]
    check_model_yaml(settings.text)

"""`image_processing` of a handler of one's own gets what TorchServe gives it: the file as Pillow opens it.

The pipelines run through a real server, in handler processes: a function that says what it got, a grey
MNIST pipeline of the stand-in for torchvision, and the built-in pipeline, which works on arrays.
"""

import json
import sys

import numpy as np
import pytest
import requests
import torch

from ksrv.dialects.torchserve.api.handlers import vision_handler
from ksrv.testing import Server
from tests.support.images import files

SEEN = """
import torch
from ts.torch_handler.vision_handler import VisionHandler


def seen(image):
    lazy = getattr(image, "fp", None) is not None
    Seen.last = [type(image).__module__, image.mode, list(image.size), image.format, lazy]
    return torch.zeros(1)


class Seen(VisionHandler):
    image_processing = staticmethod(seen)

    def initialize(self, context):
        self.context = context
        self.device = torch.device("cpu")

    def inference(self, data):
        return data

    def postprocess(self, data):
        return [self.last] * len(data)
"""
GREY = """
import torch
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class Digits(ImageClassifier):
    image_processing = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )

    def initialize(self, context):
        self.context = context
        self.device = torch.device("cpu")

    def inference(self, data):
        return data

    def postprocess(self, data):
        return data.tolist()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("pipelines")
    for name, handler in (("seen", SEEN), ("digits", GREY)):
        (root / name).mkdir()
        (root / name / "handler.py").write_text(handler)
        (root / name / "model.yaml").write_text("handler: handler.py\n")
    with Server(root, torchserve_api=True, start_timeout=120) as running:
        yield running


def predict(server, model, data):
    return requests.post(f"{server.url}/predictions/{model}", data=data, timeout=60)


@pytest.mark.parametrize(
    ("data", "mode", "form"),
    [
        (files.jpeg(20, 30), "RGB", "JPEG"),
        (files.jpeg(20, 30, "L"), "L", "JPEG"),
        (files.jpeg(20, 30, "CMYK"), "CMYK", "JPEG"),
        (files.png(20, 30, "P"), "P", "PNG"),
        (files.png(20, 30, "1"), "1", "PNG"),
        (files.rgba_png(20, 30), "RGBA", "PNG"),
        (files.oriented(20, 30, 6), "RGB", "JPEG"),
    ],
)
def test_a_pipeline_of_ones_own_gets_the_file_as_pillow_opens_it(server, data, mode, form):
    module, found, size, found_form, lazy = predict(server, "seen", data).json()
    assert module.startswith("PIL.")
    assert (found, size, found_form, lazy) == (mode, [30, 20], form, True)


def test_a_grey_pipeline_keeps_its_one_channel(server):
    data = files.png(28, 28, "L")
    answer = predict(server, "digits", data)
    assert answer.status_code == 200, answer.text
    grey = np.asarray(files.picture(28, 28, "L"), np.float32)
    expected = (torch.from_numpy(grey) / 255 - 0.1307) / 0.3081
    np.testing.assert_array_equal(json.loads(answer.content), expected[None].tolist())


def handler_of(base, **attributes):
    made = type("Own", (base,), attributes)()
    made.device = torch.device("cpu")
    return made


@pytest.mark.parametrize("base", ["ImageClassifier", "ImageSegmenter", "ObjectDetector"])
def test_the_built_in_pipelines_work_on_arrays(monkeypatch, base):
    images = (files.jpeg(40, 50, "L"), files.png(40, 50, "P"), files.rgba_png(40, 50))
    monkeypatch.setitem(sys.modules, "PIL", None)  # nothing can import Pillow
    handler = handler_of(getattr(vision_handler, base))
    for data in images:
        tensor = handler.preprocess([{"body": data}])
        assert tensor.shape[:2] == (1, 3)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
def test_the_stand_ins_pipelines_need_no_pillow(monkeypatch, mode, channels):
    from ksrv.dialects.torchserve.shims.transforms import Compose, ToTensor

    data = files.rgba_png(20, 30) if mode == "RGBA" else files.png(20, 30, mode)
    handler = handler_of(vision_handler.VisionHandler, image_processing=Compose([ToTensor()]))
    expected = handler.preprocess([{"body": data}])
    monkeypatch.setitem(sys.modules, "PIL", None)
    found = handler.preprocess([{"body": data}])
    assert found.shape == (1, channels, 20, 30)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)

"""Small files that would cost much: a real server refuses them before it decodes anything.

Both ways to a decoder are tested: a model's image input, and TorchServe's image handlers, which decode
in a separate process. The costs of the files are bounded, so that a server that decodes them stays
alive.
"""

import base64
import json
import struct

import cv2
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.faults.health import descendants
from tests.support.images import files
from tests.support.models import write_model

PIXELS = 'def inference(image): return {"pixels": image}\n'
INPUT = "inputs: [{name: image, datatype: UINT8, shape: [-1, 8, 8, 3]}]\n"
VISION = """
import torch
from ts.torch_handler.vision_handler import VisionHandler
from torchvision import transforms


class Vision(VisionHandler):
    image_processing = transforms.Compose([transforms.Resize((4, 4)), transforms.ToTensor()])

    def initialize(self, context):
        self.context = context
        self.device = torch.device("cpu")

    def inference(self, data):
        return data

    def postprocess(self, data):
        return [str(list(one.shape)) for one in data]
"""
BUILT_IN = """
import torch
from ts.torch_handler.object_detector import ObjectDetector


class Detector(ObjectDetector):
    def initialize(self, context):
        self.context = context
        self.device = torch.device("cpu")

    def inference(self, data):
        return data

    def postprocess(self, data):
        return [str(list(one.shape)) for one in data]
"""
MODELS = ("native", "vision", "built_in")
FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
ALL_FORMATS = INPUT.replace("3]}]", f"3], image: {{formats: [{', '.join(FORMATS)}]}}}}]")
ANNOUNCED = 100_000_000
IN_FLIGHT = 6 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("bombs")
    write_model(root, "native", PIXELS, INPUT)
    write_model(root, "formats", PIXELS, ALL_FORMATS)
    write_model(root, "vision", VISION, "")
    write_model(root, "built_in", BUILT_IN, "")
    limits = {"in_flight": IN_FLIGHT, "image_pixels": 4_000_000, "request_pixels": 5_000_000}
    with Server(root, torchserve_api=True, limits=limits, start_timeout=120) as running:
        yield running


def infer(server, model, *images):
    """Send images as one KServe request, as prefixed elements."""
    block = b"".join(len(image).to_bytes(4, "little") + image for image in images)
    tensor = {"name": "image" if model in ("native", "formats") else "data", "datatype": "BYTES"}
    tensor |= {"shape": [len(images)], "parameters": {"binary_data_size": len(block)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    url = f"{server.url}/v2/models/{model}/infer"
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return requests.post(url, data=head + block, headers=headers, timeout=60)


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.json()["error"]


def peak_memory(server):
    """The most that any process of the server has held, in bytes."""
    peaks = []
    for pid in descendants(server.pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            peaks += [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")]
    return max(peaks)


@pytest.mark.parametrize("model", MODELS)
def test_an_image_within_all_limits_is_decoded(server, model):
    for image in (files.jpeg(20, 30), files.jpeg_of_scans(94), files.png(20, 30)):
        assert infer(server, model, image).status_code == 200


@pytest.mark.parametrize("kind", [b"IDAT", b"tEXt", b"fdAT"])
def test_chunk_with_a_false_length_takes_no_memory(server, kind):
    bomb = files.png_announcing(kind, ANNOUNCED, b"x")
    assert len(bomb) < 100
    before = peak_memory(server)
    refused(infer(server, "native", bomb), 400, "image 0", f"announces {ANNOUNCED} bytes")
    for model in ("vision", "built_in"):
        assert infer(server, model, bomb).status_code == 500
        answer = requests.post(f"{server.url}/predictions/{model}", data=bomb, timeout=60)
        assert (answer.status_code, answer.json()["message"]) == (503, "Prediction failed")
    assert peak_memory(server) - before < ANNOUNCED // 2


@pytest.mark.parametrize("model", MODELS)
def test_scans_have_a_limit(server, model):
    bomb = files.jpeg_of_scans(95)
    refused(infer(server, model, bomb), 400, "has 95 scans", "above the 94", "--limits-image-scans")
    grey = files.jpeg(16, 16, "L", progressive=True)
    last = grey[grey.rindex(b"\xff\xda") : -2]
    refused(infer(server, model, grey[:-2] + last * 80 + b"\xff\xd9"), 400, "above the 74")


@pytest.mark.parametrize("model", MODELS)
def test_pixels_have_a_limit(server, model):
    refused(
        infer(server, model, files.png_claiming(3000, 3000)),
        400,
        "limit --limits-image-pixels (4000000 pixels)",
    )


def small(form):
    image = files.picture(20, 30, "P" if form == "gif" else "RGB")
    return files.encode(image, form.upper())


def claiming(form, side):
    """A file of 20x30 pixels whose header says that they are more."""
    data = bytearray(small(form))
    if form == "jpeg":
        return files.jpeg_claiming(side, side)
    if form == "png":
        return files.png_claiming(side, side)
    if form == "webp":
        at = data.index(b"\x9d\x01\x2a") + 3
        data[at : at + 4] = struct.pack("<HH", side, side)
    elif form == "gif":
        data[6:10] = struct.pack("<HH", side, side)
    elif form == "bmp":
        data[18:26] = struct.pack("<ii", side, side)
    else:
        for tag in (256, 257):  # ImageWidth and ImageLength, whose values are in the entries
            at = data.index(struct.pack("<HHI", tag, 4, 1)) + 8
            data[at : at + 4] = struct.pack("<I", side)
    return bytes(data)


def as_v2(server, image):
    return infer(server, "formats", image)


def as_data_url(server, image):
    url = f"data:image/any;base64,{base64.b64encode(image).decode()}"
    entry = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [url]}
    target = f"{server.url}/v2/models/formats/infer"
    return requests.post(target, json={"inputs": [entry]}, timeout=60)


def as_form(server, image):
    target = f"{server.url}/v2/models/formats/infer"
    return requests.post(target, files={"image": ("a", image)}, timeout=60)


def as_body(server, image):
    target = f"{server.url}/v2/models/formats/infer"
    return requests.post(target, data=image, headers={"Content-Type": "image/any"}, timeout=60)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("send", [as_v2, as_data_url, as_form, as_body])
def test_pixels_have_a_limit_in_every_format_and_dialect(server, form, send):
    assert send(server, small(form)).status_code == 200
    before = peak_memory(server)
    bomb = claiming(form, 9000)
    refused(
        send(server, bomb), 400, "9000x9000 pixels", "limit --limits-image-pixels (4000000 pixels)"
    )
    assert peak_memory(server) - before < 9000 * 9000
    assert send(server, small(form)).status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_the_pixels_of_a_request_have_a_limit(server, model):
    image = files.png(800, 800, "L")  # 0.64 million pixels and 1.3 MB while it is decoded
    if model == "native":
        image = cv2.imencode(".png", np.full((800, 800, 3), 7, np.uint8))[1].tobytes()
    answer = infer(server, model, *[image] * 8)
    refused(
        answer, 400, "5120000 pixels together", "limit --limits-request-pixels (5000000 pixels)"
    )
    assert infer(server, model, image).status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_decoded_bytes_count_as_in_flight(server, model):
    bomb = cv2.imencode(".png", np.zeros((1000, 1000, 3), np.uint16))[1].tobytes()
    assert len(bomb) < 20_000
    needed = 2 * 1000 * 1000 * 3 * 2
    refused(
        infer(server, model, bomb),
        413,
        f"needs {needed} bytes",
        f"limit --limits-in-flight ({IN_FLIGHT - IN_FLIGHT // 8} bytes)",
    )


@pytest.mark.parametrize("model", ["vision", "built_in"])
def test_torchserves_routes_say_which_limit(server, model):
    url = f"{server.url}/predictions/{model}"
    answer = requests.post(url, data=files.jpeg_of_scans(95), timeout=60)
    assert answer.status_code == 400
    assert "--limits-image-scans" in answer.json()["message"]

"""`batch.images` names the size and the place of each picture, whatever brings the picture to the handler."""

import base64
import concurrent.futures

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.request import ImagePlacement
from ksrv.testing import Server
from tests.support.images import files
from tests.support.models import write_model

PLACES = """
import numpy as np


def inference(image, batch):
    places = [
        [one.width, one.height, one.scale_x, one.scale_y, one.left, one.top] for one in batch.images
    ]
    for one in batch.images:
        assert (one.row_height, one.row_width) == image.shape[1:3]
    return {"places": np.array(places, np.float64), "rows": np.full(len(places), len(places), np.int32)}
"""
SECTION = """inputs:
  - {name: image, datatype: FP32, shape: SHAPE, image: {channels: convert, exif: apply, KEYS}}
batching: {max_batch_size: 8, max_delay_ms: 100}
"""
MODELS = {
    "boxed": ("[-1, 64, 64, 3]", "resize: letterbox"),
    "start": ("[-1, 64, 64, 3]", "resize: letterbox, align: start"),
    "cropped": ("[-1, 32, 32, 3]", "resize: pillow, shorter_side: 64"),
    "squashed": ("[-1, 32, 32, 3]", "resize: area, resize_to: [64, 40]"),
    "stretched": ("[-1, 32, 64, 3]", "resize: linear"),
    "text": ('[-1, 32, "64:640", 3]', "resize: letterbox, align: start"),
}
WIDE, TURNED = files.jpeg(50, 100), files.oriented(40, 80, 6)
PLACE_OF_WIDE = {
    "boxed": [100, 50, 0.64, 0.64, 0, 16],
    "start": [100, 50, 0.64, 0.64, 0, 0],
    "cropped": [100, 50, 1.28, 1.28, -48, -16],
    "squashed": [100, 50, 0.4, 1.28, -4, -16],
    "stretched": [100, 50, 0.64, 0.64, 0, 0],
    "text": [100, 50, 0.64, 0.64, 0, 0],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("placement")
    for name, (shape, keys) in MODELS.items():
        text = SECTION.replace("SHAPE", shape).replace("KEYS", keys)
        write_model(root, name, PLACES, text)
        write_model(root, f"{name}_process", PLACES, text + "executor: process\n")
    with Server(root, start_timeout=120) as running:
        yield running


def by_rest_binary(server, model, picture):
    with Client(server.url) as client:
        return client.infer(model, {"image": [picture]})["places"]


def by_grpc(server, model, picture):
    with Client(f"grpc://{server.grpc}") as client:
        return client.infer(model, {"image": [picture]})["places"]


def by_json(server, model, picture):
    entry = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(picture).decode()],
    }
    return answered(requests.post(url(server, model), json={"inputs": [entry]}, timeout=30))


def by_form(server, model, picture):
    return answered(requests.post(url(server, model), files={"image": picture}, timeout=30))


def by_body(server, model, picture):
    headers = {"Content-Type": "image/jpeg"}
    return answered(requests.post(url(server, model), data=picture, headers=headers, timeout=30))


def url(server, model):
    return f"{server.url}/v2/models/{model}/infer"


def answered(response):
    assert response.status_code == 200, response.text
    [places] = [one for one in response.json()["outputs"] if one["name"] == "places"]
    return np.array(places["data"]).reshape(places["shape"])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", ["", "_process"])
@pytest.mark.parametrize("ask", [by_rest_binary, by_grpc, by_json, by_form, by_body])
def test_each_way_brings_the_place_of_the_picture(server, ask, place, name):
    np.testing.assert_allclose(ask(server, name + place, WIDE), [PLACE_OF_WIDE[name]])


@pytest.mark.parametrize("ask", [by_rest_binary, by_json])
def test_a_turned_picture_has_the_size_that_is_seen(server, ask):
    np.testing.assert_allclose(ask(server, "boxed", TURNED), [[40, 80, 0.8, 0.8, 16, 0]])


@pytest.mark.parametrize("place", ["", "_process"])
def test_joined_requests_keep_their_places(server, place):
    pictures = [files.jpeg(50, 100 + 2 * number) for number in range(7)] + [files.png(30, 20)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asks = [by_rest_binary, by_json, by_form, by_grpc] * 2
        found = [
            pool.submit(ask, server, f"boxed{place}", one)
            for ask, one in zip(asks, pictures, strict=True)
        ]
        sizes = [one.result()[0, :2].tolist() for one in found]
    assert sizes == [[100 + 2 * number, 50] for number in range(7)] + [[20, 30]]


def test_pictures_of_one_request_have_a_place_each(server):
    with Client(server.url) as client:
        got = client.infer("text", {"image": [WIDE, files.png(32, 300)]})["places"]
    np.testing.assert_allclose(got, [PLACE_OF_WIDE["text"], [300, 32, 1, 1, 0, 0]])


@pytest.mark.parametrize("place", ["", "_process"])
def test_rows_sent_as_numbers_are_their_own_pictures(server, place):
    with Client(server.url) as client:
        rows = np.zeros((2, 32, 64, 3), np.float32)
        got = client.infer(f"stretched{place}", {"image": rows})["places"]
    assert got.tolist() == [[64, 32, 1, 1, 0, 0]] * 2


def test_boxes_are_mapped_back_and_cut():
    place = ImagePlacement(100, 50, 0.64, 0.64, 0.0, 16.0)
    boxes = np.array([[0, 16, 64, 48], [6.4, 22.4, 32, 40], [-9, 0, 99, 99]], np.float32)
    np.testing.assert_allclose(
        place.to_image(boxes), [[0, 0, 100, 50], [10, 10, 50, 37.5], [0, 0, 100, 50]], rtol=1e-6
    )
    assert place.to_image(boxes).dtype == np.float32

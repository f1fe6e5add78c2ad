"""Images as base64 in plain JSON, as MLServer's clients send them, through a real server."""

import base64

import numpy as np
import pytest
import requests

from ksrv.model.spec import ImageSpec
from ksrv.testing import Server
from tests.support.images import files, oracle

HANDLER = """
from ksrv import BaseHandler


class Sums(BaseHandler):
    def inference(self, x):
        return {"y": x}
"""
MODEL = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 20, 30, 3]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 20, 30, 3]}]
batching: {max_batch_size: 8}
"""
FILES = [files.jpeg(60, 90, seed=1), files.png(33, 57, seed=5), files.jpeg(97, 41, seed=2)]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    model = tmp_path_factory.mktemp("models") / "m"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (model / "model.yaml").write_text(MODEL)
    with Server(model.parent) as server:
        yield f"http://{server.http}/v2/models/m/infer"


def ask(address, data, content_type="base64", shape=None):
    entry = {"name": "x", "shape": shape or [len(data)], "datatype": "BYTES", "data": data}
    if content_type is not None:
        entry["parameters"] = {"content_type": content_type}
    return requests.post(address, json={"inputs": [entry]}, timeout=30)


def texts():
    return [base64.b64encode(file).decode() for file in FILES]


def test_images_are_decoded(address):
    answer = ask(address, texts())
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    got = np.array(output["data"], np.float32).reshape(output["shape"])
    wanted = [oracle.prepare(file, ImageSpec(), (20, 30, 3), "FP32") for file in FILES]
    np.testing.assert_array_equal(got, np.stack(wanted))


def test_a_nested_array_is_the_same(address):
    nested = ask(address, [[text] for text in texts()], shape=[3, 1])
    assert nested.status_code == 200, nested.text
    assert nested.json()["outputs"] == ask(address, texts()).json()["outputs"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[:-1], "with its padding (=)"),
        (lambda text: text + "\n", "is '\\n'; leave out line ends and blanks"),
        (lambda text: text[:40] + "-" + text[41:], "character 40 is '-'; this is base64url"),
        (lambda text: text[:40] + "é" + text[41:], "character 40 is '\\xe9'; expected the bytes"),
        (lambda text: "data:image/jpeg," + text, "a data URL has the form data:TYPE;base64,TEXT"),
        (lambda text: "https://host/picture.jpg", "ksrv fetches no URLs"),
    ],
)
def test_invalid_base64_is_refused_with_the_remedy(address, change, told):
    good = texts()
    answer = ask(address, [good[0], change(good[1]), good[2]])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "input 'x' (index 0): element 1 of 'data' is not base64" in error
    assert told in error


def test_base64_of_no_image_is_refused(address):
    answer = ask(address, [base64.b64encode(b"no image").decode()])
    assert answer.status_code == 400
    assert "no known image format" in answer.json()["error"]


@pytest.mark.parametrize("content_type", ["str", "pillow_image", 3])
def test_another_content_type_leaves_text_as_it_is(address, content_type):
    answer = ask(address, texts(), content_type)
    assert answer.status_code == 400
    assert "no known image format" in answer.json()["error"]

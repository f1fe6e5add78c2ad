"""One browser and one server of many kinds of models for the tests of a file."""

import cv2
import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.clients.browser import headless_chromium
from tests.support.models import DOUBLE, VECTOR, write_model

HOSTILE = '<img src=x onerror="alert(1)">'

IMAGE = (
    "inputs: [{name: image, datatype: FP32, shape: [-1, 32, 32, 3],\n"
    "          image: {color: RGB, channels: convert, resize: pillow%s}}]\n"
)

CLASSES = """
import numpy as np


def inference(image):
    scores = np.zeros((len(image), 7), np.float32)
    scores[:, 2], scores[:, 5], scores[:, 1] = 0.7, 0.2, 0.1
    return {"probabilities": scores}
"""

BRIGHT = """
import numpy as np


def inference(image):
    grey = image.mean(axis=3)
    return {"class": (grey > 128).astype(np.int32), "probability": (grey / 255).astype(np.float32)}
"""

BOXES = """
import numpy as np


def inference(image):
    rows = len(image)
    boxes = np.tile(np.float32([[8, 8, 24, 24], [0, 0, 4, 4], [0, 0, 0, 0]]), (rows, 1, 1))
    return {
        "boxes": boxes,
        "class": np.tile(np.int64([1, 0, -1]), (rows, 1)),
        "score": np.tile(np.float32([0.9, 0.3, 0]), (rows, 1)),
        "count": np.full(rows, 2, np.int32),
    }
"""

NEGATIVE = 'def inference(image): return {"picture": (255 - image).astype("uint8")}\n'

SHOUT = """
from ksrv import InferenceError


def inference(text):
    if any(b"fail" in one for one in text):
        raise InferenceError('no <img src=x onerror="alert(1)"> today', 422)
    return {"loud": [one.decode().upper() for one in text]}
"""

BROKEN = """
raise RuntimeError('<img src=x onerror="alert(1)"> is not there')
"""

WORDS = """
from ksrv import InferenceError


def inference(text):
    return [tell(bytes(one).decode()) for one in text]


def tell(text):
    for word in text.split():
        if word == "fail":
            raise InferenceError('<b onclick="alert(1)">no more</b>')
        yield b"\\xff\\xfe" if word == "binary" else word + " <i>"
"""

ODD = """
import numpy as np


def inference(image):
    rows = len(image)
    nan = np.full((rows, 4), np.nan, np.float32)
    nan[:, 1], nan[:, 2] = np.inf, -np.inf
    return {
        "boxes": np.zeros((rows, 0, 4), np.float32), "score": np.zeros((rows, 0), np.float32),
        "nothing": np.zeros((rows, 3, 0), np.float32), "weird": nan,
        "plane": np.full((rows, 8, 8), np.nan, np.float32),
        "bytes": [bytes([255, 254]) for _ in range(rows)],
    }
"""

FILES = """
import io
import wave

import cv2
import numpy as np


def inference(text):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    picture = cv2.imencode(".png", np.zeros((8, 16, 3), np.uint8))[1].tobytes()
    rows = len(text)
    return {"sound": [file.getvalue()] * rows, "picture": [picture] * rows, "table": [b"a,b"] * rows}
"""

MODEL_FREE = """
def handle(batch, context):
    return [len(one) for one in batch[next(iter(batch))].reshape(-1)]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    labels = (
        "labels: labels.json\noutputs: [{name: probabilities, datatype: FP32, shape: [-1, 7]}]\n"
    )
    write_model(root, "classes", CLASSES, IMAGE % "" + labels)
    (root / "classes/labels.json").write_text(
        '["zero", "one", "<img src=x onerror=\\"alert(1)\\">", "three", "four", "five", "six"]'
    )
    write_model(
        root, "bright", BRIGHT,
        IMAGE % ", shorter_side: 32" + "outputs: [{name: class, datatype: INT32, shape: [-1, 32, 32]},\n"
        "          {name: probability, datatype: FP32, shape: [-1, 32, 32]}]\nlabels: labels.txt\n",
    )  # fmt: skip
    (root / "bright/labels.txt").write_text("ground\nbright area\n")
    write_model(
        root, "boxes", BOXES,
        IMAGE % "" + "outputs: [{name: boxes, datatype: FP32, shape: [-1, -1, 4]},\n"
        "  {name: class, datatype: INT64, shape: [-1, -1]}, {name: score, datatype: FP32, shape: [-1, -1]},\n"
        "  {name: count, datatype: INT32, shape: [-1]}]\nlabels: labels.txt\n",
    )  # fmt: skip
    (root / "boxes/labels.txt").write_text("cat\ndog\n")
    write_model(
        root, "negative", NEGATIVE,
        IMAGE % "" + "outputs: [{name: picture, datatype: UINT8, shape: [-1, 32, 32, 3]}]\n",
    )  # fmt: skip
    write_model(
        root, "files", FILES,
        "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\noutputs:\n"
        "  - {name: sound, datatype: BYTES, shape: [-1], content_type: audio/wav}\n"
        "  - {name: picture, datatype: BYTES, shape: [-1], content_type: image/png}\n"
        "  - {name: table, datatype: BYTES, shape: [-1], content_type: text/csv}\n",
    )  # fmt: skip
    write_model(root, "double", DOUBLE, VECTOR)
    write_model(
        root, "half", DOUBLE.replace("x * 2", "x + x"),
        "inputs: [{name: x, datatype: FP16, shape: [-1, 3]}]\n"
        "outputs: [{name: y, datatype: FP16, shape: [-1, 3]}]\n",
    )  # fmt: skip
    write_model(
        root, "long", DOUBLE.replace("x * 2", "x"),
        "inputs: [{name: x, datatype: INT64, shape: [-1, 2]}]\n"
        "outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]\n",
    )  # fmt: skip
    write_model(
        root, "shout", SHOUT,
        "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: loud, datatype: BYTES, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(
        root, "words", WORDS,
        "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: said, datatype: BYTES, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(root, "odd", ODD, IMAGE % "")
    write_model(root, "broken", BROKEN, VECTOR)
    (root / "lengths").mkdir()
    (root / "lengths/handler.py").write_text(MODEL_FREE)
    return root


@pytest.fixture(scope="module")
def page_server(models):
    with Server(models, ready_when="any") as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with headless_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def photograph(tmp_path_factory):
    """A picture of 64 by 128 pixels: dark, with a bright square in the middle."""
    image = np.full((64, 128, 3), 20, np.uint8)
    image[16:48, 48:80] = 240
    path = tmp_path_factory.mktemp("pictures") / "it's a photo.png"
    cv2.imwrite(str(path), image)
    return path

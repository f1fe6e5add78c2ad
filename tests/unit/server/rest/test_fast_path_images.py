"""Encoded images on the fast path get the same answers, batches and refusals as in Python.

Each message is sent twice, as in `test_fast_path`: to a server with endpoints, and to a server where Python reads it.
"""

import contextlib
import io
import json
import random
import socket
import struct

import numpy as np
import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.images import jpeg
from ksrv.images.image_input import ImageInput
from tests.support.images import files
from tests.support.native.fast_path import ask, ask_both, posted, started, status
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import read_message

pytestmark = pytest.mark.skipif(
    jpeg.decoder() != "libjpeg-turbo", reason="without libjpeg-turbo images go through Python"
)

PIXELS = """
import time
from pathlib import Path

import numpy as np
from ksrv import BaseHandler


class Pixels(BaseHandler):
    def inference(self, image):
        here = Path(__file__).parent
        if (here / "hold").exists():
            (here / "began").touch()
            while (here / "hold").exists():
                time.sleep(0.002)
        rows = np.full((len(image), 1), len(image), np.int64)
        return {"pixels": image, "rows": rows if (here / "tell").exists() else rows * 0}
"""


def settings(shape="[-1, 8, 9, 3]", datatype="FP32", image="", more=""):
    section = f", image: {{{image}}}" if image else ""
    return f"""
handler: handler.py
timeout_ms: 60000
inputs: [{{name: image, datatype: {datatype}, shape: {shape}{section}}}]
outputs:
  - {{name: pixels, datatype: {datatype}, shape: {shape}}}
  - {{name: rows, datatype: INT64, shape: [-1, 1]}}
{more}"""


BATCHING = "batching: {max_batch_size: 8, max_delay_ms: 0}\n"
MODELS = {
    "linear": settings(),
    "bytes": settings(datatype="UINT8", image="resize: area, color: RGB, channels: convert"),
    "half": settings(datatype="BF16", image="scale: 255, mean: [0.5], std: [0.2]"),
    "letterbox": settings(image="resize: letterbox, color: RGB"),
    "crop": settings(
        "[-1, 12, 12, 3]",
        image="resize: pillow, shorter_side: 16, color: RGB, scale: 255, exif: apply",
    ),
    "enlarged": settings("[-1, 12, 12, 3]", "UINT8", "shorter_side: 64, exif: apply"),
    "planar": settings("[-1, 8, 8, 3]", "UINT8", "model_layout: NCHW, resize: letterbox").replace(
        "{name: pixels, datatype: UINT8, shape: [-1, 8, 8, 3]}",
        "{name: pixels, datatype: UINT8, shape: [-1, 3, 8, 8]}",
    ),
    "grey": settings("[-1, 8, 9, 1]", image="color: GRAY, channels: convert"),
    "as-it-is": settings("[-1, 16, 20, 3]", "UINT8", "resize: none"),
    "joined": settings(more=BATCHING),
    "separate": settings(more=BATCHING + "executor: process\n"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engine(folder):
    with started(folder, {name: (PIXELS, text) for name, text in MODELS.items()}) as engine:
        yield engine


def prefixed(*images):
    return b"".join(struct.pack("<I", len(one)) + one for one in images)


def message(model, raw, *, shape, size=None, datatype="BYTES", outputs=("pixels",)):
    """A binary request. `size` is its binary_data_size; False omits it."""
    entry = {"name": "image", "datatype": datatype, "shape": list(shape)}
    if size is not False:
        entry["parameters"] = {"binary_data_size": len(raw) if size is None else size}
    document = {"id": "one", "inputs": [entry], "parameters": {"binary_data_output": True}}
    document["outputs"] = [{"name": name} for name in outputs]
    return posted(model, json.dumps(document).encode(), raw)


def images(model, *sent, **more):
    return message(model, prefixed(*sent), shape=[len(sent)], **more)


def answered(reply):
    """Return the pixels' bytes, or the text of the error."""
    head, body = reply
    if status(head) != 200:
        return json.loads(body)["error"]
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"inference-header-content-length")
    )
    return body[length:]


@pytest.mark.parametrize("model", MODELS)
def test_jpegs_need_no_python_and_give_the_same_answer(fast, general, model):
    size = (16, 20) if model == "as-it-is" else (40, 31)
    sent = [files.jpeg(*size, seed=seed) for seed in range(3)]
    assert ask_both(fast, general, images(model, *sent)) == 1
    assert ask_both(fast, general, images(model, sent[0])) == 1


@pytest.mark.parametrize(
    ("raw", "shape", "size", "taken"),
    [
        pytest.param("bare", [1], None, 1, id="a bare image"),
        pytest.param("bare", [1], False, 1, id="a bare image without a size"),
        pytest.param("prefixed", [1], None, 1, id="one image behind its length"),
        pytest.param("prefixed", [2, 1], None, 1, id="two dimensions"),
        pytest.param("listed", [2], "sizes", 1, id="a list of sizes"),
        pytest.param("listed", [3], "sizes", 0, id="fewer sizes than images"),
        pytest.param("prefixed", [3], None, 0, id="fewer images than announced"),
        pytest.param("prefixed", [1, 2], None, 0, id="an image in the second dimension"),
        pytest.param("prefixed", [0], None, 0, id="no image"),
        pytest.param("short", [2], None, 0, id="an element that ends too early"),
        pytest.param("empty", [2], None, 0, id="an empty element"),
        pytest.param("nothing", [1], False, 0, id="no byte"),
        pytest.param("trailing", [2], None, 0, id="bytes after the last element"),
    ],
)
def test_every_form_of_elements(fast, general, raw, shape, size, taken):
    sent = [files.jpeg(20, 30, seed=seed) for seed in range(2)]
    sent = sent[:1] if shape == [1] else sent
    body = {
        "bare": sent[0],
        "prefixed": prefixed(*sent),
        "listed": b"".join(sent),
        "short": prefixed(*sent)[:-1],
        "empty": prefixed(sent[0], b""),
        "nothing": b"",
        "trailing": prefixed(*sent) + b"x",
    }[raw]
    if size == "sizes":
        size = ",".join(str(len(one)) for one in sent)
    assert ask_both(fast, general, message("linear", body, shape=shape, size=size)) == taken


UNUSUAL = {
    "PNG": files.png(20, 30),
    "grey": files.jpeg(20, 30, "L"),
    "CMYK": files.jpeg(20, 30, "CMYK"),
    "progressive": files.jpeg(20, 30, progressive=True),
    "turned": files.oriented(20, 30, 6),
    "claims no pixels": files.jpeg_claiming(0, 30),
    "claims many pixels": files.jpeg_claiming(65000, 65000),
    "claims other pixels": files.jpeg_claiming(300, 200),
    "truncated": files.jpeg(120, 130)[:-900],
    "without a scan": files.jpeg(20, 30)[:300],
    "no image": b"What is this?" * 20,
    "magic alone": b"\xff\xd8\xff",
    "a byte behind the end": files.jpeg(20, 30) + b"x",
    "thin": files.jpeg(1, 65000),
    "thin and turned": files.oriented(1, 65000, 6),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize(
    "model", ["linear", "bytes", "letterbox", "crop", "enlarged", "grey", "as-it-is", "joined"]
)
def test_unusual_and_wrong_images_are_answered_as_python_does(fast, general, model, kind):
    good = files.jpeg(16, 20)
    ask_both(fast, general, images(model, UNUSUAL[kind]))
    ask_both(fast, general, images(model, good, UNUSUAL[kind], good))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_that_are_turned_need_no_python(fast, general, orientation):
    sent = [files.oriented(20, 47, orientation), files.jpeg(30, 20)]
    assert ask_both(fast, general, images("crop", *sent)) == 1


def test_damaged_images_of_every_kind_are_answered_as_python_does(fast, general):
    source = random.Random(14)
    whole = [files.jpeg(24, 32), files.jpeg(24, 32, "L"), files.jpeg(24, 32, progressive=True)]
    taken = 0
    for _ in range(150):
        data = bytearray(source.choice(whole))
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(2, max(3, len(data)))
            if source.random() < 0.2:
                del data[at:]
            else:
                data[at : at + 1] = bytes([source.randrange(256)])
        model = source.choice(["bytes", "letterbox", "crop"])
        taken += ask_both(fast, general, images(model, bytes(data), whole[0]))
    assert taken > 20  # most damage is after the header


def test_raw_tensors_and_images_of_one_input_are_both_taken(fast, general):
    raw = np.arange(2 * 8 * 9 * 3, dtype="<f4").reshape(2, 8, 9, 3)
    sent = message("linear", raw.tobytes(), shape=raw.shape, datatype="FP32")
    ask_both(fast, general, sent)
    assert ask_both(fast, general, images("linear", files.jpeg(30, 30))) == 1


@contextlib.contextmanager
def held(folder, model):
    """The handler of a model keeps its first batch until the block ends."""
    (folder / model / "began").unlink(missing_ok=True)
    (folder / model / "hold").touch()
    try:
        yield lambda: (folder / model / "began").exists()
    finally:
        (folder / model / "hold").unlink()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("model", ["joined", "separate"])
def test_requests_are_joined_and_bad_ones_fail_alone(fast, general, engine, folder, model, ahead):
    sent = [
        images(model, files.jpeg(20, 30, seed=1)),
        images(model, files.jpeg(33, 21, seed=2), files.jpeg(20, 30, "L", progressive=True)),
        images(model, files.jpeg(20, 30, seed=3), files.jpeg(200, 300)[:-2000]),
        message(
            model, np.full((1, 8, 9, 3), 7, "<f4").tobytes(), shape=[1, 8, 9, 3], datatype="FP32"
        ),
        images(model, files.png(14, 15)),
        images(model, files.jpeg(16, 16, seed=5), files.jpeg(17, 16, seed=6)),
    ]
    wanted = [answered(ask(general[1], one)) for one in sent]
    assert wanted[2].startswith("image 1 of the input 'image' is not a whole JPEG")
    queue = engine.find(model).queue
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(fast[1], 60)) for _ in sent]
        first = stack.enter_context(socket.create_connection(fast[1], 60))
        with held(folder, model) as began:
            first.sendall(images(model, files.jpeg(9, 9)))
            wait_until(began)
            queue.may_prefetch = ahead
            for count, (client, one) in enumerate(zip(clients, sent, strict=True), 2):
                client.sendall(one)
                wait_until(lambda count=count: queue.counts()["pushed"] >= count and queue.open)
            (folder / model / "tell").touch()
        try:
            got = [answered(read_message(client)[:2]) for client in clients]
            assert status(read_message(first)[0]) == 200
        finally:
            (folder / model / "tell").unlink()
    assert got == wanted


def test_rows_of_a_rejected_request_are_reused(fast, engine, folder, monkeypatch):
    def raw(value):
        rows = np.full((1, 8, 9, 3), value, "<f4").tobytes()
        return message("joined", rows, shape=[1, 8, 9, 3], datatype="FP32")

    def without_memory(*_):
        raise MemoryError

    queue = engine.find("joined").queue
    with contextlib.ExitStack() as stack:
        first, one, bad, two = [
            stack.enter_context(socket.create_connection(fast[1], 60)) for _ in range(4)
        ]
        with held(folder, "joined") as began:
            first.sendall(images("joined", files.jpeg(9, 9)))
            wait_until(began)
            queue.may_prefetch = True
            one.sendall(raw(1))
            wait_until(lambda: queue.counts()["pushed"] >= 2 and queue.open)
            monkeypatch.setattr(ImageInput, "header", without_memory)
            bad.sendall(images("joined", files.png(14, 15)))
            refused = read_message(bad)[:2]
            monkeypatch.undo()
            two.sendall(raw(2))
            wait_until(lambda: queue.counts()["pushed"] >= 4 and queue.open)
        got = [status(read_message(client)[0]) for client in (first, one, two)]
    assert got == [200] * 3 and status(refused[0]) >= 500


def test_images_whose_clients_are_gone_are_not_decoded_and_leave_nothing(fast, engine, folder):
    held_before = PROCESS.held
    queue = engine.find("joined").queue
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(fast[1], 60))
        with held(folder, "joined") as began:
            first.sendall(images("joined", files.jpeg(9, 9)))
            wait_until(began)
            cancelled = queue.counts()["cancelled"]
            for seed in range(4):
                with socket.create_connection(fast[1], 60) as client:
                    client.sendall(images("joined", files.jpeg(400, 300, seed=seed)))
                    wait_until(lambda seed=seed: queue.open >= 2 or seed)
            stays = stack.enter_context(socket.create_connection(fast[1], 60))
            stays.sendall(images("joined", files.jpeg(20, 30)))
            wait_until(lambda: queue.counts()["cancelled"] >= cancelled + 4)
        assert status(read_message(first)[0]) == 200
        assert status(read_message(stays)[0]) == 200
    wait_until(lambda: PROCESS.held == held_before)


def test_without_room_for_the_decoder_the_refusal_is_the_same(fast, general):
    bound = PROCESS.bound
    sent = images("linear", files.jpeg(300, 2000))
    PROCESS.bound = PROCESS.held + 300_000
    try:
        ask_both(fast, general, sent)
        assert "while it is decoded" in answered(ask(fast[1], sent))
    finally:
        PROCESS.bound = bound
    assert ask_both(fast, general, sent) == 1


def test_more_images_than_are_noted_go_through_python(fast, general):
    one = io.BytesIO()
    files.picture(8, 9).save(one, "JPEG")
    assert ask_both(fast, general, images("linear", *[one.getvalue()] * 300)) == 0

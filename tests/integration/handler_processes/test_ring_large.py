"""Large tensors and images on their way to handler processes: without Python, and whose bytes are whose."""

import json
import os
import socket

import numpy as np
import pytest

from ksrv._native.process.batch_ring import WorkerRing
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.images import jpeg
from ksrv.testing import Server
from tests.support.images import files as image_files
from tests.support.models import write_model
from tests.support.native.fast_path import ask, message, opened, posted, serving, status
from tests.support.wait_until import wait_until

HEIGHT, WIDTH = 120, 100
HANDLER = """
import numpy as np


def inference(x, n=None):
    flags = np.full((len(x), 1), bool(x.flags.writeable and x.flags.c_contiguous))
    return {"sum": x.astype("f8").sum((1, 2, 3))[:, None], "flags": flags}
"""
ECHO = 'def inference(x): return {"pixels": x}\n'
ANSWERED = f"outputs: [{{name: pixels, datatype: FP32, shape: [-1, {HEIGHT}, {WIDTH}, 3]}}]\n"
SETTINGS = f"""
inputs:
  - {{name: x, datatype: FP32, shape: [-1, {HEIGHT}, {WIDTH}, 3]}}
executor: process
timeout_ms: 60000
"""
PAIR = SETTINGS.replace("executor", "  - {name: n, datatype: FP32, shape: [-1, 4]}\nexecutor")
JOINED = "batching: {max_batch_size: 8, max_delay_ms: 20}\n"
HERE = SETTINGS.replace("executor: process\n", "")
TURNED = SETTINGS.replace("3]}", "3], image: {exif: apply}}")


def pixels(seed: int, rows: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 256, (rows, HEIGHT, WIDTH, 3))
    return values.astype("<f4")


def sums_of(x: np.ndarray) -> list[float]:
    return [float(value) for value in x.astype("f8").sum((1, 2, 3))]


def outputs_of(head: bytes, body: bytes) -> dict[str, np.ndarray]:
    assert status(head) == 200, body[:400]
    (length,) = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"inference-header-content-length")
    ]
    found, at = {}, length
    for one in json.loads(body[:length])["outputs"]:
        dtype = {"FP64": "<f8", "BOOL": "?", "FP32": "<f4"}[one["datatype"]]
        count = int(np.prod(one["shape"]))
        found[one["name"]] = np.frombuffer(body, dtype, count, at).reshape(one["shape"])
        at += found[one["name"]].nbytes
    return found


def jpegs_message(model: str, files: list[bytes]) -> bytes:
    """A request whose input is JPEGs; read as FP32 pixels."""
    raw = b"".join(len(one).to_bytes(4, "little") + one for one in files)
    entry = {"name": "x", "datatype": "BYTES", "shape": [len(files)]}
    entry["parameters"] = {"binary_data_size": len(raw)}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    text = json.dumps(document).encode()
    return posted(model, text, raw)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    write_model(root, "separate", HANDLER, SETTINGS)
    write_model(root, "joined", HANDLER, SETTINGS + JOINED)
    write_model(root, "here", HANDLER, HERE + JOINED)
    write_model(root, "turned-separate", ECHO, TURNED + ANSWERED)
    write_model(root, "turned-joined", ECHO, TURNED + ANSWERED + JOINED)
    write_model(root, "turned-here", ECHO, TURNED.replace("executor: process\n", "") + ANSWERED)
    with Server(root) as running:
        running.address = ("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
        yield running


@pytest.fixture
def no_python(monkeypatch):
    def run(self, batch, deadline_ns):
        raise AssertionError("the executor ran a batch")

    monkeypatch.setattr(ProcessExecutor, "run", run)


@pytest.mark.parametrize("joined", ["", JOINED])
@pytest.mark.usefixtures("no_python")
def test_large_tensors_need_no_python(tmp_path, joined):
    settings = "handler: handler.py" + PAIR + "warmup: false\n" + joined
    with serving(tmp_path / "m", HANDLER, settings) as engine, opened(engine) as (_, address):
        for number in range(12):
            rows = 1 + number % 5
            x, n = pixels(number, rows), np.zeros((rows, 4), "<f4")
            found = outputs_of(*ask(address, message("m", {"x": x, "n": n})))
            assert found["sum"].ravel().tolist() == sums_of(x)
            assert found["flags"].all()
        assert engine.find("m", "").statistics().success.count == 12


@pytest.mark.skipif(
    jpeg.decoder() != "libjpeg-turbo", reason="without libjpeg-turbo images go through Python"
)
@pytest.mark.parametrize("joined", ["", JOINED])
def test_jpegs_need_no_python(tmp_path, monkeypatch, joined):
    """But for those behind a run that took long, whose successors a thread of Python's decodes beside it."""
    ran: list[int] = []
    run = ProcessExecutor.run

    def count(self, batch, deadline_ns):
        ran.append(batch.rows)
        return run(self, batch, deadline_ns)

    monkeypatch.setattr(ProcessExecutor, "run", count)
    settings = "handler: handler.py" + SETTINGS + "warmup: false\n" + joined
    with serving(tmp_path / "m", HANDLER, settings) as engine, opened(engine) as (_, address):
        sent = 0

        def needs_none() -> bool:
            nonlocal sent
            sent += 1
            before = len(ran)
            files = [image_files.jpeg(40 + sent % 9, 50, seed=k) for k in range(1 + sent % 3)]
            found = outputs_of(*ask(address, jpegs_message("m", files)))
            assert found["sum"].shape == (len(files), 1)
            return len(ran) == before

        for _ in range(12):
            wait_until(needs_none)
        assert engine.find("m", "").statistics().success.count == sent


@pytest.mark.parametrize("model", ["turned-separate", "turned-joined"])
def test_jpegs_are_rotated_by_exif(served, model):
    """All orientations in one batch and each alone, with the pixels of the inline executor."""

    def pixels_of(name: str, files: list[bytes]) -> np.ndarray:
        return outputs_of(*ask(served.address, jpegs_message(name, files)))["pixels"]

    for height, width in ((HEIGHT, WIDTH), (37, 211), (301, 90)):
        files = [image_files.oriented(height, width, one) for one in range(1, 9)]
        here = pixels_of("turned-here", files)
        assert len({one.tobytes() for one in here}) == 8
        assert np.array_equal(pixels_of(model, files), here)
        for row, file in enumerate(files):
            assert np.array_equal(pixels_of(model, [file])[0], here[row])


@pytest.mark.parametrize("model", ["separate", "joined"])
def test_images_left_to_cv2_get_the_same_errors(served, model):
    whole = image_files.jpeg(60, 60)
    for bad in (whole[: len(whole) // 2], whole[:-40], image_files.png(20, 30), b"no image at all"):
        for files in ([bad], [whole, bad], [bad, whole]):
            far, here = (
                ask(served.address, jpegs_message(name, files)) for name in (model, "here")
            )
            assert status(far[0]) == status(here[0])
            if status(far[0]) == 200:
                assert np.array_equal(outputs_of(*far)["sum"], outputs_of(*here)["sum"])
            else:
                assert far[1].replace(model.encode(), b"here") == here[1]
        again = outputs_of(*ask(served.address, jpegs_message(model, [whole])))
        assert again["sum"].shape == (1, 1)


def test_large_places_take_no_memory_before_they_are_used():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        ring = WorkerRing(left.fileno())
        assert os.fstat(ring.fileno()).st_blocks * 512 < 2 << 20 < os.fstat(ring.fileno()).st_size

"""Encoded images into a batch, beside libjpeg-turbo that decodes into a reused buffer.

Each group is one row: `limit` is the cheapest honest way (libjpeg-turbo through simplejpeg, into touched
memory, and cv2's resize of bytes, which are cast afterwards), `python` the code that a careful author writes with
cv2 and numpy.
malloc is tuned as in a worker; measure in a fresh process, since the gain depends on its history.
"""

from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from sklearn.datasets import load_sample_image

from ksrv._native.images import image_header
from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.memory import buffer_pool
from ksrv.errors import InvalidRequest
from ksrv.images import opencv
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images.oracle import opencv_arithmetic

IMAGES = 8


@pytest.fixture(scope="module", autouse=True)
def worker_settings() -> None:
    buffer_pool.tune_malloc()
    opencv.own_process()


@pytest.fixture(scope="module")
def photographs() -> Any:
    """Eight different 640x427 JPEGs of about 100 KB, quality 90, 4:2:0."""
    china = load_sample_image("china.jpg")[:, :, ::-1]
    quality = [cv2.IMWRITE_JPEG_QUALITY, 90]
    return [
        cv2.imencode(".jpg", np.roll(china, 16 * i, axis=1), quality)[1].tobytes()
        for i in range(IMAGES)
    ]


@pytest.fixture(scope="module", params=[90, 50, 75, 95, 98])
def large(request: Any) -> Any:
    """One JPEG of 12 megapixels and its quality."""
    china = load_sample_image("china.jpg")[:, :, ::-1]
    quality = [cv2.IMWRITE_JPEG_QUALITY, request.param]
    return request.param, cv2.imencode(".jpg", cv2.resize(china, (4000, 3000)), quality)[
        1
    ].tobytes()


def preparer(threads: Any, datatype: str = "UINT8", **keys: Any) -> Any:
    spec = TensorSpec("image", datatype, (-1, 224, 224, 3), ImageSpec(**keys))
    return ImagePreparer(spec, Limits(), pool=DecodePool(threads))


def turbo(elements: Any, out: Any, buffer: Any, small: Any = None) -> None:
    """Decode and resize with nothing else around it; cast from `small` if that is given."""
    for row, data in enumerate(elements):
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        pixels = buffer[: height * width * 3].reshape(height, width, 3)
        simplejpeg.decode_jpeg(data, "BGR", buffer=pixels)
        cv2.resize(pixels, (224, 224), dst=out[row] if small is None else small)
        if small is not None:
            np.copyto(out[row], small)


def careful_author(elements: Any, out: Any) -> None:
    for row, data in enumerate(elements):
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        out[row] = cv2.resize(pixels.astype(out.dtype), (224, 224))


@pytest.mark.parametrize("way", ["limit", "python", "ksrv", "ksrv-2-threads"])
@pytest.mark.parametrize("datatype", ["UINT8", "FP32"])
def test_eight_photographs(benchmark: Any, photographs: Any, datatype: str, way: Any) -> None:
    dtype = np.uint8 if datatype == "UINT8" else np.float32
    out = np.zeros((IMAGES, 224, 224, 3), dtype)
    buffer = np.zeros(640 * 427 * 3, np.uint8)
    small = np.zeros((224, 224, 3), np.uint8) if datatype == "FP32" else None
    single, two = preparer(1, datatype), preparer(2, datatype)
    run = {
        "limit": lambda: turbo(photographs, out, buffer, small),
        "python": lambda: careful_author(photographs, out),
        "ksrv": lambda: single.prepare(photographs, out),
        "ksrv-2-threads": lambda: two.prepare(photographs, out),
    }[way]
    benchmark.group = f"image: 8 JPEGs 640x427 to 224x224, {datatype}"
    # Long enough for the kernel to find a second processor, if the machine has two.
    benchmark.pedantic(run, rounds=100, warmup_rounds=10)
    if way.startswith("ksrv"):
        wanted = np.empty_like(out)
        with opencv_arithmetic():
            careful_author(photographs, wanted)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("way", ["limit", "full", "reduced", "library reduced"])
def test_twelve_megapixels(benchmark: Any, large: Any, way: Any) -> None:
    """`library reduced` is libjpeg-turbo's own scaled decode: what `reduced` cannot be quicker than."""
    quality, file = large
    out = np.zeros((1, 224, 224, 3), np.uint8)
    buffer = np.zeros(4000 * 3000 * 3, np.uint8).reshape(3000, 4000, 3)
    eighth = np.zeros((375, 500, 3), np.uint8)
    full, reduced = preparer(1), preparer(1, reduced="auto")
    run = {
        "limit": lambda: simplejpeg.decode_jpeg(file, "BGR", buffer=buffer),
        "full": lambda: full.prepare([file], out),
        "reduced": lambda: reduced.prepare([file], out),
        "library reduced": lambda: simplejpeg.decode_jpeg(
            file, "BGR", min_height=375, min_width=500, min_factor=1, buffer=eighth
        ),
    }[way]
    # The promise is that of quality 90; the others show how it depends on that.
    benchmark.group = "image: 12 MP JPEG to 224x224 (limit: full decode)"
    if quality != 90:
        benchmark.group = f"image: quality {quality}, 12 MP JPEG to 224x224 (limit: full decode)"
    benchmark.pedantic(run, rounds=10, warmup_rounds=2)


@pytest.mark.parametrize("way", ["limit", "ksrv"])
def test_small_images(benchmark: Any, way: Any) -> None:
    china = cv2.resize(load_sample_image("china.jpg"), (224, 224))
    elements = [cv2.imencode(".jpg", np.roll(china, i, axis=0))[1].tobytes() for i in range(16)]
    out = np.zeros((16, 224, 224, 3), np.uint8)
    buffer = np.zeros(224 * 224 * 3, np.uint8)
    single = preparer(1)
    run = {
        "limit": lambda: turbo(elements, out, buffer),
        "ksrv": lambda: single.prepare(elements, out),
    }[way]
    benchmark.group = "image: 16 JPEGs 224x224, no resize"
    benchmark.pedantic(run, rounds=25, warmup_rounds=3)


@pytest.mark.parametrize("way", ["limit", "ksrv", "bomb"])
def test_header(benchmark: Any, photographs: Any, way: Any) -> None:
    data = photographs[0]
    bomb = bytearray(cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes())
    frame = bomb.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = (30000).to_bytes(2, "big") * 2
    prepare = preparer(1)

    def refuse() -> Any:
        try:
            prepare.check([bytes(bomb)], 1)
        except InvalidRequest as error:
            return error
        raise AssertionError("the bomb was accepted")

    run = {
        "limit": lambda: simplejpeg.decode_jpeg_header(data),
        "ksrv": lambda: image_header.probe(data),
        "bomb": refuse,
    }[way]
    benchmark.group = "image: header check (limit: a library's header call; bomb: whole refusal)"
    benchmark(run)

"""The memory of images during decoding: limited together with the requests' memory, and never leaked."""

import threading

import numpy as np
import pytest

from ksrv._native.images import decode_memory as native
from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.errors import BodyTooLarge
from ksrv.images import decode_memory as memory
from ksrv.images import jpeg
from ksrv.images.decode_memory import NoRoom
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files, oracle
from tests.support.wait_until import wait_until


@pytest.fixture(autouse=True)
def bound():
    before = PROCESS.bound
    held = PROCESS.held
    PROCESS.bound = held + 100
    yield
    PROCESS.bound = before
    assert PROCESS.held == held


def test_reservation_fails_at_once_without_other_images():
    assert PROCESS.reserve(50, small=True)  # a request's body
    try:
        with pytest.raises(NoRoom, match="needs 60 bytes"):
            memory.take(60)
    finally:
        PROCESS.give_back(50)


def test_image_waits_for_another_image():
    assert memory.take(80)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(memory.take(70)))
    waiting.start()
    wait_until(lambda: native.waiting())
    assert not taken
    memory.give_back(80)
    waiting.join(60)
    assert taken == [True]
    memory.give_back(70)


def test_cancelled_image_does_not_wait():
    assert memory.take(80)
    assert memory.take(70, lambda: True) is False
    memory.give_back(80)


@pytest.mark.parametrize("resize", ["linear", "letterbox"])
def test_images_that_are_decoded_by_rows_need_no_room_for_whole_pictures(resize, monkeypatch):
    if "libjpeg-turbo" not in jpeg.present_decoders():
        pytest.skip("ksrv was built without libjpeg-turbo")
    spec = TensorSpec("x", "UINT8", (-1, 32, 32, 3), ImageSpec(resize=resize, exif="apply"))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(4))
    sent = [files.jpeg(700, 1000, seed=seed) for seed in range(4)]
    wanted, out = np.empty((4, 32, 32, 3), np.uint8), np.empty((4, 32, 32, 3), np.uint8)
    PROCESS.bound, before = 1 << 40, PROCESS.held
    assert prepare.prepare(sent, wanted) == [None] * 4
    # Enough for one image at a time.
    PROCESS.bound = before + 600_000
    monkeypatch.setattr(jpeg, "decoder", lambda: "libjpeg-turbo")
    assert prepare.prepare(sent, out) == [None] * 4
    np.testing.assert_array_equal(out, wanted)
    monkeypatch.setattr(jpeg, "decoder", lambda: "cv2")
    errors = prepare.prepare(sent, out)
    assert all("while it is decoded" in str(error) for error in errors)
    assert not out.any()
    assert PROCESS.held == before


def test_turned_grey_picture_reserves_memory_for_colours(monkeypatch):
    if "libjpeg-turbo" not in jpeg.present_decoders():
        pytest.skip("ksrv was built without libjpeg-turbo")
    monkeypatch.setattr(jpeg, "decoder", lambda: "libjpeg-turbo")
    keys = {"resize": "area", "exif": "apply", "channels": "convert"}
    spec = TensorSpec("x", "UINT8", (-1, 32, 32, 3), ImageSpec(**keys))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(1))
    exif = files.Image.Exif()
    exif[0x0112] = 6
    sent = [files.jpeg(1500, 2000, "L", exif=exif)]
    out = np.empty((1, 32, 32, 3), np.uint8)
    before = PROCESS.held
    # More than one byte per pixel, but less than the two that are counted for cv2.
    PROCESS.bound = before + 5_000_000
    (error,) = prepare.prepare(sent, out)
    assert "while it is decoded" in str(error)
    assert not out.any()
    PROCESS.bound = before + 12_000_000
    assert prepare.prepare(sent, out) == [None]
    assert out.any()
    assert PROCESS.held == before


@pytest.mark.parametrize(
    ("resize", "kind", "whole"),
    [
        ("linear", "UINT8", 3), ("linear", "FP64", 24), ("linear", "INT8", 3), ("area", "FP32", 3), ("pillow", "UINT8", 0),
        ("linear", "FP32", 0),
    ],
)  # fmt: skip
def test_resize_before_a_crop_reserves_memory(resize, kind, whole):
    spec = TensorSpec("x", kind, (-1, 8, 8, 3), ImageSpec(resize=resize, shorter_side=100))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(1))
    sent = [files.png(1, 100)]  # 100 x 10,000 pixels between
    out = np.empty((1, 8, 8, 3), oracle.NUMPY[kind])
    before = PROCESS.held
    PROCESS.bound = before + max(whole * 1_000_000, 10_000)
    (error,) = prepare.prepare(sent, out)
    if whole:
        assert isinstance(error, BodyTooLarge) and "while it is decoded" in str(error)
        PROCESS.bound += whole * 200_000
        (error,) = prepare.prepare(sent, out)
    assert error is None
    assert PROCESS.held == before

"""Sizes, crops and boxes of the `image:` section."""

import json

import numpy as np
import pytest

from ksrv.images.geometry import (
    Geometry,
    bounded,
    center_offset,
    letterbox_window,
    shorter_side_size,
)
from ksrv.model.spec import ImageSpec
from tests.support.paths import GOLDEN

RESIZE = json.loads((GOLDEN / "resize.json").read_text())


@pytest.mark.parametrize("case", RESIZE["sizes"])
def test_sizes_equal_the_golden_values(case):
    width, height = case["in_wh"]
    size = shorter_side_size((height, width), 256)
    assert size == tuple(case["resized_wh"][::-1])
    assert center_offset(size, (224, 224)) == tuple(case["crop_top_left"])


@pytest.mark.parametrize(
    ("size", "dimension", "result"),
    [
        (90, (100, 200), 100),
        (220, (100, 200), 200),
        (150, (100, 200), 150),
        (7, -1, 7),
        (7, 9, 9),
    ],
)
def test_target_size_follows_the_declared_dimensions(size, dimension, result):
    assert bounded(size, dimension) == result


@pytest.mark.parametrize(
    ("size", "target", "inner", "offset"),
    [
        ((480, 640), (640, 640), (480, 640), (80, 0)),
        ((1080, 810), (640, 640), (640, 480), (0, 80)),
        ((100, 100), (50, 70), (50, 50), (0, 10)),
        ((100, 99), (50, 50), (50, 50), (0, 0)),
        ((1, 1000), (32, 32), (1, 32), (15, 0)),
        ((1000, 1), (32, 32), (32, 1), (0, 15)),
        ((32, 48), (32, 48), (32, 48), (0, 0)),
    ],
)
def test_letterbox_window_is_centred(size, target, inner, offset):
    assert letterbox_window(size, target) == (inner, offset)


@pytest.mark.parametrize(
    ("keys", "size", "target", "reduction"),
    [
        ({}, (2000, 2000), (100, 100), 1),
        ({"reduced": "auto", "resize": "none"}, (2000, 2000), (100, 100), 1),
        ({"reduced": "auto"}, (2000, 2000), (100, 100), 8),
        ({"reduced": "auto"}, (799, 2000), (100, 100), 4),
        ({"reduced": "auto"}, (199, 2000), (100, 100), 1),
        ({"reduced": "auto", "shorter_side": 120}, (480, 2000), (100, 100), 4),
        ({"reduced": "auto", "resize": "letterbox"}, (100, 800), (100, 100), 8),
        ({"reduced": "auto"}, (50, 50), (100, 100), 1),
    ],
)
def test_reduction_keeps_the_target_size(keys, size, target, reduction):
    assert Geometry(ImageSpec(**keys)).reduction(size, target) == reduction


def test_image_of_the_target_size_is_not_resized():
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    for resize in ("linear", "area", "pillow", "none", "letterbox"):
        geometry = Geometry(ImageSpec(resize=resize))
        assert geometry.inside((4, 4), (4, 4))[0] == (4, 4)
        target = np.zeros_like(picture)
        geometry.place(picture, target)
        np.testing.assert_array_equal(target, picture)
    assert Geometry(ImageSpec()).inside((4, 5), (4, 4))[0] == (4, 4)
    assert Geometry(ImageSpec(shorter_side=4)).inside((4, 5), (4, 4))[0] == (4, 5)

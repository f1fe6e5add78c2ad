"""Sizes, crops and boxes of the `image:` section."""

import json

import pytest

from ksrv.images.geometry import center_offset, letterbox_window, shorter_side_size
from tests.support.paths import GOLDEN

RESIZE = json.loads((GOLDEN / "resize.json").read_text())


@pytest.mark.parametrize("case", RESIZE["sizes"])
def test_sizes_equal_the_golden_values(case):
    width, height = case["in_wh"]
    size = shorter_side_size((height, width), 256)
    assert size == tuple(case["resized_wh"][::-1])
    assert center_offset(size, (224, 224)) == tuple(case["crop_top_left"])


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

"""Times the conversion of pixels to FP32 against filling the same output, and ksrv's copy of Pillow's resize against
Pillow.
"""

from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from ksrv._native.images import convert_pixels, row_resize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(height: int = 224, width: int = 224) -> Any:
    return np.ascontiguousarray(cv2.resize(load_sample_image("china.jpg"), (width, height)))


def with_numpy(source: Any, out: Any, *, swapped: bool) -> None:
    np.copyto(out, source[:, :, ::-1] if swapped else source)
    out /= 255
    out -= np.array(MEAN, np.float32)
    out /= np.array(STD, np.float32)


@pytest.mark.parametrize("way", ["limit", "numpy", "fast", "exact"])
@pytest.mark.parametrize("colours", ["kept", "swapped"])
def test_normalise(benchmark: Any, colours: Any, way: Any) -> None:
    source = picture()
    swapped = colours == "swapped"
    out = np.empty((224, 224, 3), np.float32)
    order = (2, 1, 0) if swapped else None
    keys: dict[str, Any] = {"channels": order, "scale": 255, "mean": MEAN, "std": STD}
    fast, exact = convert_pixels.Conversion(**keys), convert_pixels.Conversion(**keys, exact=True)
    run = {
        "limit": lambda: out.fill(1.0),
        "numpy": lambda: with_numpy(source, out, swapped=swapped),
        "fast": lambda: fast(source, out),
        "exact": lambda: exact(source, out),
    }[way]
    benchmark.group = f"pixels: u8 to FP32 with mean and std, colours {colours} (limit: fill)"
    benchmark(run)


@pytest.mark.parametrize("way", ["pillow", "ksrv"])
@pytest.mark.parametrize(
    ("size", "target"),
    [
        ((720, 720), (256, 256)),
        ((491, 640), (256, 333)),
        ((3000, 4000), (256, 341)),
        ((150, 200), (256, 341)),
    ],
    ids=["720x720", "640x491", "4000x3000", "200x150 enlarged"],
)
def test_resize(benchmark: Any, size: Any, target: tuple[int, int], way: Any) -> None:
    source = picture(*size)
    image = Image.fromarray(source)
    out = np.empty((*target, 3), np.uint8)
    unchanged = convert_pixels.Conversion()  # copies the resized values
    run = {
        "pillow": lambda: image.resize(target[::-1], Image.Resampling.BILINEAR),
        "ksrv": lambda: row_resize.resize_rows(source, out, unchanged, target, kind="pillow"),
    }[way]
    benchmark.group = f"pixels: Pillow's resize, {size[1]}x{size[0]} to {target[1]}x{target[0]}"
    benchmark(run)
    if way == "ksrv":
        np.testing.assert_array_equal(
            out, np.asarray(image.resize(target[::-1], Image.Resampling.BILINEAR))
        )

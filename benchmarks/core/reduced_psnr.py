"""PSNR of `reduced: auto` beside the full decode, for each way to resize.

    python benchmarks/core/reduced_psnr.py

Two photographs, larger than they were and with noise in place of the detail that they lack, are brought to 224x224.
"""

import io
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from ksrv.request import Array

WIDTHS = (1280, 2560, 4096)
WAYS = ("pillow", "area", "linear")
NOISE = 8  # the standard deviation, of 255


def encoded(name: str, width: int) -> bytes:
    """Return a photograph as a JPEG of quality 90."""
    picture = Image.fromarray(load_sample_image(name))
    large = picture.resize(
        (width, width * picture.height // picture.width), Image.Resampling.BICUBIC
    )
    noise = np.random.default_rng(width).normal(0, NOISE, (large.height, large.width, 3))
    file = io.BytesIO()
    noisy = np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


def prepared(data: bytes, **keys: Any) -> Array:
    """Return the picture as a model gets it, with values from 0 to 255."""
    spec = TensorSpec("x", "FP32", (-1, 224, 224, 3), ImageSpec(**keys))
    out = np.empty((1, 224, 224, 3), np.float32)
    ImagePreparer(spec, Limits()).prepare([data], out)
    return out


def psnr(one: Array, other: Array) -> float:
    """Return the ratio of 255 to the root of the mean square of the difference, in decibels."""
    return float(20 * np.log10(255 / np.sqrt(np.mean((one - other) ** 2))))


def main() -> None:
    """Print a line for each way to resize."""
    files = [encoded(name, width) for name in ("china.jpg", "flower.jpg") for width in WIDTHS]
    for way in WAYS:
        found = [
            psnr(prepared(data, resize=way), prepared(data, resize=way, reduced="auto"))
            for data in files
        ]
        print(f"{way:<8} {min(found):5.1f} to {max(found):5.1f} dB")


if __name__ == "__main__":
    main()

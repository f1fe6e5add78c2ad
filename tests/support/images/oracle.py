"""Decodes an image as slowly and simply as possible with cv2, Pillow and numpy.

Nothing here is shared with ksrv. The target size is given; everything else follows the `image:`
section's keys as the design states them.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageOps

from ksrv.model.spec import ImageSpec

NUMPY = {
    "FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "UINT8": np.uint8,
    "INT8": np.int8, "UINT16": np.uint16, "INT16": np.int16, "INT32": np.int32,
}  # fmt: skip
LINEAR_IN = {
    "FP32": np.float32, "FP64": np.float64, "FP16": np.float32, "UINT8": np.uint8,
    "UINT16": np.uint16, "INT16": np.int16,
}  # fmt: skip


def cast(values: np.ndarray, dtype: type) -> np.ndarray:
    """Rounded to the nearest even and saturated, as cv2's convertTo does."""
    if values.dtype == dtype:
        return values
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.clip(np.rint(values.astype(np.float64)), info.min, info.max).astype(dtype)
    with np.errstate(over="ignore"):  # 16-bit values above the range of FP16 become infinity
        return values.astype(dtype)


def decode(data: bytes, spec: ImageSpec, channels: int, datatype: str) -> np.ndarray:
    array = np.frombuffer(data, np.uint8)
    if spec.channels == "strict":
        image = cv2.imdecode(array, cv2.IMREAD_UNCHANGED)
    else:
        flags = cv2.IMREAD_IGNORE_ORIENTATION
        flags |= cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
        if datatype == "UINT16" and spec.resize != "pillow":
            flags |= cv2.IMREAD_ANYDEPTH
        image = cv2.imdecode(array, flags)
    assert image is not None
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
    if spec.exif == "apply":
        image = rotate(image, Image.open(__import__("io").BytesIO(data)))
    if spec.color == "RGB" and image.shape[2] >= 3:
        image = np.take(image, [2, 1, 0, 3][: image.shape[2]], axis=2)
    return np.ascontiguousarray(image)


def rotate(image: np.ndarray, file: Image.Image) -> np.ndarray:
    """Turn the pixels as Pillow turns the file."""
    transposed: dict[int, Any] = {
        2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1),
        7: lambda a: a.swapaxes(0, 1)[::-1, ::-1], 8: lambda a: np.rot90(a, 1),
    }  # fmt: skip
    turn = transposed.get(file.getexif().get(0x0112, 1), lambda a: a)
    turned: np.ndarray = turn(image)
    assert turned.shape[:2] == ImageOps.exif_transpose(file).size[::-1]
    return turned


def cv2_resize(image: np.ndarray, height: int, width: int, flag: int) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    floats = image.dtype == np.float32 and flag == cv2.INTER_LINEAR
    with opencv_arithmetic() if floats else contextlib.nullcontext():
        return cv2.resize(image, (width, height), interpolation=flag).reshape(height, width, -1)


@contextlib.contextmanager
def opencv_arithmetic() -> Iterator[None]:
    """Have OpenCV's own code resize on this thread, not Intel's, which rounds more coarsely."""
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    try:
        yield
    finally:
        cv2.ipp.setUseIPP(before)


def resize(image: np.ndarray, height: int, width: int, kind: str) -> np.ndarray:
    if kind == "pillow":
        modes = {1: "L", 3: "RGB", 4: "RGBA"}
        source = image[:, :, 0] if image.shape[2] == 1 else image
        file = Image.fromarray(source, modes[image.shape[2]])
        return np.asarray(file.resize((width, height), Image.Resampling.BILINEAR)).reshape(
            height, width, -1
        )
    return cv2_resize(image, height, width, cv2.INTER_AREA if kind == "area" else cv2.INTER_LINEAR)


def prepare(data: bytes, spec: ImageSpec, shape: tuple[int, int, int], datatype: str) -> np.ndarray:
    height, width, channels = shape
    image = decode(data, spec, channels, datatype)
    assert image.shape[2] == channels
    resized = image.shape[:2] != (height, width) or spec.shorter_side is not None
    if spec.resize == "linear" and resized:
        image = cast(image, LINEAR_IN.get(datatype, image.dtype.type))
    if spec.shorter_side is not None:
        h, w = image.shape[:2]
        side = spec.shorter_side
        size = (side, int(side * w / h)) if h <= w else (int(side * h / w), side)
        image = resize(image, *size, spec.resize)
        top, left = round((size[0] - height) / 2.0), round((size[1] - width) / 2.0)
        image = image[top : top + height, left : left + width]
    elif spec.resize == "letterbox":
        h, w = image.shape[:2]
        ratio = min(height / h, width / w)
        inner = round(h * ratio), round(w * ratio)
        box = np.full((height, width, channels), 114 if image.dtype == np.uint8 else 114 * 257)
        box = box.astype(image.dtype)
        top = math.floor((height - inner[0]) / 2)
        left = math.floor((width - inner[1]) / 2)
        box[top : top + inner[0], left : left + inner[1]] = resize(image, *inner, "linear")
        image = box
    elif spec.resize != "none":
        image = resize(image, height, width, spec.resize)
    return finish(image, spec, datatype)


def finish(image: np.ndarray, spec: ImageSpec, datatype: str) -> np.ndarray:
    if spec.scale != 1 or any(spec.mean) or any(value != 1 for value in spec.std):
        precision: Any = np.float64 if datatype == "FP64" else np.float32
        mean = np.array(spec.mean or (0,), precision)
        std = np.array(spec.std or (1,), precision)
        if spec.arithmetic == "exact":
            image = (image.astype(precision) / precision(spec.scale) - mean) / std
        else:
            a = (1.0 / (spec.scale * np.array(spec.std or (1.0,)))).astype(precision)
            b = (-np.array(spec.mean or (0.0,)) / np.array(spec.std or (1.0,))).astype(precision)
            image = image.astype(precision) * a + b
        assert image.dtype == precision
    return cast(image, NUMPY[datatype])

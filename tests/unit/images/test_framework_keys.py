"""Each row of the table in docs/pictures.md gives the pixels that the framework's preprocessing gives.

The frameworks' preprocessing is written out here with cv2, Pillow and numpy, because the packages are too large to
install.
"""

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from PIL import Image

from ksrv._native.images.decode_pool import DecodePool
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.input_rules import problems
from ksrv.model.spec import ImageSpec, TensorSpec, read_dimension
from tests.support.images import files

POOL = DecodePool(2)
PAGE = Path(__file__).parents[3] / "docs" / "pictures.md"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(480, 640), (640, 480), (33, 500), (500, 33), (37, 41), (720, 1283), (1000, 750), (640, 640), (48, 320)]  # fmt: skip


def table():
    rows = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[3].startswith("`{"):
            shape = [read_dimension(size) for size in yaml.safe_load(cells[2].strip("`"))]
            keys = yaml.safe_load(cells[3].split("`")[1])
            if "ImageNet" in cells[3]:
                keys |= {"mean": MEAN, "std": STD}
            rows.append((f"{cells[0]}, {cells[1]}", shape, keys))
    return rows


def normalized(pixels, mean, std):
    return (pixels.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)


def torchvision(picture, side=256, mean=MEAN, std=STD):
    file = Image.fromarray(picture)
    width, height = file.size
    size = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)  # fmt: skip
    file = file.resize(size, Image.Resampling.BILINEAR)
    left, top = round((file.width - 224) / 2.0), round((file.height - 224) / 2.0)
    return normalized(np.asarray(file.crop((left, top, left + 224, top + 224))), mean, std)


def timm(picture):
    return torchvision(picture, math.floor(224 / 0.95), (0.0,), (1.0,))


def squash(picture):
    pixels = np.asarray(Image.fromarray(picture).resize((256, 256), Image.Resampling.BILINEAR))
    return pixels[16:240, 16:240].astype(np.float32) / np.float32(255)


def ultralytics(picture, auto=False):
    height, width = picture.shape[:2]
    ratio = min(640 / height, 640 / width)
    unpadded = round(width * ratio), round(height * ratio)
    across, down = 640 - unpadded[0], 640 - unpadded[1]
    if auto:
        across, down = np.mod(across, 32), np.mod(down, 32)
    across, down = across / 2, down / 2
    if (width, height) != unpadded:
        picture = cv2.resize(picture, unpadded, interpolation=cv2.INTER_LINEAR)
    edges = round(down - 0.1), round(down + 0.1), round(across - 0.1), round(across + 0.1)
    boxed = cv2.copyMakeBorder(picture, *edges, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return boxed.astype(np.float32) * np.float32(1 / 255)


def yolox(picture):
    padded = np.ones((640, 640, 3)) * 114.0
    ratio = min(640 / picture.shape[0], 640 / picture.shape[1])
    height, width = int(picture.shape[0] * ratio), int(picture.shape[1] * ratio)
    padded[:height, :width] = cv2.resize(picture, (width, height)).astype(np.float32)
    return padded.astype(np.float32)


def yunet(picture):
    height, width = picture.shape[:2]
    down, across = ((height - 1) // 32 + 1) * 32 - height, ((width - 1) // 32 + 1) * 32 - width
    boxed = cv2.copyMakeBorder(picture, 0, down, 0, across, cv2.BORDER_CONSTANT, value=0)
    return boxed.astype(np.float32)


def paddle_detection(picture, limit, least):
    height, width = picture.shape[:2]
    ratio = 1.0
    if least and min(height, width) < limit:
        ratio = float(limit) / min(height, width)
    if not least and max(height, width) > limit:
        ratio = float(limit) / max(height, width)
    sides = (max(round(int(side * ratio) / 32) * 32, 32) for side in (height, width))
    height, width = sides
    return normalized(cv2.resize(picture, (width, height)), MEAN, STD)


def paddle_recognition(picture):
    height, width = picture.shape[:2]
    ratio = width / float(height)
    most = int(48 * max(320 / 48, ratio))
    width = min(most, math.ceil(48 * ratio))
    row = np.zeros((48, most, 3), np.float32)
    row[:, :width] = normalized(cv2.resize(picture, (width, 48)), (0.5,), (0.5,))
    return row


def mediapipe(picture):
    height, width = picture.shape[:2]
    side = max(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    corners = np.float32([[left, top + side], [left, top], [left + side, top], [left + side, top + side]])  # fmt: skip
    wanted = np.float32([[0, 128], [0, 0], [128, 0], [128, 128]])
    warped = cv2.warpPerspective(
        picture, cv2.getPerspectiveTransform(corners, wanted), (128, 128), borderMode=cv2.BORDER_CONSTANT
    )  # fmt: skip
    return normalized(warped, (0.5,), (0.5,))


ORACLES = [
    (torchvision, 0),
    (timm, 0),
    (squash, 0),
    (ultralytics, 1e-6),
    (lambda picture: ultralytics(picture, auto=True), 1e-6),
    (yolox, 0),
    (yunet, 0),
    (lambda picture: paddle_detection(picture, 736, True), 0),
    (lambda picture: paddle_detection(picture, 960, False), 0),
    (paddle_recognition, 0),
    (mediapipe, None),
]


def test_every_row_has_its_preprocessing():
    assert len(table()) == len(ORACLES)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("index", range(len(ORACLES)))
def test_the_keys_give_the_pixels_of_the_framework(index, size):
    name, shape, keys = table()[index]
    preprocess, tolerance = ORACLES[index]
    keys |= {"color": "RGB", "channels": "convert"}
    keys = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    if "pad" in keys:
        keys["pad"] = (keys["pad"],)
    assert not list(problems(keys, "FP32", tuple(shape))), name
    picture = smooth(*size)
    data = files.encode(Image.fromarray(picture), "PNG")
    spec = TensorSpec("x", "FP32", tuple(shape), ImageSpec(**keys))
    prepare = ImagePreparer(spec, Limits(), pool=POOL)
    checked = prepare.check([data], 1)
    out = np.empty(checked.shape, np.float32)
    assert prepare.prepare([data], out) == [None]
    wanted = preprocess(picture)
    if preprocess is paddle_recognition and wanted.shape[1] == out.shape[2] - 1:
        return  # wider than 320: PaddleOCR rounds the row down and the picture up
    assert out[0].shape == wanted.shape, name
    if tolerance is None:
        assert np.median(abs(out[0] - wanted)) < 0.03, name
    else:
        np.testing.assert_allclose(out[0], wanted, rtol=0, atol=tolerance)


def smooth(height, width):
    """A picture without hard edges, so that a shift by a part of a pixel changes values a little."""
    rows, columns = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    return np.stack(
        [255 * rows, 255 * columns, 127 + 120 * np.sin(6 * rows + 9 * columns)], axis=2
    ).astype(np.uint8)

"""Pixel conversion compared with numpy, and resizing compared with Pillow and golden values."""

import hashlib
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from ksrv._native.images import convert_pixels, row_resize
from tests.support.images import files, resized
from tests.support.paths import GOLDEN

SOURCES = ("u1", "u2", "i2", "f4", "f8")
TARGETS = ("f4", "f8", "f2", "u1", "i1", "u2", "i2", "i4")
MEAN, STD = (0.485, 0.456, 0.406, 0.5), (0.229, 0.224, 0.225, 0.3)


def values(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (rng.normal(100, 4000, shape) * rng.choice([1e-6, 1, 1e3], shape)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype=dtype)


def stored(computed, dtype):
    """Round to nearest even and saturate. Integers pass through float32, as in the loops."""
    dtype = np.dtype(dtype)
    with np.errstate(over="ignore"):
        if dtype.kind == "f":
            return computed.astype(np.float32 if dtype.itemsize < 8 else np.float64).astype(dtype)
        info = np.iinfo(dtype)
        high = min(info.max, 2147483520)
        return np.clip(np.rint(computed.astype(np.float32)), info.min, high).astype(dtype)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_conversions_equal_numpy(source, target):
    convert = convert_pixels.Conversion()
    assert convert.keeps_values
    for channels, width in itertools.product((1, 2, 3, 4), (1, 5, 47, 129, 400)):
        picture = values(source, (3, width, channels))
        out = np.empty(picture.shape, target)
        convert(picture, out)
        np.testing.assert_array_equal(out, stored(picture, target))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["u1", "u2", "f4"])
def test_arithmetic_equals_numpy(source, target, exact):
    precision = np.float64 if target == "f8" else np.float32
    for channels, height, width in ((1, 2, 77), (3, 4, 61), (3, 1, 1), (4, 3, 130)):
        mean, std = MEAN[:channels], STD[:channels]
        convert = convert_pixels.Conversion(scale=255, mean=mean, std=std, exact=exact)
        assert not convert.keeps_values
        picture = values(source, (height, width, channels))
        out = np.empty(picture.shape, target)
        convert(picture, out)
        wide = picture.astype(precision)
        if exact:
            wanted = (wide / precision(255) - np.array(mean, precision)) / np.array(std, precision)
        else:
            a = (1 / (255 * np.array(std))).astype(precision)
            b = (-np.array(mean) / np.array(std)).astype(precision)
            wanted = wide * a + b
        np.testing.assert_array_equal(out, stored(wanted, target))


@pytest.mark.parametrize("target", ["f4", "f2", "u1"])
@pytest.mark.parametrize(
    ("channels", "order"),
    [(3, (2, 1, 0)), (4, (2, 1, 0, 3)), (1, (0, 0, 0)), (4, (0, 1, 2)), (4, (2, 1, 0)),
     (3, (1,)), (3, (0, 2, 1)), (2, (1, 0)), (3, (2, 1, 0, 0))],
)  # fmt: skip
def test_channels_are_reordered(channels, order, target):
    for width in (1, 4, 5, 6, 7, 50, 127, 128, 129, 300):
        picture = values("u1", (2, width, channels))
        out = np.empty((2, width, len(order)), target)
        mean = tuple(range(1, len(order) + 1))
        convert_pixels.Conversion(channels=order, scale=2, mean=mean, exact=True)(picture, out)
        wanted = picture[:, :, list(order)].astype("f4") / np.float32(2) - np.array(mean, "f4")
        np.testing.assert_array_equal(out, stored(wanted, target))


def test_rows_may_have_gaps():
    wide = values("u1", (20, 40, 3))
    out = np.zeros((10, 50, 3), "f4")
    for order in (None, (2, 1, 0)):
        convert_pixels.Conversion(channels=order)(wide[::2, 5:25], out[:, 10:30])
        wanted = wide[::2, 5:25][..., list(order or (0, 1, 2))]
        np.testing.assert_array_equal(out[:, 10:30], wanted)
        assert not out[:, :10].any() and not out[:, 30:].any()
    convert_pixels.Conversion()(wide[::-2, :20], out[:, :20])
    np.testing.assert_array_equal(out[:, :20], wide[::-2, :20])


def test_a_picture_is_converted_in_place():
    for dtype, order in itertools.product(("f4", "u1"), (None, (2, 1, 0))):
        picture = values("u1", (33, 57, 3)).astype(dtype)
        wanted = np.empty_like(picture)
        convert = convert_pixels.Conversion(channels=order, scale=3, mean=(1, 2, 3))
        convert(picture.copy(), wanted)
        convert(picture, picture)
        np.testing.assert_array_equal(picture, wanted)


def test_half_precision_of_every_kind_of_number():
    bits = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32)
    edges = np.array([0, 1, 0x33000000, 0x33000001, 0x387FC000, 0x387FFFFF, 0x38800000, 0x477FEFFF,
                      0x477FF000, 0x7F800000, 0x7FC00000, 0x7F800001], np.uint32)  # fmt: skip
    numbers = np.concatenate([bits, edges, edges | 0x80000000]).view(np.float32)[None, :, None]
    out = np.empty(numbers.shape, np.float16)
    convert_pixels.Conversion()(numbers, out)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = numbers.astype(np.float16)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(out), nan)
    np.testing.assert_array_equal(out.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


def test_bfloat16_of_every_kind_of_number():
    import torch

    bits = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32)
    numbers = bits.view(np.float32)[None, :, None]
    out = np.empty(numbers.shape, np.uint16)
    convert_pixels.Conversion()(numbers, out, bfloat16=True)
    wanted = torch.from_numpy(numbers.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    nan = np.isnan(numbers)
    np.testing.assert_array_equal(out[~nan], wanted[~nan])
    assert np.isnan((out[nan].astype(np.uint32) << 16).view(np.float32)).all()
    with pytest.raises(ValueError, match="stored as uint16"):
        convert_pixels.Conversion()(numbers, np.empty(numbers.shape, np.float32), bfloat16=True)


def test_integers_saturate_and_round_to_nearest_even():
    numbers = np.array([-1e10, -129, -128.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 65535.5, 3e9,
                        np.inf, -np.inf, np.nan], np.float32)[None, :, None]  # fmt: skip
    for dtype in ("u1", "i1", "u2", "i2", "i4"):
        out = np.empty(numbers.shape, dtype)
        convert_pixels.Conversion()(numbers, out)
        info = np.iinfo(dtype)
        wanted = np.clip(np.rint(numbers[0, :-1, 0]), info.min, min(info.max, 2147483520))
        np.testing.assert_array_equal(out[0, :-1, 0], wanted.astype(dtype))
        assert out[0, -1, 0] == info.min


def test_empty_pictures_are_converted():
    for shape in ((0, 5, 3), (5, 0, 3)):
        convert_pixels.Conversion()(np.empty(shape, "u1"), np.empty(shape, "f4"))


def unaligned(dtype, shape):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(size + 1), np.uint8)[1:].view(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        (np.zeros((4, 5, 3), "u1"), np.zeros((4, 6, 3), "f4"), "5x4 and the target 6x4"),
        (np.zeros((4, 5, 3), "u1"), np.zeros((4, 5, 4), "f4"), "4 channels, not 3"),
        (np.zeros((4, 5, 5), "u1"), np.zeros((4, 5, 5), "f4"), "5 channels, not 1 to 4"),
        (np.zeros((4, 5, 0), "u1"), np.zeros((4, 5, 0), "f4"), "0 channels, not 1 to 4"),
        (np.zeros(4, "u1"), np.zeros(4, "f4"), "1 dimensions, not 2 or 3"),
        (np.zeros((4, 5, 3), "i8"), np.zeros((4, 5, 3), "f4"), "format 'l'"),
        (np.zeros((4, 5, 3), ">f4"), np.zeros((4, 5, 3), "f4"), "format '>f'"),
        (np.zeros((4, 5, 3), "u1"), np.zeros((4, 5, 3), "i8"), "format 'l'"),
        (np.zeros((4, 9, 3), "u1")[:, ::2], np.zeros((4, 5, 3), "f4"), "row of the source"),
        (np.zeros((4, 5, 3), "u1"), np.zeros((4, 5, 6), "f4")[..., ::2], "row of the target"),
        (unaligned("f4", (4, 5, 3)), np.zeros((4, 5, 3), "f4"), "not aligned"),
    ],
)
def test_mismatched_arguments_are_refused(source, target, problem):
    with pytest.raises(ValueError, match=problem):
        convert_pixels.Conversion()(source, target)


# ---- Pillow's resize ----------------------------------------------------------------------------

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def pillow(picture, height, width):
    source = picture[:, :, 0] if picture.shape[2] == 1 else picture
    file = Image.fromarray(source, MODES[picture.shape[2]])
    return np.asarray(file.resize((width, height), Image.BILINEAR)).reshape(height, width, -1)


RESIZE = GOLDEN / "resize.json"


def into_window(picture, size, target, offset=(0, 0)):
    row_resize.resize_rows(
        picture, target, convert_pixels.Conversion(), size, offset, kind="pillow"
    )


def test_resizing_rows_with_gaps_and_two_dimensions():
    wide = files.pixels(60, 90)
    out = np.zeros((20, 50, 3), np.uint8)
    into_window(wide[::2, 10:50], (20, 30), out[:, 5:35])
    np.testing.assert_array_equal(
        out[:, 5:35], pillow(np.ascontiguousarray(wide[::2, 10:50]), 20, 30)
    )
    assert not out[:, :5].any() and not out[:, 35:].any()
    grey = files.pixels(30, 40, 1)
    np.testing.assert_array_equal(resized.pillow(grey[:, :, 0], 9, 8), pillow(grey, 9, 8)[:, :, 0])


def test_the_golden_picture_resized_and_cropped():
    golden = json.loads(RESIZE.read_text())["large"]
    y, x = np.mgrid[0:480, 0:640]
    checks = 200 * ((x // 8 + y // 8) % 2) + (x + 2 * y) % 56
    picture = np.stack([(5 * x + 3 * y) % 256, x * y // 16 % 256, checks], axis=-1).astype("u1")
    assert hashlib.sha256(picture.tobytes()).hexdigest() == golden["image_sha256_of_rgb_bytes"]
    width, height = golden["resized_wh"]
    whole = resized.pillow(picture, height, width)
    assert hashlib.sha256(whole.tobytes()).hexdigest() == golden["resized_sha256"]
    crop = np.empty((224, 224, 3), np.uint8)
    into_window(picture, (height, width), crop, (16, 58))
    assert hashlib.sha256(crop.tobytes()).hexdigest() == golden["cropped_sha256"]
    out = np.empty((224, 224, 3), np.float32)
    convert_pixels.Conversion(scale=255, mean=MEAN[:3], std=STD[:3], exact=True)(crop, out)
    for where, value in golden["normalised_chw_float32"].items():
        assert out.transpose(2, 0, 1)[tuple(int(n) for n in where.split(","))] == np.float32(value)

"""Row-by-row resizes give the pixels of OpenCV and Pillow, for pictures in memory and for JPEGs."""

import cv2
import numpy as np
import pytest
from PIL import Image

from ksrv._native.images import jpeg_decoder, row_resize
from ksrv._native.images.convert_pixels import Conversion
from tests.support.images import files, oracle, resized

native = pytest.mark.skipif(not jpeg_decoder.VERSION, reason="ksrv was built without libjpeg-turbo")

SIZES = [
    ((427, 640), (224, 224)),
    ((427, 640), (256, 383)),
    ((100, 80), (50, 40)),
    ((90, 120), (30, 40)),
    ((96, 64), (24, 32)),
    ((64, 48), (64, 48)),
    ((64, 48), (20, 48)),
    ((64, 48), (64, 20)),
    ((50, 60), (224, 200)),
    ((33, 17), (5, 3)),
    ((101, 7), (13, 2)),
    ((3, 5), (17, 2)),
    ((1, 1), (5, 5)),
    ((5, 5), (1, 1)),
    ((2, 9), (1, 4)),
    ((640, 31), (11, 30)),
]


def wanted_pixels(kind, source, full):
    if source.shape[:2] == full:
        return source.astype(np.float32) if kind == "linear floats" else source
    match kind:
        case "linear floats":
            with oracle.opencv_arithmetic():
                resized = cv2.resize(source.astype(np.float32), full[::-1])
        case "linear bytes":
            resized = cv2.resize(source, full[::-1], interpolation=cv2.INTER_LINEAR)
        case "area":
            resized = cv2.resize(source, full[::-1], interpolation=cv2.INTER_AREA)
        case _:
            picture = Image.fromarray(source[:, :, 0] if source.shape[2] == 1 else source)
            resized = np.asarray(picture.resize(full[::-1], Image.Resampling.BILINEAR))
    return resized.reshape(*full, source.shape[2])


def windows(full):
    yield (0, 0), full
    if min(full) > 8:
        yield (full[0] // 5, full[1] // 3), (full[0] // 2, full[1] // 2)
        yield (full[0] - 1, 0), (1, full[1])
        yield (0, full[1] - 1), (full[0], 1)


@pytest.mark.parametrize("kind", row_resize.KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_equal_the_librarys(kind, channels):
    changes = [
        Conversion(),
        Conversion(scale=2.0, mean=(3.0,), std=(4.0,)),
        Conversion(scale=3.0, mean=(1.0, 2.0, 3.0)[:channels], std=(4.0,) * channels, exact=True),
    ]
    compared = 0
    for size, full in SIZES:
        source = np.ascontiguousarray(files.pixels(*size, channels))
        if not row_resize.resizes_by_rows(kind, size, full):
            with pytest.raises(ValueError, match="needs the whole picture"):
                row_resize.resize_rows(
                    source, np.empty((*full, channels), np.uint8), changes[0], full, kind=kind
                )
            continue
        resized = wanted_pixels(kind, source, full)
        for (top, left), shape in windows(full):
            window = resized[top : top + shape[0], left : left + shape[1]]
            for change in changes:
                for dtype in (np.float32, np.uint8, np.float16):
                    got = np.full(window.shape, 77, dtype)
                    row_resize.resize_rows(source, got, change, full, (top, left), kind=kind)
                    wanted = np.empty(window.shape, dtype)
                    change(np.ascontiguousarray(window), wanted)
                    np.testing.assert_array_equal(
                        got, wanted, f"{size} {full} {top} {left} {dtype}"
                    )
                    compared += 1
    assert compared > 100


def sampled(subsampling, **options):
    return files.jpeg(427, 640, subsampling=subsampling, **options)


@native
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}], ids=str
)
@pytest.mark.parametrize("order", ["BGR", "GRAY"])
def test_rows_and_columns_outside_of_a_crop_change_nothing(subsampling, options, order):
    data = sampled(subsampling, **options)
    flag = cv2.IMREAD_GRAYSCALE if order == "GRAY" else cv2.IMREAD_COLOR
    whole = cv2.imdecode(np.frombuffer(data, np.uint8), flag).reshape(427, 640, -1)
    for kind, full in (("linear bytes", (427, 640)), ("linear floats", (256, 383)),
                       ("pillow", (256, 383)), ("area", (256, 383))):  # fmt: skip
        expected = wanted_pixels(kind, whole, full)
        for top, left, height, width in (
            (16, 79, 224, 224), (0, 0, 20, 20), (200, 300, 31, 60), (100, 0, 50, 383), (1, 161, 9, 7),
            (255, 382, 1, 1),
        ):  # fmt: skip
            wanted = expected[top : top + height, left : left + width]
            got = np.empty(wanted.shape, wanted.dtype)
            assert resized.decoded(data, (427, 640), got, full, (top, left), kind=kind, order=order)
            np.testing.assert_array_equal(got, wanted, f"{kind} {top} {left} {height} {width}")


@native
def test_damage_below_a_crop_is_left_to_another_decoder():
    data = files.jpeg(427, 640)
    got = np.empty((20, 20, 3), np.uint8)

    def decode(file):
        return resized.decoded(file, (427, 640), got, (427, 640), (10, 10))

    assert decode(data)
    for length in range(len(data) // 2, len(data) - 2, 997):
        assert not decode(data[:length])


def test_wrong_arguments_are_refused():
    source, target = np.zeros((4, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="lies outside"):
        row_resize.resize_rows(source, target, Conversion(), (2, 2), (1, 0), kind="area")
    with pytest.raises(ValueError, match="lies outside"):
        row_resize.resize_rows(source, target, Conversion(), (2, 2), (0, -1), kind="area")
    with pytest.raises(ValueError, match="not resized like this"):
        row_resize.resize_rows(
            source.astype(np.uint16), target, Conversion(), (2, 2), kind="linear bytes"
        )
    with pytest.raises(ValueError, match="without pixels"):
        row_resize.resize_rows(source[:0], target, Conversion(), (2, 2), kind="pillow")
    with pytest.raises(KeyError):
        row_resize.resize_rows(source, target, Conversion(), (2, 2), kind="cubic")
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        row_resize.resize_rows(source, target, Conversion(), (2, 2), kind="area")

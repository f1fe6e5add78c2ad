"""JPEGs that EXIF turns: the pixels of cv2, which turns them by itself, for every orientation and resize."""

import cv2
import numpy as np
import pytest

from ksrv._native.image.decode_pool import DecodePool
from ksrv.images import jpeg
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.spec import ImageSpec, TensorSpec
from tests.support import image_files as files

POOL = DecodePool(2)
RESIZES = [
    {},
    {"resize": "letterbox", "scale": 255.0, "color": "RGB"},
    {"shorter_side": 20},
    {"resize": "area"},
    {"resize": "pillow", "shorter_side": 20},
    {"resize": "letterbox", "color": "RGB"},
    {"color": "GRAY", "channels": "convert"},
    {"reduced": "auto"},
]


def prepared(sent, shape, datatype="FP32", **keys):
    spec = TensorSpec("x", datatype, (-1, *shape), ImageSpec(exif="apply", **keys))
    out = np.full((len(sent), *shape), 9, np.float32 if datatype == "FP32" else np.uint8)
    assert ImagePreparer(spec, Limits(), pool=POOL).prepare(sent, out) == [None] * len(sent)
    return out


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(33, 70), (70, 33), (16, 16), (1, 40), (40, 1)])
def test_pixels_are_those_of_cv2(orientation, size):
    data = files.oriented(*size, orientation)
    wanted = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert wanted.shape[:2] == (size[::-1] if orientation >= 5 else size)
    got = prepared([data], wanted.shape, "UINT8", resize="none")
    np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(12, 18), (18, 12), (5, 300), (1, 1), (700, 3), (13, 19)])
@pytest.mark.parametrize("datatype", ["FP32", "UINT8"])
def test_a_linear_resize_reads_the_same_of_a_turned_picture(
    monkeypatch, orientation, size, datatype
):
    """Smaller, larger, of the same size and of a size that differs by a row."""
    sent = [files.oriented(*size, orientation, form="JPEG"), files.oriented(90, 41, orientation)]
    got = prepared(sent, (12, 18, 3), datatype)
    monkeypatch.setattr(jpeg, "decoder", lambda: "cv2")
    np.testing.assert_array_equal(got, prepared(sent, (12, 18, 3), datatype))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("keys", RESIZES, ids=str)
def test_every_decoder_resizes_the_upright_picture(monkeypatch, orientation, keys):
    sent = [files.oriented(130, 90, orientation), files.oriented(81, 200, orientation)]
    shape = (12, 18, 1 if "channels" in keys else 3)
    got = prepared(sent, shape, **keys)
    monkeypatch.setattr(jpeg, "decoder", lambda: "cv2")
    np.testing.assert_array_equal(got, prepared(sent, shape, **keys))


def test_a_turned_picture_that_is_cut_leaves_no_pixels():
    spec = TensorSpec("x", "UINT8", (-1, 20, 30, 3), ImageSpec(exif="apply", resize="area"))
    whole = files.oriented(60, 40, 6)
    out = np.full((2, 20, 30, 3), 9, np.uint8)
    errors = ImagePreparer(spec, Limits(), pool=POOL).prepare([whole, whole[:600]], out)
    assert errors[0] is None
    assert errors[1] is not None
    assert out[0].any()
    assert not out[1].any()

"""JPEGs with an EXIF orientation get the pixels of cv2, which turns them, for every orientation and resize."""

import cv2
import numpy as np
import pytest

from ksrv._native.images import image_header
from ksrv._native.images.decode_pool import DecodePool
from ksrv.images import jpeg, opencv
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files

POOL = DecodePool(2)


def prepared(sent, shape, datatype="FP32", **keys):
    spec = TensorSpec("x", datatype, (-1, *shape), ImageSpec(exif="apply", **keys))
    out = np.full((len(sent), *shape), 9, np.float32 if datatype == "FP32" else np.uint8)
    assert ImagePreparer(spec, Limits(), pool=POOL).prepare(sent, out) == [None] * len(sent)
    return out


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(33, 70), (70, 33), (16, 16), (1, 40), (40, 1)])
def test_pixels_equal_cv2s(orientation, size):
    data = files.oriented(*size, orientation)
    wanted = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert wanted.shape[:2] == (size[::-1] if orientation >= 5 else size)
    got = prepared([data], wanted.shape, "UINT8", resize="none")
    np.testing.assert_array_equal(got[0], wanted)


def exif(orientation):
    return files.segment(0xE1, b"Exif\0\0" + files.exif(orientation))


JFIF = files.segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
ADOBE_YCC, ADOBE_RGB = (files.segment(0xEE, b"Adobe\0\x64\0\0\0\0" + one) for one in (b"\1", b"\0"))


def bare(mode="RGB", **options):
    """A JPEG without a JFIF header."""
    data = files.jpeg(33, 70, mode, **options)
    while data[2:3] == b"\xff" and 0xE0 <= data[3] <= 0xEF:
        data = data[:2] + data[4 + int.from_bytes(data[4:6], "big") :]
    return data


def with_segments(data, *segments):
    return data[:2] + b"".join(segments) + data[2:]


def twelve_bits(data):
    frame = data.index(b"\xff\xc0")
    return data[: frame + 4] + b"\x0c" + data[frame + 5 :]


TURNED = {
    "progressive": with_segments(bare(progressive=True), JFIF, exif(6)),
    "grey": with_segments(bare("L"), JFIF, exif(8)),
    "grey progressive": with_segments(bare("L", progressive=True), exif(5)),
    "CMYK": with_segments(bare("CMYK"), ADOBE_RGB, exif(6)),
    "12 bits": twelve_bits(with_segments(bare(), exif(6))),
    "EXIF before JFIF": with_segments(bare(), exif(3), JFIF),
    "EXIF alone": with_segments(bare(), exif(7)),
    "Adobe YCC before EXIF": with_segments(bare(), ADOBE_YCC, exif(6)),
    "Adobe RGB behind EXIF": with_segments(bare(keep_rgb=True), exif(6), ADOBE_RGB),
    "Adobe that says RGB of YCC": with_segments(bare(), exif(6), ADOBE_RGB),
    "restart markers": with_segments(bare(restart_marker_blocks=2), exif(6)),
    "4:4:4": with_segments(bare(subsampling=0), exif(8)),
    "EXIF twice": with_segments(bare(), exif(6), exif(3)),
    "an invalid orientation": with_segments(bare(), exif(9)),
    "EXIF cut": with_segments(bare(), files.segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12")),
    "EXIF that points outside": with_segments(
        bare(), files.segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f")
    ),
    "XMP before EXIF": with_segments(
        bare(), files.segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0x"), exif(6)
    ),
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("resize", ["linear", "area", "pillow"])
def test_unusual_file_is_turned_equally_by_every_decoder(monkeypatch, name, resize):
    """Stored pixels equal cv2's, and are turned as the header reader says."""
    data = TURNED[name]
    keys = {"resize": resize, "channels": "convert"}
    spec = TensorSpec("x", "UINT8", (-1, 14, 11, 3), ImageSpec(exif="apply", **keys))
    plain = TensorSpec("x", "UINT8", (-1, 14, 11, 3), ImageSpec(exif="ignore", **keys))
    rows, said = {}, {}
    for decoder in jpeg.present_decoders():
        monkeypatch.setattr(jpeg, "decoder", lambda decoder=decoder: decoder)
        rows[decoder] = np.full((1, 14, 11, 3), 9, np.uint8)
        said[decoder] = str(ImagePreparer(spec, Limits(), pool=POOL).prepare([data], rows[decoder]))
    assert len(set(said.values())) == 1
    for got in rows.values():
        np.testing.assert_array_equal(got, rows["cv2"])
    stored = cv2.imdecode(
        np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    )
    if stored is None:
        assert said["cv2"] != "[None]"
        assert not rows["cv2"].any()
        return
    upright = opencv.upright(stored, image_header.probe(data).orientation)
    wanted = np.empty((1, 14, 11, 3), np.uint8)
    lossless = cv2.imencode(".png", upright)[1].tobytes()
    assert ImagePreparer(plain, Limits(), pool=POOL).prepare([lossless], wanted) == [None]
    np.testing.assert_array_equal(rows["cv2"], wanted)

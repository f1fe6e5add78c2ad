"""Files of other programs: ksrv accepts, refuses and turns them as the decoder does."""

import io
import itertools
import struct

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.images.image_header import FORMATS
from ksrv.errors import InvalidRequest
from ksrv.images import jpeg
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files

POOL = DecodePool(1)


@pytest.fixture(params=jpeg.present_decoders(), autouse=True)
def decoder(request, monkeypatch):
    monkeypatch.setattr(jpeg, "decoder", lambda: request.param)


def prepared(data, datatype="UINT8", channels=3, **keys):
    """Return a file's pixels as ksrv prepares them, without resizing."""
    image = ImageSpec(**{"channels": "convert", "resize": "none", "formats": FORMATS, **keys})
    prepare = ImagePreparer(
        TensorSpec("x", datatype, (-1, -1, -1, channels), image), Limits(), pool=POOL
    )
    checked = prepare.check([data], 1)
    out = np.full(checked.shape, 9, datatype.lower())
    (error,) = prepare.prepare([data], out, headers=checked.headers)
    if error is not None:
        raise error
    return out[0]


def decoded(data, flags=cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION):
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags)


# ---- JPEG -----------------------------------------------------------------------------------

STRAY = {
    "a stray byte": b"\x00",
    "stray bytes": b"Exif\0\0",
    "a stuffed zero": b"\xff\x00",
    "segments without FF": b"\x00\xe1\x00\x04ab\x00\xe0\x00\x02",
    "length 0": b"\xff\xe5\x00\x00",
    "length 1": b"\xff\xfe\x00\x01",
    "length 2 too small": b"\xff\xe5\x00\x04abcd",
    "EXIF of length 0": b"\xff\xe1\x00\x00",
    "fill bytes": b"\xff" * 5000,
    "many segments": b"\xff\xe5\x00\x02" * 3000,
    "markers without a length": b"\xff\x01\xff\xd0\xff\xd7",
}


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
@pytest.mark.parametrize("insert", [files.before_frame, files.before_scan])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_bytes_that_libjpeg_skips_are_accepted(stray, insert, mode):
    data = insert(files.jpeg(24, 40, mode), stray)
    wanted = decoded(data)
    assert wanted is not None and wanted.shape == (24, 40, 3)
    np.testing.assert_array_equal(prepared(data), wanted)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_longer_app_segment_hides_what_it_covers(progressive):
    """As in libjpeg, which takes the next marker after the announced length."""
    data = files.before_frame(
        files.jpeg(24, 40, progressive=progressive), b"\xff\xec\x00\x10" + bytes(8)
    )
    wanted = decoded(data)
    if wanted is None:
        with pytest.raises(InvalidRequest, match="image 0 of the input 'x'"):
            prepared(data)
    else:
        np.testing.assert_array_equal(prepared(data), wanted)


@pytest.mark.parametrize(
    "inserted",
    [b"\xff\xd8", b"\xff\xd9", b"\xff\x02", b"\xff\xc4\x00\x01", b"\xff\xf0\x00\x02"],
)
def test_files_that_libjpeg_refuses_are_refused(inserted):
    data = files.before_frame(files.jpeg(24, 40), inserted)
    assert decoded(data) is None
    with pytest.raises(InvalidRequest, match="image 0 of the input 'x'"):
        prepared(data)


@pytest.mark.parametrize("inserted", [b"", *STRAY.values()])
def test_pixel_limit_applies_after_stray_bytes(inserted):
    data = files.before_frame(files.jpeg_claiming(30_000, 30_000), inserted)
    with pytest.raises(InvalidRequest, match="has 30000x30000 pixels, above the limit"):
        prepared(data)


# ---- orientation ----------------------------------------------------------------------------


def turned(data):
    """Return the pixels as Pillow turns them, in cv2's order."""
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    return np.asarray(upright)[:, :, ::-1]


@pytest.mark.parametrize(
    ("form", "order", "kind", "orientation"),
    [
        *itertools.product(["JPEG", "PNG", "WEBP"], "<>", "H", range(1, 9)),
        *itertools.product(["JPEG", "PNG", "WEBP"], "<>", "LhlBb", [6]),
    ],
)
def test_orientation_of_every_whole_type_is_applied(form, order, kind, orientation):
    exif = files.exif(orientation, order, kind)
    data = files.with_exif(20, 30, form, exif)
    got = prepared(data, exif="apply")
    assert got.shape[:2] == ((30, 20) if orientation >= 5 else (20, 30))
    stored = prepared(data, exif="ignore")
    np.testing.assert_array_equal(stored, decoded(data))
    short = prepared(files.with_exif(20, 30, form, files.exif(orientation)), exif="apply")
    np.testing.assert_array_equal(got, short)
    if form != "JPEG" and kind != "B":  # of other pixels, and not read by Pillow
        np.testing.assert_array_equal(got, turned(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_after_the_frame_is_applied(orientation):
    segment = files.segment(0xE1, b"Exif\0\0" + files.exif(orientation))
    data = files.before_scan(files.jpeg(20, 30), segment)
    np.testing.assert_array_equal(prepared(data, exif="apply"), decoded(data, cv2.IMREAD_COLOR))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orientation_after_many_entries_is_applied(form):
    data = files.with_exif(20, 30, form, files.exif(6, entries=2000))
    assert prepared(data, exif="apply").shape == (30, 20, 3)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("name", [b"", b"Exif\0\0"])
def test_webp_exif_with_and_without_its_name(lossless, order, name):
    still = files.encode(files.picture(20, 30), "WEBP", lossless=lossless)
    if not lossless:
        assert still[12:16] == b"VP8 "
    data = files.webp_with_exif(still, 30, 20, name + files.exif(6, order))
    np.testing.assert_array_equal(prepared(data, exif="apply"), turned(data))


def test_webp_exif_that_its_header_does_not_announce_is_ignored():
    data = bytearray(files.with_exif(20, 30, "WEBP", files.exif(6)))
    data[20] = 0
    assert prepared(bytes(data), exif="apply").shape == (20, 30, 3)


def test_png_exif_after_the_pixels_is_applied():
    data = files.png(20, 30)
    data = data[:-12] + files.chunk(b"eXIf", files.exif(6)) + data[-12:]
    np.testing.assert_array_equal(prepared(data, exif="apply"), decoded(data, cv2.IMREAD_COLOR))
    assert prepared(data, exif="apply").shape == (30, 20, 3)


def tiff(mode, orientation, **options):
    exif = Image.Exif()
    exif[0x112] = orientation
    if mode == "I;16":
        values = np.arange(600, dtype=np.uint16).reshape(20, 30) * 109
        return files.encode(Image.fromarray(values), "TIFF", exif=exif, **options)
    return files.encode(files.picture(20, 30, mode), "TIFF", exif=exif, **options)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P"])
@pytest.mark.parametrize("options", [{}, {"big_tiff": True}, {"compression": "tiff_lzw"}], ids=str)
def test_tiff_is_turned_once(orientation, exif, mode, options):
    data = tiff(mode, orientation, **options)
    got = prepared(data, exif=exif)
    assert got.shape[:2] == ((30, 20) if orientation >= 5 else (20, 30))
    np.testing.assert_array_equal(got, decoded(data))
    np.testing.assert_array_equal(got, turned(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_tiff_of_16_bits_is_turned_once(orientation, exif):
    data = tiff("I;16", orientation)
    got = prepared(data, "UINT16", 1, exif=exif, color="GRAY")
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(got[:, :, 0], upright)


# ---- other files that the decoder reads ----------------------------------------------------------


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_colours_of_16_bit_tiff_equal_cv2s(color):
    """For RGB, cv2 itself returns uninitialised memory."""
    values = np.random.default_rng(3).integers(0, 65536, (20, 30, 3), dtype=np.uint16)
    data = cv2.imencode(".tif", values)[1].tobytes()
    wanted = values[:, :, ::-1] if color == "RGB" else values
    np.testing.assert_array_equal(prepared(data, "UINT16", color=color), wanted)


def planar_tiff(bits):
    """An RGB TIFF of zeros with separate channel planes."""
    size = 20 * 30 * bits // 8
    short, at = 3, 8 + 2 + 12 * 10 + 4
    directory = struct.pack("<H", 10) + b"".join(
        struct.pack("<HHII", tag, kind, count, value)
        for tag, kind, count, value in [
            (256, short, 1, 30), (257, short, 1, 20), (258, short, 3, at), (259, short, 1, 1),
            (262, short, 1, 2), (273, 4, 3, at + 6), (277, short, 1, 3), (278, short, 1, 20),
            (279, 4, 3, at + 18), (284, short, 1, 2),
        ]
    )  # fmt: skip
    start = at + 30
    tail = struct.pack("<3H", *[bits] * 3) + struct.pack(
        "<6I", start, start + size, start + 2 * size, size, size, size
    )
    return b"II*\0\x08\0\0\0" + directory + bytes(4) + tail + bytes(3 * size)


def test_planar_16_bit_tiff_shows_no_uninitialised_memory():
    assert not prepared(planar_tiff(8)).any()
    assert not prepared(planar_tiff(16)).any()  # as 8 bits
    with pytest.raises(
        InvalidRequest, match="stores each channel separately, which is not decoded"
    ):
        prepared(planar_tiff(16), "UINT16")


def animated_png():
    frames = [files.picture(20, 30, seed=seed) for seed in range(3)]
    return files.encode(frames[0], "PNG", save_all=True, append_images=frames[1:])


def test_animated_png_may_be_truncated_after_its_first_frame():
    whole = animated_png()
    ends = [at for at in range(len(whole)) if whole[at : at + 4] == b"fcTL"]
    data = whole[: ends[1] + 60]
    wanted = decoded(data)
    assert wanted is not None
    np.testing.assert_array_equal(prepared(data), wanted)
    with pytest.raises(InvalidRequest, match="announces"):
        prepared(whole[: ends[1] + 20])

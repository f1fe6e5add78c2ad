"""The two JPEG decoders give equal pixels, and agree on every damaged or unusual file."""

import itertools
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ksrv._native.images import jpeg_decoder
from ksrv._native.images.decode_pool import DecodePool
from ksrv.images import jpeg
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files

native = pytest.mark.skipif(not jpeg_decoder.VERSION, reason="ksrv was built without libjpeg-turbo")

SUBSAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
SIZES = [(1, 1), (7, 9), (33, 17), (100, 201), (64, 64)]
FLAGS = {"GRAY": cv2.IMREAD_GRAYSCALE, "BGR": cv2.IMREAD_COLOR, "RGB": cv2.IMREAD_COLOR_RGB}


def encode(pixels, quality=85, subsampling="4:2:0", progressive=False, restart=0):
    keys = [
        cv2.IMWRITE_JPEG_QUALITY, quality,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SUBSAMPLINGS[subsampling],
        cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive),
        cv2.IMWRITE_JPEG_RST_INTERVAL, restart,
    ]  # fmt: skip
    return cv2.imencode(".jpg", pixels, keys)[1].tobytes()


def decoded_by_cv2(data, order):
    flags = FLAGS[order] | cv2.IMREAD_IGNORE_ORIENTATION
    found = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return None if found is None else found.reshape(*found.shape[:2], -1)


@pytest.fixture
def decoder(monkeypatch):
    if not jpeg_decoder.VERSION:
        pytest.skip("ksrv was built without libjpeg-turbo")
    monkeypatch.setattr(jpeg, "decoder", lambda: "libjpeg-turbo")
    return "libjpeg-turbo"


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_pixels_equal_cv2s(decoder, subsampling):
    kinds = itertools.product(SIZES, (3, 1), (30, 95), (False, True), (0, 3))
    for (height, width), channels, quality, progressive, restart in kinds:
        pixels = files.pixels(height, width, channels)
        data = encode(pixels, quality, subsampling, progressive, restart)
        for order in FLAGS:
            got = np.empty((height, width, 1 if order == "GRAY" else 3), np.uint8)
            assert jpeg_decoder.decode_jpeg_into(data, got, order)
            np.testing.assert_array_equal(got, decoded_by_cv2(data, order))


def odd_files():
    """Files that a camera, an editor or an attacker may send, by name. All have 40 rows and 56 columns."""
    pixels = files.pixels(40, 56)
    plain = encode(pixels)
    frame, scan = plain.index(b"\xff\xc0"), plain.index(b"\xff\xda")
    exif = files.oriented(40, 56, 6)
    twelve = bytearray(plain)
    twelve[frame + 4] = 12
    swapped = bytearray(plain)
    swapped[frame + 10], swapped[frame + 13] = 0x52, 0x47  # components named R and G
    swapped[frame + 16] = 0x42
    rows = encode(pixels, restart=1)
    restarts = [
        at for at in range(len(rows) - 1) if rows[at] == 0xFF and 0xD0 <= rows[at + 1] <= 0xD7
    ]
    wrong = bytearray(rows)
    wrong[restarts[1] + 1] = 0xD7
    dropped = rows[: restarts[0]] + rows[restarts[0] + 2 :]
    adobe = files.segment(0xEE, b"Adobe\0\x64\0\0\0\0\x00")
    return {
        "plain": plain,
        "EXIF": exif,
        "comments": plain[:2] + files.segment(0xFE, b"x" * 60_000) * 3 + plain[2:],
        "ICC": plain[:2] + files.segment(0xE2, b"ICC_PROFILE\0\x01\x01" + bytes(500)) + plain[2:],
        "fill bytes": plain[:frame] + b"\xff" * 30 + plain[frame:],
        "behind the end": plain + b"more" * 100,
        "two pictures": plain + plain,
        "no end": plain[:-2],
        "Adobe without transform": plain[:2] + adobe + plain[2:],
        "12 bits": bytes(twelve),
        "named RGB": bytes(swapped),
        "restart out of order": bytes(wrong),
        "restart dropped": dropped,
        "wrong restart interval": plain[:scan] + files.segment(0xDD, b"\0\1") + plain[scan:],
        "no tables": plain[:2] + plain[frame:],
        "progressive, cut": encode(pixels, progressive=True)[:-400],
    }


@pytest.mark.parametrize("name", sorted(odd_files()))
def test_an_odd_file_gives_cv2s_pixels_or_is_left_to_it(decoder, name):
    data = odd_files()[name]
    for order in FLAGS:
        got = np.empty((40, 56, 1 if order == "GRAY" else 3), np.uint8)
        if jpeg_decoder.decode_jpeg_into(data, got, order):
            np.testing.assert_array_equal(got, decoded_by_cv2(data, order))
        else:
            assert name not in ("plain", "EXIF", "comments", "ICC", "fill bytes", "behind the end")


@pytest.mark.parametrize("name", ["libjpeg-turbo", "cv2"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("resize", ["linear", "opencv", "area", "pillow", "letterbox"])
def test_a_picture_that_fails_leaves_no_pixels_of_another(monkeypatch, name, orientation, resize):
    if name not in jpeg.present_decoders():
        pytest.skip(f"{name} is not installed")
    monkeypatch.setattr(jpeg, "decoder", lambda: name)
    spec = TensorSpec("x", "FP32", (-1, 32, 32, 3), ImageSpec(resize=resize, exif="apply"))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(2))
    good = files.oriented(200, 300, orientation)
    bad = [good[: len(good) * part // 10] for part in (5, 9)] + [b"\xff\xd8\xff", b""]
    sent = [one for damaged in bad for one in (good, damaged)] * 3
    out = np.full((len(sent), 32, 32, 3), 7, np.float32)
    errors = prepare.prepare(sent, out)
    for index, error in enumerate(errors):
        if error is not None:
            assert not out[index].any()
        elif sent[index] is good:
            np.testing.assert_array_equal(out[index], out[0])
        else:  # cv2 decodes what it can of some of the damaged files
            shown = np.empty((1, 32, 32, 3), np.float32)
            assert prepare.prepare([sent[index]], shown) == [None]
            np.testing.assert_array_equal(out[index], shown[0])
    assert sum(error is not None for error in errors) >= 6


def of_first_scans(data):
    """Yield a progressive file with its first scan, its first two scans, and so on."""
    scans = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    assert len(scans) > 5
    for end in scans[1:]:
        yield data[:end] + b"\xff\xd9"
    yield data


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "keys",
    [
        {"resize": "area"},
        {"resize": "pillow", "shorter_side": 48},
        {"resize": "linear", "shorter_side": 90},
        {"resize": "linear", "reduced": "auto"},
    ],
    ids=str,
)
def test_a_progressive_file_with_fewer_scans_gives_cv2s_pixels(
    decoder, monkeypatch, keys, channels
):
    shape = (40, 40, channels)
    spec = TensorSpec("x", "UINT8", (-1, *shape), ImageSpec(**keys))
    prepare = ImagePreparer(spec, Limits(), pool=DecodePool(2))
    sent = list(of_first_scans(encode(files.pixels(100, 300, channels), progressive=True)))
    got, wanted = np.empty((2, len(sent), *shape), np.uint8)
    assert prepare.prepare(sent, got) == [None] * len(sent)
    monkeypatch.setattr(jpeg, "decoder", lambda: "cv2")
    assert prepare.prepare(sent, wanted) == [None] * len(sent)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", FLAGS)
def test_a_progressive_file_cut_in_a_scan_gives_cv2s_pixels_or_is_left_to_it(
    decoder, order, channels
):
    *some, whole = of_first_scans(encode(files.pixels(100, 300, channels), progressive=True))
    got = np.empty((100, 300, 1 if order == "GRAY" else 3), np.uint8)
    for data in [*some, *(whole[:end] + b"\xff\xd9" for end in range(700, len(whole) - 2, 211))]:
        if jpeg_decoder.decode_jpeg_into(data, got, order):
            np.testing.assert_array_equal(got, decoded_by_cv2(data, order))
    assert jpeg_decoder.decode_jpeg_into(whole, got, order)
    np.testing.assert_array_equal(got, decoded_by_cv2(whole, order))


def test_a_damaged_file_gives_cv2s_pixels_or_is_left_to_it(decoder):
    data = encode(files.pixels(64, 64), restart=2)
    random = np.random.default_rng(5)
    taken = 0
    for _ in range(300):
        broken = bytearray(data)
        for at in random.integers(2, len(data), 3):
            broken[at] = random.integers(0, 256)
        got = np.empty((64, 64, 3), np.uint8)
        if jpeg_decoder.decode_jpeg_into(bytes(broken), got, "BGR"):
            taken += 1
            np.testing.assert_array_equal(got, decoded_by_cv2(bytes(broken), "BGR"))
    assert 0 < taken < 300


@native
def test_size_that_differs_from_the_header_is_left_to_cv2():
    data = encode(files.pixels(33, 17))
    for shape in ((33, 18, 3), (32, 17, 3), (66, 34, 3)):
        assert not jpeg_decoder.decode_jpeg_into(data, np.empty(shape, np.uint8), "BGR")


def test_a_decoder_is_chosen_by_its_name(monkeypatch):
    monkeypatch.setattr(jpeg, "_process", jpeg._Process())
    jpeg.choose("cv2")
    assert jpeg.decoder() == "cv2"
    jpeg.choose("auto")
    assert jpeg.decoder() == jpeg.present_decoders()[0]


WITHOUT_LIBJPEG = """
import sys

import ksrv._native.images.jpeg_decoder as native

native.VERSION = ""

from ksrv.cli.main import main

main(sys.argv[1:])
"""


def test_missing_decoder_stops_the_start_with_a_sentence(tmp_path):
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "handler.py").write_text("def handle(batch, context):\n    return {}\n")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBJPEG, "serve", str(tmp_path / "models"),
         "--http", "127.0.0.1:0", "--grpc", "off", "--jpeg-decoder", "libjpeg-turbo"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode != 0
    assert "setting 'jpeg_decoder': the JPEG decoder libjpeg-turbo is not there" in run.stderr
    assert "Traceback" not in run.stderr

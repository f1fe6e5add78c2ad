"""Huffman decoding of JPEGs gives the pixels of libjpeg-turbo's decoder, and no pixels of damaged files."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksrv._native.images import jpeg_decoder

pytestmark = pytest.mark.skipif(
    not jpeg_decoder.VERSION, reason="ksrv was built without libjpeg-turbo"
)

EXTRA = b"\x00"


def picture(height, width, noise, channels=3):
    random = np.random.default_rng(height * 1000 + width * 10 + noise)
    coarse = random.integers(0, 256, (height // 16 + 2, width // 16 + 2, channels), dtype=np.uint8)
    smooth = cv2.resize(coarse, (width, height)).reshape(height, width, channels).astype(int)
    return np.clip(smooth + random.integers(-noise, noise + 1, smooth.shape), 0, 255).astype(
        np.uint8
    )


def encode(pixels, *, quality=90, optimized=False, restart=0, sampling=0x211111):
    keys = [
        cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, int(optimized),
        cv2.IMWRITE_JPEG_RST_INTERVAL, restart, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling,
    ]  # fmt: skip
    return cv2.imencode(".jpg", pixels, keys)[1].tobytes()


def decoded(data, height, width, codes_by_library=False):
    """Return the pixels, or None if the file is left to another decoder."""
    out = np.empty((height, width, 3), np.uint8)
    whole = jpeg_decoder.decode_jpeg_into(data, out, "BGR", codes_by_library=codes_by_library)
    return out if whole else None


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    noise=st.sampled_from([0, 3, 20, 120]),
    quality=st.integers(1, 100),
    optimized=st.booleans(),
    restart=st.sampled_from([0, 0, 1, 2, 7, 30]),
    sampling=st.sampled_from([0x411111, 0x221111, 0x211111, 0x121111, 0x111111]),
    channels=st.sampled_from([1, 3]),
)
@settings(deadline=None)
def test_pixels_equal_the_librarys(size, noise, quality, optimized, restart, sampling, channels):
    data = encode(
        picture(*size, noise, channels),
        quality=quality,
        optimized=optimized,
        restart=restart,
        sampling=sampling,
    )
    np.testing.assert_array_equal(decoded(data, *size), decoded(data, *size, codes_by_library=True))


@pytest.mark.parametrize("quality", [50, 90, 100])
@pytest.mark.parametrize("restart", [0, 5])
def test_picture_with_many_code_windows_is_decoded(quality, restart):
    data = encode(picture(700, 900, 60), quality=quality, restart=restart)
    np.testing.assert_array_equal(
        decoded(data, 700, 900), decoded(data, 700, 900, codes_by_library=True)
    )


def test_tables_of_an_earlier_file_are_not_reused():
    smooth, noisy = picture(64, 80, 0), picture(64, 80, 100)
    files = [
        encode(pixels, optimized=optimized, quality=quality)
        for quality in (40, 97)
        for pixels in (smooth, noisy)
        for optimized in (True, False)
    ]
    wanted = [decoded(data, 64, 80, codes_by_library=True) for data in files]
    for index in np.random.default_rng(3).integers(0, len(files), 60):
        np.testing.assert_array_equal(decoded(files[index], 64, 80), wanted[index])


def test_fill_bytes_between_codes_are_left_to_another_decoder():
    """The library skips fill bytes. This shows that the library did not decode the codes."""
    data = encode(picture(40, 56, 60))
    stuffed = data.index(b"\xff\x00", data.index(b"\xff\xda"))
    filled = data[:stuffed] + b"\xff" + data[stuffed:]
    assert decoded(filled, 40, 56) is None
    np.testing.assert_array_equal(
        decoded(filled, 40, 56, codes_by_library=True), decoded(data, 40, 56)
    )


def test_bytes_after_the_last_code_are_left_to_another_decoder():
    data = encode(picture(40, 56, 20))
    padded = data[:-2] + EXTRA + data[-2:]
    assert decoded(padded, 40, 56) is None
    assert decoded(padded, 40, 56, codes_by_library=True) is None


def test_fill_bytes_before_the_end_are_skipped():
    data = encode(picture(40, 56, 20))
    filled = data[:-2] + b"\xff" * 5 + data[-2:]
    np.testing.assert_array_equal(decoded(filled, 40, 56), decoded(data, 40, 56))


@pytest.mark.parametrize("restart", [0, 2])
def test_truncated_file_is_left_to_another_decoder(restart):
    data = encode(picture(48, 48, 30), restart=restart)
    for length in range(len(data) - 2):
        assert decoded(data[:length] or b"x", 48, 48) is None
        assert decoded((data[:length] or b"x") + b"\xff\xd9", 48, 48) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data, at: data[:at] + data[at + 2 :],
        lambda data, at: data[: at + 1] + bytes([0xD0 | (data[at + 1] + 1 & 7)]) + data[at + 2 :],
        lambda data, at: data[:at] + b"\xff\xd0" + data[at:],
        lambda data, at: data[:at] + EXTRA + data[at:],
        lambda data, at: data[: at - 1] + data[at:],
    ],
    ids=["missing", "another", "twice", "a byte before it", "a byte less before it"],
)
def test_a_file_with_a_damaged_restart_is_left_to_another_decoder(change):
    data = encode(picture(64, 64, 30), restart=2)
    restarts = [
        at for at in range(len(data) - 1) if data[at] == 0xFF and 0xD0 <= data[at + 1] <= 0xD7
    ]
    assert decoded(data, 64, 64) is not None
    for at in restarts[1::3]:
        assert decoded(change(data, at), 64, 64) is None


@given(
    restart=st.sampled_from([0, 2]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_a_damaged_file_that_is_decoded_has_the_pixels_of_the_library(restart, changes):
    data = bytearray(encode(picture(48, 64, 30), restart=restart))
    for place, byte in changes:
        data[2 + int(place * (len(data) - 3))] = byte
    got = decoded(bytes(data), 48, 64)
    if got is not None:
        np.testing.assert_array_equal(got, decoded(bytes(data), 48, 64, codes_by_library=True))

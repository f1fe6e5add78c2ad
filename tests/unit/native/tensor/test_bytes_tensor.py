"""BYTES elements: the three forms, their limits, and the errors."""

import mmap
import struct

import numpy as np
import pytest

from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.bytes_tensor import ElementsError

JPEG = b"\xff\xd8\xff\xe0" + bytes(range(60))


def prefixed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


class TestRead:
    def test_bare_image_whose_first_bytes_are_its_length_minus_four(self):
        # A little-endian TIFF of 2,771,277 bytes passes the prefixed walk by accident.
        tiff = b"II*\0" + bytes(0x002A4949)
        assert len(tiff) == 0x002A4949 + 4
        (element,) = bytes_tensor.read(tiff, 1, None, True, "x")
        assert len(element) == len(tiff)

    def test_prefix_that_looks_like_a_bitmap(self):
        image = JPEG + bytes(0x4D42 - len(JPEG))
        (element,) = bytes_tensor.read(prefixed(image), 1, None, True, "x")
        assert element == image

    def test_claimed_count_allocates_nothing(self):
        with pytest.raises(ElementsError):
            bytes_tensor.read(b"\0" * 16, 2**63, None, False, "x")

    def test_name_is_cut_and_escaped(self):
        with pytest.raises(ElementsError) as caught:
            bytes_tensor.read(b"x", 1, None, False, "\x1b\n" + "é" * 500)
        assert "\x1b" not in str(caught.value) and "..." in str(caught.value)
        assert len(str(caught.value)) < 300


class TestEncode:
    def test_all_accepted_types(self):
        parts = [
            b"ab",
            "é",
            bytearray(b"c"),
            memoryview(b"xyz")[1:],
            "",
            np.bytes_(b"n"),
            np.str_("s"),
        ]
        assert bytes_tensor.encode(parts) == prefixed(
            b"ab", "é".encode(), b"c", b"yz", b"", b"n", b"s"
        )
        assert bytes_tensor.encode([]) == b""
        assert bytes_tensor.encode(iter(["a"])) == prefixed(b"a")

    @pytest.mark.parametrize("bad", [1, None, 1.5, ["a"], np.zeros(3, "u1")])
    def test_other_types_name_the_index(self, bad):
        with pytest.raises(TypeError, match="element 1 is a"):
            bytes_tensor.encode([b"", bad])

    def test_lone_surrogate_is_refused(self):
        with pytest.raises(ElementsError, match="element 0 is a string that has no UTF-8 form"):
            bytes_tensor.encode(["\ud800"])

    def test_element_of_4_gib_is_refused(self):
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        with mmap.mmap(-1, 2**32, flags=flags) as untouched:
            view = memoryview(untouched)
            with pytest.raises(ElementsError, match="element 1 has 4294967296 bytes"):
                bytes_tensor.encode([b"", view])
            view.release()

    def test_strided_view_is_refused(self):
        with pytest.raises(ElementsError, match="element 0 is a view with gaps"):
            bytes_tensor.encode([memoryview(b"abcdef")[::2]])


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\xff\xd8\xff", "jpeg"),
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"GIF89a", "gif"),
        (b"BM", "bmp"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
        (b"RIFF\0\0\0\0WEBP", "webp"),
        (b"\0\0\0\x0cjP", "jpeg2000"),
        (b"\x76\x2f\x31\x01", "openexr"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\xff\xd8", None),
        (b"", None),
    ],
)
def test_signatures_are_recognised(start, name):
    assert bytes_tensor.signature(start) == name

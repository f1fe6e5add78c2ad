"""Limits on image headers, and formats that are refused by name."""

import io
import re
import struct

import numpy as np
import pytest
from PIL import Image, features

from ksrv._native.images.image_header import FORMATS
from ksrv.images.decode_limits import ImageRefused, checked_header
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files

NAMED = {
    **{b"\0\0\0\x1cftyp" + brand: "avif" for brand in (b"avif", b"avis")},
    **{
        b"\0\0\0\x18ftyp" + brand: "heic"
        for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
    },
    **{b"\0\0\0\x18ftyp" + brand: "heif" for brand in (b"mif1", b"msf1")},
    b"\0\0\0\x0cjP  \r\n\x87\n": "jpeg2000",
    b"\xff\x4f\xff\x51\0\x2f": "jpeg2000",
}


@pytest.mark.parametrize(("start", "name"), NAMED.items())
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_known_formats_that_are_not_decoded_are_named(start, name, kind):
    with pytest.raises(ImageRefused) as refused:
        checked_header(kind(start + b"\0\0\0\0more"), Limits(), ("jpeg", "png"))
    assert str(refused.value) == (
        f"is {name}, which is not decoded; the accepted formats are jpeg, png"
    )


@pytest.mark.parametrize("file", [b"", b"ftypavif", b"\0\0\0\x1cftyp", b"\0\0\0\x1cftypmp42 film"])
def test_unknown_files_are_refused(file):
    with pytest.raises(ImageRefused, match="cannot be read"):
        checked_header(file, Limits())


@pytest.mark.skipif(not features.check("avif"), reason="Pillow writes no AVIF here")
def test_a_real_avif_is_refused_by_name():
    file = io.BytesIO()
    Image.new("RGB", (20, 10)).save(file, "AVIF")
    with pytest.raises(ImageRefused, match="is avif, which is not decoded"):
        checked_header(file.getvalue(), Limits())


def webp_on_a_small_canvas(lossless):
    """A still picture of 600x600 with a header of 16x16."""
    still = files.encode(files.picture(600, 600), "WEBP", lossless=lossless)[12:]
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (15).to_bytes(3, "little") * 2
    body = b"WEBP" + canvas + still
    return b"RIFF" + struct.pack("<I", len(body)) + body


def animated_webp_on_a_small_canvas():
    frames = [files.picture(600, 600, seed=seed) for seed in range(2)]
    data = bytearray(files.encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    at = data.index(b"VP8X") + 12
    data[at : at + 6] = (15).to_bytes(3, "little") * 2
    return bytes(data)


def gif_on_a_small_screen():
    data = files.encode(files.picture(600, 600, "P"), "GIF")
    return data[:6] + struct.pack("<HH", 16, 16) + data[10:]


@pytest.mark.parametrize(
    "data",
    [
        webp_on_a_small_canvas(False),
        webp_on_a_small_canvas(True),
        animated_webp_on_a_small_canvas(),
        gif_on_a_small_screen(),
    ],
    ids=["webp", "lossless webp", "animated webp", "gif"],
)
def test_a_picture_larger_than_its_header_is_not_decoded(data):
    """Limits are compared with the header."""
    keys = {"formats": ("webp", "gif"), "channels": "convert"}
    spec = TensorSpec("x", "UINT8", (-1, 16, 16, 3), ImageSpec(**keys))
    header = checked_header(data, Limits(), keys["formats"])
    assert (header.width, header.height) == (16, 16)
    out = np.full((1, 16, 16, 3), 9, np.uint8)
    (error,) = ImagePreparer(spec, Limits()).prepare([data], out)
    assert "is not a whole" in str(error)
    assert not out.any()


def patched(data, old, new):
    assert data.count(old) == 1
    return data.replace(old, new)


def jpeg_of(marker, bits):
    """A JPEG with another frame marker and other bits per sample."""
    return patched(files.jpeg(9, 8, "L"), b"\xff\xc0\0\x0b\x08", bytes((0xFF, marker, 0, 11, bits)))


def tiff_of(tag, old, new):
    """A grey TIFF with a changed number in one of its entries."""
    data = files.encode(files.picture(9, 8, "L"), "TIFF")
    entry = struct.pack("<HHIHH", tag, 3, 1, old, 0)
    return patched(data, entry, entry[:8] + struct.pack("<HH", new, 0))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (jpeg_of(0xC1, 12), "is a JPEG of 12 bits a sample, which is not decoded; save it with 8"),
        (jpeg_of(0xC3, 16), "is a lossless JPEG of 16 bits a sample, which is not decoded; save"),
        (jpeg_of(0xF7, 8), "is a JPEG-LS file, which is not decoded; save it as a usual JPEG"),
        (tiff_of(258, 8, 2), "is a TIFF of 2 bits a sample, which is not decoded; save it with 8"),
        (tiff_of(258, 8, 4), "is a TIFF of 4 bits a sample, which is not decoded"),
        (tiff_of(258, 8, 32), "is a TIFF of 32 bits a sample, which is not decoded"),
        (tiff_of(259, 1, 34925), "is a TIFF compressed with LZMA, which is not decoded; save it"),
        (tiff_of(259, 1, 50000), "is a TIFF compressed with Zstandard, which is not decoded"),
        (
            tiff_of(262, 1, 77),
            "is not a whole TIFF: .* damaged, or of a variant that is not decoded",
        ),
        (files.jpeg(40, 40)[:-300], "is not a whole JPEG: .* the file is cut off or damaged$"),
        (files.damaged_png(40, 40), "is not a whole PNG: .* the file is cut off or damaged$"),
    ],
)
def test_variants_that_are_not_decoded_are_named(data, says):
    spec = TensorSpec("x", "UINT8", (-1, 9, 8, 3), ImageSpec(channels="convert", formats=FORMATS))
    out = np.full((1, 9, 8, 3), 9, np.uint8)
    (error,) = ImagePreparer(spec, Limits()).prepare([data], out)
    assert re.search(f"^image 0 of the input 'x' {says}", str(error)), error
    assert not out.any()

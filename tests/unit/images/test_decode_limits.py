"""Headers of images against the limits, and formats that are refused by name."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, features

from ksrv.images.decode_limits import ImageRefused, checked_header
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.spec import ImageSpec, TensorSpec
from tests.support.images import files


@pytest.mark.parametrize(
    ("brand", "name"), [(b"avif", "avif"), (b"avis", "avif"), (b"heic", "heic"), (b"mif1", "heif")]
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_formats_whose_decoders_take_no_limit_are_refused_by_name(brand, name, kind):
    file = b"\0\0\0\x1cftyp" + brand + b"\0\0\0\0" + brand
    with pytest.raises(ImageRefused) as refused:
        checked_header(kind(file), Limits(), ("jpeg", "png"))
    assert str(refused.value) == (
        f"is {name}, which is not decoded because its decoders take no limit on pixels; the accepted"
        " formats are jpeg, png"
    )


@pytest.mark.parametrize("file", [b"", b"ftypavif", b"\0\0\0\x1cftyp", b"\0\0\0\x1cftypmp42 film"])
def test_other_files_cannot_be_read(file):
    with pytest.raises(ImageRefused, match="cannot be read"):
        checked_header(file, Limits())


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"", "there are no bytes; expected a whole, undamaged file"),
        (
            files.jpeg(9, 8)[:20],
            "the JPEG ends before its dimensions; expected a whole, undamaged file",
        ),
        (files.encode(files.picture(9, 8), "PNG")[:60], "left; expected a whole, undamaged file"),
        (b"%PDF-1.4", "no known image format; the accepted formats are jpeg, png"),
    ],
    ids=["empty", "cut", "cut in a chunk", "another kind"],
)
def test_files_that_cannot_be_read_are_told_with_what_to_do(file, says):
    with pytest.raises(ImageRefused, match=f"cannot be read: .*{says}"):
        checked_header(file, Limits(), ("jpeg", "png"))


@pytest.mark.skipif(not features.check("avif"), reason="Pillow writes no AVIF here")
def test_a_real_avif_is_refused_by_name():
    file = io.BytesIO()
    Image.new("RGB", (20, 10)).save(file, "AVIF")
    with pytest.raises(ImageRefused, match="is avif, which is not decoded"):
        checked_header(file.getvalue(), Limits())


def webp_on_a_small_canvas(lossless):
    """A still picture of 600x600 behind a header that says 16x16."""
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
    """The header is what limits are compared with."""
    keys = {"formats": ("webp", "gif"), "channels": "convert"}
    spec = TensorSpec("x", "UINT8", (-1, 16, 16, 3), ImageSpec(**keys))
    header = checked_header(data, Limits(), keys["formats"])
    assert (header.width, header.height) == (16, 16)
    out = np.full((1, 16, 16, 3), 9, np.uint8)
    (error,) = ImagePreparer(spec, Limits()).prepare([data], out)
    assert "is not a whole" in str(error)
    assert not out.any()

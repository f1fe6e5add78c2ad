"""Headers of images against the limits, and formats that are refused by name."""

import io

import pytest
from PIL import Image, features

from ksrv.images.decode_limits import ImageRefused, checked_header
from ksrv.limits import Limits


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


@pytest.mark.skipif(not features.check("avif"), reason="Pillow writes no AVIF here")
def test_a_real_avif_is_refused_by_name():
    file = io.BytesIO()
    Image.new("RGB", (20, 10)).save(file, "AVIF")
    with pytest.raises(ImageRefused, match="is avif, which is not decoded"):
        checked_header(file.getvalue(), Limits())

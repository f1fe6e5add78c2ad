"""Random pictures, random settings and random damage for the image path."""

import io

import cv2
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ksrv._native.images import image_header
from ksrv._native.images.decode_pool import DecodePool
from ksrv.errors import InvalidRequest
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.examples import examples
from tests.support.images import files, oracle, resized

POOL = DecodePool(2)
sides = st.integers(1, 70)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def encoded(draw, modes=("RGB", "L", "P", "1", "RGBA", "LA")):
    """A valid JPEG or PNG of any size and mode."""
    height, width, seed = draw(sides), draw(sides), draw(st.integers(0, 999))
    mode = draw(st.sampled_from(modes))
    if mode in ("RGB", "L") and draw(st.booleans()):
        options = {
            "progressive": draw(st.booleans()),
            "subsampling": draw(st.sampled_from([0, 1, 2])),
            "quality": draw(st.sampled_from([30, 90])),
        }
        return files.jpeg(height, width, mode, seed, **options)
    picture = Image.fromarray(files.pixels(height, width, 4, seed)).convert(mode)
    return files.encode(picture, "PNG")


@given(encoded())
@RELAXED
def test_headers_agree_with_both_libraries(data):
    header = image_header.probe(data)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert (header.height, header.width) == decoded.shape[:2]
    assert header.channels == (decoded.shape[2] if decoded.ndim == 3 else 1)
    file = Image.open(io.BytesIO(data))
    assert (header.format, header.width, header.height) == (file.format.lower(), *file.size)


@st.composite
def damaged(draw):
    data = bytearray(draw(encoded()))
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        if kind == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=20))
        else:
            data[at:at] = data[max(at - 30, 0) : at]
    return bytes(data)


@given(st.one_of(st.binary(max_size=300), damaged()))
@examples(300)
def test_damaged_picture_is_decoded_or_refused(data):
    try:
        header = image_header.probe(data)
    except image_header.ImageError:
        return
    assert header.format in image_header.FORMATS
    assert 1 <= header.orientation <= 8


@given(damaged(), encoded(modes=("RGB",)))
@examples(200)
def test_damaged_picture_shows_no_other_memory(bad, good):
    limits = Limits(image_pixels=1_000_000)
    spec = TensorSpec("x", "UINT8", (-1, 16, 16, 3), ImageSpec(channels="convert"))
    prepare = ImagePreparer(spec, limits, pool=POOL)
    clean = np.zeros((1, 16, 16, 3), np.uint8)
    alone = prepare.prepare([bad], clean)[0]
    out = np.full((2, 16, 16, 3), 0x5A, np.uint8)
    errors = prepare.prepare([good, bad], out)
    assert errors[0] is None
    assert (errors[1] is None) == (alone is None)
    np.testing.assert_array_equal(out[1], clean[0])
    if errors[1] is not None:
        assert isinstance(errors[1], InvalidRequest) and "image 1 of" in str(errors[1])
        assert not out[1].any()


@st.composite
def prepared(draw):
    """A file, a section that takes it, a target size and a datatype."""
    data = draw(encoded())
    channels = draw(st.sampled_from([1, 3]))
    keys = {
        "channels": "convert",
        "color": "GRAY" if channels == 1 else draw(st.sampled_from(["RGB", "BGR"])),
        "resize": draw(st.sampled_from(["linear", "opencv", "area", "pillow"])),
        "arithmetic": draw(st.sampled_from(["fast", "exact"])),
        "exif": draw(st.sampled_from(["ignore", "apply"])),
    }
    kind = draw(st.sampled_from(sorted(oracle.NUMPY)))
    if kind.startswith("FP"):
        keys["scale"] = draw(st.sampled_from([1.0, 255.0, 3.0]))
        keys["mean"] = draw(st.sampled_from([(), (0.5,), (0.1, 0.2, 0.3)[:channels]]))
        keys["std"] = draw(st.sampled_from([(), (0.5,), (0.7, 0.8, 0.9)[:channels]]))
    height, width = draw(sides), draw(sides)
    if draw(st.booleans()):
        keys["shorter_side"] = max(height, width) + draw(st.integers(0, 20))
    return data, ImageSpec(**keys), (height, width, channels), kind


@given(prepared())
@examples(200)
def test_any_slice_equals_the_list_slice(case):
    data, section, shape, kind = case
    prepare = ImagePreparer(TensorSpec("x", kind, (-1, *shape), section), Limits(), pool=POOL)
    out = np.empty((1, *shape), oracle.NUMPY[kind])
    assert prepare.check([data], 1).shape == out.shape
    assert prepare.prepare([data], out) == [None]
    np.testing.assert_array_equal(out[0], oracle.prepare(data, section, shape, kind))


def test_picture_of_target_size_is_cast_before_resize():
    section = ImageSpec(channels="convert", color="GRAY", shorter_side=5)
    prepare = ImagePreparer(TensorSpec("x", "INT16", (-1, 3, 3, 1), section), Limits(), pool=POOL)
    stored = np.array([[150, 161, 154], [151, 161, 178], [172, 172, 183]], np.uint8)
    data = cv2.imencode(".png", stored)[1].tobytes()
    out = np.empty((1, 3, 3, 1), np.int16)
    assert prepare.prepare([data], out) == [None]
    # cv2 rounds sums of 16-bit values in another way than sums of 8-bit values, which would begin with 154.
    wanted = cv2.resize(stored.astype(np.int16), (5, 5))[1:4, 1:4, np.newaxis]
    np.testing.assert_array_equal(out[0], wanted)
    np.testing.assert_array_equal(out[0], oracle.prepare(data, section, (3, 3, 1), "INT16"))


@given(
    st.tuples(sides, sides),
    st.tuples(sides, sides),
    st.sampled_from([(1, "L"), (3, "RGB"), (4, "RGBA")]),
    st.integers(0, 2**32 - 1),
)
@RELAXED
def test_resize_equals_pillow(size, target, mode, seed):
    channels, name = mode
    picture = np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)
    file = Image.fromarray(picture if channels > 1 else picture[:, :, 0], name)
    wanted = np.asarray(file.resize(target[::-1], Image.BILINEAR)).reshape(*target, channels)
    np.testing.assert_array_equal(resized.pillow(picture, *target), wanted)

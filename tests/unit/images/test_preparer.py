"""Images become rows, for each key of `image:` alone and combined, compared with a simple implementation."""

import gc
import itertools
import re

import cv2
import numpy as np
import pytest

from ksrv._native.images.decode_pool import DecodePool
from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed, InvalidRequest, Overloaded
from ksrv.images import image_input
from ksrv.images.geometry import Geometry
from ksrv.images.preparer import ImagePreparer
from ksrv.limits import Limits
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ImageSpec, TensorSpec
from tests.support.images import files, oracle

POOL = DecodePool(2)


def preparer(shape, datatype_name="FP32", limits=None, **keys):
    spec = TensorSpec("pixels", datatype_name, (-1, *shape), ImageSpec(**keys))
    return ImagePreparer(spec, limits or Limits(), pool=POOL)


def rows_for(prepare, elements, dirt=0xA5):
    shape = prepare.check(elements, len(elements)).shape
    dtype = DTYPES[prepare.input.spec.datatype]
    out = buffer_pool.array(buffer_pool.lease(int(np.prod(shape)) * dtype.itemsize), dtype, shape)
    out.view(np.uint8)[...] = dirt
    return out


def prepared(prepare, *elements):
    out = rows_for(prepare, elements)
    assert prepare.prepare(elements, out) == [None] * len(elements)
    return out


def same(got, wanted, exact=True):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if exact:
        np.testing.assert_array_equal(got, wanted)
    else:
        np.testing.assert_allclose(got, wanted, rtol=3e-7, atol=3e-7)


def test_bfloat16_is_rounded_from_float32():
    data = files.jpeg(40, 60)
    got = prepared(preparer((20, 20, 3), "BF16", scale=255.0), data)
    wide = prepared(preparer((20, 20, 3), "FP32", scale=255.0), data)
    assert got.dtype == np.uint16
    widened = (got.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(widened, wide, rtol=2**-8)


def test_files_that_keep_their_channels_are_taken():
    for data, channels in (
        (files.rgba_png(20, 30), 4),
        (files.png(20, 30, "LA"), 4),
        (files.png(20, 30, "P"), 3),
        (files.png(20, 30, "1"), 1),
        (files.jpeg(20, 30, "CMYK"), 3),
        (files.png16(20, 30, 1), 1),
        (files.png16(20, 30, 4), 4),
    ):
        for size in ((20, 30), (11, 13)):
            shape = (*size, channels)
            got = prepared(preparer(shape), data)
            same(got[0], oracle.prepare(data, ImageSpec(), shape, "FP32"))


# ---- shapes -----------------------------------------------------------------------------------


def test_free_channels_are_those_of_the_section():
    assert preparer((20, 20, -1), color="GRAY").check([files.png(9, 9, "L")], 1).shape[3] == 1
    convert = preparer((20, 20, -1), channels="convert")
    assert convert.check([files.png(9, 9, "L")], 1).shape[3] == 3
    free = preparer((20, 20, -1), formats=("bmp",))
    bmp = files.encode(files.picture(9, 9, "L"), "BMP")
    assert free.check([bmp], 1).shape[3] == 1


# ---- the keys, alone and combined --------------------------------------------------------------

MIXED = {
    "grey jpeg": files.jpeg(50, 70, "L", seed=4),
    "png": files.png(33, 57, seed=5),
    "palette": files.png(40, 40, "P", seed=6),
    "rgba": files.rgba_png(45, 52, seed=7),
    "16 bits": files.png16(48, 40, 3, seed=8),
}
IMAGENET = {"scale": 255.0, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def test_cmyk_is_the_same_in_both_orders():
    data = files.jpeg(30, 30, "CMYK")
    bgr = prepared(preparer((30, 30, 3), "UINT8"), data)
    rgb = prepared(preparer((30, 30, 3), "UINT8", color="RGB"), data)
    same(rgb, bgr[..., ::-1])


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_alpha_is_added_opaque(color):
    prepare = preparer((40, 52, 4), "UINT8", color=color, channels="convert", resize="area")
    for name in ("png", "grey jpeg", "16 bits", "palette"):
        assert (prepared(prepare, MIXED[name])[..., 3] == 255).all()
    got = prepared(preparer((45, 52, 4), "UINT8", color=color, channels="convert"), MIXED["rgba"])
    wanted = cv2.imdecode(np.frombuffer(MIXED["rgba"], np.uint8), cv2.IMREAD_UNCHANGED)
    same(got[0], wanted[..., [2, 1, 0, 3]] if color == "RGB" else wanted)


@pytest.mark.parametrize(
    ("size", "target", "scale"),
    [((640, 427), (224, 224), 1), ((448, 448), (224, 224), 2), ((900, 1700), (224, 224), 4),
     ((801, 999), (100, 100), 8), ((101, 99), (100, 100), 1)],
)  # fmt: skip
def test_reduced_takes_the_largest_scale_that_keeps_the_size(size, target, scale):
    data = files.jpeg(*size)
    got = prepared(preparer((*target, 3), "UINT8", reduced="auto"), data)
    flag = getattr(cv2, f"IMREAD_REDUCED_COLOR_{scale}") if scale > 1 else cv2.IMREAD_COLOR
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    same(got[0], cv2.resize(decoded, target[::-1], interpolation=cv2.INTER_LINEAR))
    rgb = prepared(preparer((*target, 3), "UINT8", reduced="auto", color="RGB"), data)
    same(rgb[0], got[0][..., ::-1])


def test_reduced_combines_with_other_keys():
    grey = files.jpeg(400, 400, "L")
    got = prepared(preparer((100, 100, 1), "UINT8", reduced="auto"), grey)
    decoded = cv2.imdecode(np.frombuffer(grey, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_4)
    same(got[0, :, :, 0], decoded)
    # A PNG is never scaled during decoding, and no image is scaled without a resize.
    png = files.png(400, 400)
    same(
        prepared(preparer((100, 100, 3), reduced="auto"), png),
        prepared(preparer((100, 100, 3)), png),
    )
    turned = files.oriented(400, 200, 6)
    got = prepared(preparer((100, 200, 3), "UINT8", reduced="auto", exif="apply"), turned)
    half = cv2.imdecode(
        np.frombuffer(turned, np.uint8),
        cv2.IMREAD_REDUCED_COLOR_2 | cv2.IMREAD_IGNORE_ORIENTATION,
    )
    same(got[0], np.ascontiguousarray(np.rot90(half, -1)))
    crop = preparer((50, 50, 3), "UINT8", reduced="auto", shorter_side=50, resize="area")
    eighth = cv2.imdecode(np.frombuffer(files.jpeg(400, 800), np.uint8), cv2.IMREAD_REDUCED_COLOR_8)
    same(prepared(crop, files.jpeg(400, 800))[0], eighth[:, 25:75])


@pytest.mark.parametrize("kind", ["int32", "float32", "float64", "int16", "int8"])
@pytest.mark.parametrize("datatype_name", ["UINT8", "FP32"])
def test_float_samples_are_refused(kind, datatype_name):
    encoded = cv2.imencode(".tiff", np.ones((4, 4), kind))[1].tobytes()
    prepare = preparer((-1, -1, -1), datatype_name, formats=("tiff",))
    with pytest.raises(
        InvalidRequest, match=f"image 0 of the input 'pixels' has samples of {kind}"
    ):
        raise prepare.prepare([encoded], np.empty((1, 4, 4, 1), DTYPES[datatype_name]))[0]


def test_pillow_refuses_sixteen_bits():
    out = np.full((1, 20, 20, 3), 3, np.float32)
    (error,) = preparer((20, 20, 3), resize="pillow").prepare([MIXED["16 bits"]], out)
    assert "has 16 bits per sample" in str(error) and not out.any()


def test_shorter_side_above_the_limit_of_pixels_is_refused():
    with pytest.raises(ValueError, match="shorter_side is 8001"):
        preparer((20, 20, 3), shorter_side=8001)


# ---- batches ------------------------------------------------------------------------------------


def test_rows_outside_of_the_call_stay_untouched():
    out = np.full((5, 16, 16, 3), 9, np.float32)
    elements = [files.jpeg(30, 30), files.png(30, 30)]
    assert preparer((16, 16, 3)).prepare(elements, out, [2, 3]) == [None, None]
    assert (out[[0, 1, 4]] == 9).all()
    assert not (out[2:4] == 9).all()


@pytest.mark.parametrize("count", [1, 3, 12])
def test_bad_images_fail_alone_and_show_no_other_pixels(count):
    prepare = preparer((150, 150, 3))
    good = files.jpeg(400, 500)
    broken = {
        "empty": b"",
        "noise": b"not an image at all",
        "cut jpeg": good[: len(good) // 2],
        "cut png": files.png(300, 300)[:-40],
        "no end": good[:-1],
        "header only": good[:300],
        "bomb": files.png_claiming(30000, 30000),
        "jpeg bomb": files.jpeg_claiming(30000, 30000),
        "zero": files.png_claiming(0, 10),
        "wrong channels": files.png(300, 300, "L"),
    }
    elements = list(itertools.chain.from_iterable((good, bad) for bad in broken.values())) * count
    out = buffer_pool.array(
        buffer_pool.lease(len(elements) * 150 * 150 * 3 * 4), "<f4", (len(elements), 150, 150, 3)
    )
    out[...] = 123.0  # another request's pixels
    errors = prepare.prepare(elements, out)
    alone = prepared(prepare, good)[0]
    for index, error in enumerate(errors):
        if index % 2 == 0:
            assert error is None
            same(out[index], alone)
        else:
            assert isinstance(error, InvalidRequest)
            assert f"image {index} of the input 'pixels'" in str(error)
            assert not out[index].any(), "pixels of another request"


def test_a_decoder_that_disagrees_with_the_header_is_not_trusted(monkeypatch):
    monkeypatch.setattr("ksrv.images.opencv.decode", lambda *_: np.ones((9, 9, 3), np.uint8))
    out = np.full((1, 8, 8, 3), 5, np.float32)
    (error,) = preparer((8, 8, 3)).prepare([files.png(10, 10)], out)
    assert "decodes to 9x9, and its header says 10x10" in str(error)
    assert not out.any()


def without_memory():
    error = cv2.error("Insufficient memory")
    error.code = cv2.Error.StsNoMem
    return error


@pytest.mark.parametrize("encode", [files.jpeg, files.png])
@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (RuntimeError("a bug"), HandlerFailed, "cannot be prepared: the server failed with RuntimeError"),
        (cv2.error("a bug"), HandlerFailed, "cannot be prepared: the server failed with error"),
        (MemoryError(), Overloaded, "cannot be decoded because the server has no memory for it"),
        (without_memory(), Overloaded, "cannot be decoded because the server has no memory for it"),
    ],
    ids=["exception", "cv2", "memory", "memory in cv2"],
)  # fmt: skip
def test_internal_error_fails_only_its_image(monkeypatch, caplog, encode, raised, kind, told):
    inside = Geometry.inside

    def fail(self, size, target):
        if size == (299, 300):
            raise raised
        return inside(self, size, target)

    monkeypatch.setattr("ksrv.images.geometry.Geometry.inside", fail)
    prepare = preparer((80, 80, 3))
    out = np.full((4, 80, 80, 3), 5, np.float32)
    errors = prepare.prepare([encode(300, 300), encode(299, 300)] * 2, out)
    assert errors[::2] == [None, None] and out[0].any()
    assert [str(error) for error in errors[1::2]] == [
        f"image {index} of the input 'pixels' {told}" + "; try again later" * (kind is Overloaded)
        for index in (1, 3)
    ]
    assert all(type(error) is kind for error in errors[1::2])
    assert not out[1::2].any()
    logged = [] if kind is Overloaded else [raised, raised]
    assert [record.exc_info[1] for record in caplog.records] == logged


def test_internal_error_in_the_header_reader_fails_only_its_image(monkeypatch):
    checked = image_input.checked_header

    def fail(element, *more):
        if element == b"ours":
            raise MemoryError
        return checked(element, *more)

    monkeypatch.setattr(image_input, "checked_header", fail)
    out = np.full((2, 8, 8, 3), 5, np.float32)
    errors = preparer((8, 8, 3)).prepare([files.png(8, 8), b"ours"], out)
    assert errors[0] is None and isinstance(errors[1], Overloaded)
    assert out[0].any() and not out[1].any()


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [files.png_claiming, files.jpeg_claiming])
def test_pixels_at_the_limit_are_accepted(claim):
    tight = preparer((8, 8, 3), limits=Limits(image_pixels=400, request_pixels=1000))
    assert tight.check([claim(20, 20)], 1).shape == (1, 8, 8, 3)
    with pytest.raises(InvalidRequest, match="has 21x20 pixels"):
        tight.check([claim(21, 20)], 1)
    with pytest.raises(
        InvalidRequest, match=r"1200 pixels together, above the limit --limits-request-pixels"
    ):
        tight.check([claim(20, 20)] * 3, 3)


@pytest.mark.parametrize("resize", ["linear", "area", "pillow"])
@pytest.mark.parametrize("kind", ["UINT8", "FP32"])
@pytest.mark.parametrize("encode", [files.png, files.jpeg])
def test_thin_pictures_that_would_become_large_are_refused(encode, kind, resize):
    """Some of these resizes make the whole picture before they crop it: 450 MiB for a file of 88 bytes."""
    prepare = preparer((8, 8, 3), kind, resize=resize, shorter_side=224, exif="apply")
    told = (
        r"image 0 of the input 'pixels' is 2000x1 and is resized to 448000x224, above the"
        r" limit --limits-image-pixels \(64000000 pixels\); crop the image before you send it"
    )
    with pytest.raises(InvalidRequest, match=told):
        prepare.check([encode(1, 2000)], 1)
    with pytest.raises(InvalidRequest, match=r"is 1x2000 .* resized to 224x448000"):
        prepare.check([encode(2000, 1)], 1)
    out = np.full((1, 8, 8, 3), 5, oracle.NUMPY[kind])
    (error,) = prepare.prepare([encode(1, 2000)], out)
    assert isinstance(error, InvalidRequest) and re.match(told, str(error))
    assert not out.any()


def test_open_sizes_that_would_become_large_are_refused():
    prepare = preparer((48, -1, 3), limits=Limits(image_pixels=100_000))
    told = r"is 90x1 and is resized to 4320x48, above the limit --limits-image-pixels"
    with pytest.raises(InvalidRequest, match=told):
        prepare.check([files.png(1, 90)], 1)
    assert prepare.check([files.png(10, 90)], 1).shape == (1, 48, 432, 3)
    boxed = preparer(
        (48, -1, 3), limits=Limits(image_pixels=100_000, request_pixels=200_000), resize="letterbox"
    )
    wide, small = files.png(1, 40), files.png(48, 48)
    assert boxed.check([wide], 1).shape == (1, 48, 1920, 3)
    with pytest.raises(
        InvalidRequest, match=r"become 1920x48 pixels each, together above the limit"
    ):
        boxed.check([wide, small, small], 3)


def test_a_letterbox_of_an_open_width_has_room_for_the_widest():
    boxed = preparer(
        (40, -1, 3), resize="letterbox", align="start", pad=(1.0, 2.0, 3.0), multiple=8
    )
    out = prepared(boxed, files.png(40, 20), files.png(20, 33), files.png(40, 66))
    assert out.shape == (3, 40, 72, 3)
    assert (out[0, :, 20:] == (1, 2, 3)).all() and (out[2, :, 66:] == (1, 2, 3)).all()
    alone = prepared(boxed, files.png(20, 33))
    np.testing.assert_array_equal(out[1], alone[0])


@pytest.mark.parametrize("encode", [files.png, files.jpeg])
@pytest.mark.parametrize(
    ("kind", "border"),
    [("FP32", 127.5), ("FP16", 127.5), ("UINT8", 128), ("INT8", 127), ("BF16", 0x42FF)],
)
def test_the_border_is_converted_like_pixels(encode, kind, border):
    boxed = preparer((10, 30, 3), kind, resize="letterbox", align="start", pad=(127.5,))
    out = prepared(boxed, encode(10, 10))
    assert (out[0, :, 10:] == border).all()


def test_the_border_of_a_picture_of_16_bits_counts_in_8_bits():
    boxed = preparer((10, 30, 3), "UINT16", resize="letterbox", align="start", pad=(100.0,))
    assert (prepared(boxed, files.png16(10, 10, 3))[0, :, 10:] == 25700).all()


def test_the_time_that_a_large_resize_takes_counts():
    prepare = preparer((8, 8, 3), "UINT8", shorter_side=200)
    thin, small = files.png(1, 1500), files.png(200, 210)
    assert prepare.check([thin], 1).decode_ns >= 4 * 200 * 300_000
    assert prepare.check([small], 1).decode_ns < 1_000_000


def test_pictures_without_pixels_are_refused():
    for width, height in ((0, 10), (10, 0), (0, 0)):
        for claim in (files.png_claiming, files.jpeg_claiming):
            with pytest.raises(InvalidRequest, match="has no pixels"):
                preparer((8, 8, 3)).check([claim(width, height)], 1)


def test_scratch_memory_is_freed():
    prepare = preparer((64, 64, 3), resize="pillow", shorter_side=70, **IMAGENET)
    gc.collect()  # the tests before leave arrays in cycles
    before = buffer_pool.statistics()["leased"]
    out = np.empty((3, 64, 64, 3), np.float32)
    prepare.prepare([files.jpeg(200, 300), files.png(10, 10), b"broken"], out)
    assert buffer_pool.statistics()["leased"] == before

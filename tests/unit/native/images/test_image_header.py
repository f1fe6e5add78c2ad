"""The header reader and the decode threads."""

import io
import itertools
import os
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from PIL import Image

from ksrv._native.images import image_header
from ksrv._native.images.decode_pool import DecodePool
from tests.support.images import files
from tests.support.images.files import segment


def unchanged(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize(
    "data",
    [
        files.jpeg(20, 30, "CMYK"),
        files.jpeg(50, 40, comment=b"x" * 60_000),
        files.jpeg(50, 40, icc_profile=b"p" * 200_000),
        files.png(20, 30, "P", transparency=3),
        files.png(20, 30, "RGB", transparency=(1, 2, 3)),
        files.png(20, 30, "L", transparency=3),
        files.png16(20, 30, 1),
        files.png16(20, 30, 3),
        files.png16(20, 30, 4),
    ],
)
def test_headers_say_what_cv2_decodes(data):
    header = image_header.probe(data)
    pixels = unchanged(data)
    assert (header.height, header.width) == pixels.shape[:2]
    assert header.channels == (1 if pixels.ndim == 2 else pixels.shape[2])
    assert header.bit_depth == pixels.itemsize * 8
    assert header.format == Image.open(io.BytesIO(data)).format.lower()
    assert header.orientation == 1


def exif_segment(tiff):
    return segment(0xE1, b"Exif\0\0" + tiff)


def with_segment(segment):
    data = files.jpeg(20, 30)
    return data[:2] + segment + data[2:]


@pytest.mark.parametrize(
    ("tiff", "orientation"),
    [
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 3, 1, 6, 0), 6),
        (b"MM\0*\0\0\0\x08" + struct.pack(">HHHIHH", 1, 0x112, 3, 1, 6, 0), 6),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x112, 4, 1, 8), 8),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 3, 1, 9, 0), 1),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 3, 1, 0, 0), 1),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 7, 1, 6, 0), 1),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 99, 1, 6, 0), 1),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 1, 0x112, 3, 0, 6, 0), 1),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIIH", 1, 0x112, 3, 3, 22, 6), 6),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x112, 3, 3, 2**32 - 1), 1),
        (
            b"II*\0\x08\0\0\0"
            + struct.pack("<H" + "HHIHH" * 2, 2, 0x112, 3, 1, 6, 0, 0x112, 3, 1, 3, 0),
            6,
        ),
        (b"II*\0\x08\0\0\0" + struct.pack("<HHHIHH", 9, 0x112, 3, 1, 6, 0), 6),
        (b"II*\0\xff\xff\xff\xff", 1),
        (b"II*\0\x08\0\0\0", 1),
        (b"II*\0\x08\0\0\0\xff\xff" + bytes(60), 1),
        (b"garbage", 1),
        (b"", 1),
    ],
)
def test_damaged_orientation_is_ignored(tiff, orientation):
    header = image_header.probe(with_segment(exif_segment(tiff)))
    assert header[:3] == ("jpeg", 30, 20) and header.orientation == orientation


def test_first_exif_segment_with_an_orientation_counts():
    first, second = (exif_segment(files.exif(value)) for value in (6, 3))
    empty = exif_segment(b"II*\0\x08\0\0\0\0\0")
    assert image_header.probe(with_segment(empty + first + second)).orientation == 6


def test_fill_bytes_and_markers_without_parameters_are_skipped():
    assert image_header.probe(with_segment(b"\xff\xff\xff\x01\xff\xd0"))[:3] == ("jpeg", 30, 20)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (b"\xff", "no known image format"),
        (b"GIF88a", "no known image format"),
        (b"\xff\xd8\xff", "JPEG ends before its dimensions"),
        (files.jpeg(20, 30)[:100], "JPEG ends before its dimensions"),
        (b"\xff\xd8\xff\xd9", "JPEG header is damaged"),
        (b"\xff\xd8\xff\xda\0\x08", "JPEG header is damaged"),
        (b"\xff\xd8\xff\xe0\0\x01", "JPEG ends before its dimensions"),
        (b"\xff\xd8\xff\xe0\0\x02no", "JPEG ends before its dimensions"),
        (b"\xff\xd8\xff\xc0\0\x08\x08\0\x09\0\x09", "JPEG ends before its dimensions"),
        (b"\xff\xd8\xff\xc0\0\x08\x08\0\x09\0\x09\0", "JPEG header is damaged"),
        (b"\xff\xd8\xff\xc0\0\x17\x08\0\x09\0\x09\x05" + bytes(15), "JPEG header is damaged"),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 5000, "JPEG ends before its dimensions"),
        (b"\x89PNG\r\n\x1a\n", "PNG ends before its dimensions"),
        (files.png(20, 30)[:30], "PNG ends before its dimensions"),
        (files.png(20, 30).replace(b"IHDR", b"IHDX"), "PNG header is damaged"),
        (files.png_claiming(9, 9, depth=7), "PNG header is damaged"),
        (files.png_claiming(9, 9, color=5), "PNG header is damaged"),
        (files.png_claiming(2**31, 9), "PNG header is damaged"),
        (files.png_claiming(9, 2**32 - 1), "PNG header is damaged"),
        (b"RIFF\0\0\0\0WEBP", "WEBP ends before its dimensions"),
        (b"RIFF\0\0\0\0WEBPVP8?" + bytes(30), "WEBP header is damaged"),
        (b"RIFF\0\0\0\0WEBPVP8L" + bytes(30), "WEBP header is damaged"),
        (b"BM123", "BMP ends before its dimensions"),
        (b"GIF89a12", "GIF ends before its dimensions"),
        (b"II*\0\xff\xff\xff\xff", "TIFF ends before its dimensions"),
        (b"MM\0*\0\0\0\x08\xff\xff", "TIFF ends before its dimensions"),
    ],
)
def test_unreadable_headers_are_named(data, problem):
    with pytest.raises(image_header.ImageError, match=problem):
        image_header.probe(data)


def tiff_of(*entries, order="<"):
    directory = struct.pack(order + "H", len(entries))
    for tag, value in entries:
        directory += struct.pack(order + "HHII", tag, 4, 1, value)
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return start + directory + bytes(4)


def big_tiff_of(*entries, order="<"):
    directory = struct.pack(order + "Q", len(entries))
    for tag, value in entries:
        directory += struct.pack(order + "HHQQ", tag, 16, 1, value)
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HHHQ", 43, 8, 0, 16)
    return start + directory + bytes(8)


@pytest.mark.parametrize("made", [tiff_of, big_tiff_of])
@pytest.mark.parametrize("order", "<>")
def test_first_of_two_equal_tiff_entries_counts(made, order):
    header = image_header.probe(
        made((256, 20), (257, 10), (274, 6), (256, 9), (274, 1), order=order)
    )
    assert header[1:3] == (10, 20)  # the decoder turns it
    assert header.orientation == 1


def test_big_tiff_sizes_beyond_32_bits_are_above_every_limit():
    assert image_header.probe(big_tiff_of((256, 2**32 + 9), (257, 2)))[1:3] == (2**32 - 1, 2)


@pytest.mark.parametrize("count", [3, 2**15, 2**63, 2**64 - 1])
def test_tiff_directory_longer_than_the_file_is_refused(count):
    data = bytearray(big_tiff_of((256, 20), (257, 10)))
    data[16:24] = struct.pack("<Q", count)
    with pytest.raises(image_header.ImageError, match="TIFF ends before its dimensions"):
        image_header.probe(data)


def test_a_tile_far_beyond_its_picture_is_refused():
    base = ((256, 10), (257, 10))
    assert image_header.probe(tiff_of(*base, (322, 256), (323, 256)))[1:3] == (10, 10)
    for tile in ((322, 60_000), (323, 60_000)):
        with pytest.raises(image_header.ImageError, match="TIFF header is damaged"):
            image_header.probe(tiff_of(*base, tile))


@pytest.mark.parametrize("kind", [b"IDAT", b"tEXt", b"fdAT", b"IEND", b"abcd"])
@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 200_000_000, 7])
def test_chunk_longer_than_the_file_is_refused(kind, length):
    data = files.png_announcing(kind, length, b"pixels")
    with pytest.raises(
        image_header.ImageError, match=rf"announces {length} bytes .* and 6 are left"
    ):
        image_header.probe(data)


def test_every_truncated_chunk_is_refused():
    data = files.png(20, 30)
    at = data.index(b"IDAT") - 4
    for end in range(at + 8, len(data) - 12):
        with pytest.raises(image_header.ImageError, match=f"chunk at byte {at} announces"):
            image_header.probe(data[:end])


def test_compressed_texts_are_bounded():
    def texts(kind, count):
        return files.png(8, 8)[:33] + files.chunk(kind, b"k\0\0x") * count + files.png(8, 8)[33:]

    for kind in (b"zTXt", b"iTXt"):
        assert image_header.probe(texts(kind, 64))[:3] == ("png", 8, 8)
        with pytest.raises(image_header.ImageError, match="more than 64 compressed texts"):
            image_header.probe(texts(kind, 65))
    assert image_header.probe(texts(b"tEXt", 5000))[:3] == ("png", 8, 8)


# ---- what decoding costs -----------------------------------------------------------------------


FRAME = struct.pack(">BHHB", 8, 16, 16, 3) + b"\1\x11\0\2\x11\0\3\x11\0"
SCAN = segment(0xDA, b"\1\1\0\0\0\0")


def scans(*behind, frame=0xC2):
    return image_header.probe(b"\xff\xd8" + segment(frame, FRAME) + b"".join(behind)).scans


def test_scans_are_counted_to_the_end():
    for count in (10, 11, 94, 95, 2000):
        assert image_header.probe(files.jpeg_of_scans(count)).scans == count
    for mode, progressive in itertools.product(("L", "RGB", "CMYK"), (True, False)):
        data = files.jpeg(64, 48, mode, progressive=progressive)
        assert image_header.probe(data).scans == data.count(b"\xff\xda")
    assert scans() == 0
    assert scans(SCAN) == scans(SCAN, b"\xff") == scans(SCAN, b"\xff\xda") - 1 == 1


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"pixels\xff\0more",
        b"\xff\xd0\xff\xd7",
        b"\xff\xff\xff",
        b"\xff\x02\xff\xbf\xff\x01",
        segment(0xC4, b"table"),
        segment(0xE1, b"a thumbnail has scans too" + SCAN),
        segment(0xFE, SCAN),
        b"\xff\xfe\0\0",
    ],
)
def test_bytes_between_scans_hide_no_scan(between):
    assert scans(SCAN, between, SCAN, between, SCAN, b"\xff\xd9") == 3


def test_scans_after_the_picture_are_not_counted():
    assert scans(SCAN, b"\xff\xd9", SCAN) == 1
    whole = segment(0xDA, b"\3\1\0\2\0\3\0\0\0\0")
    assert scans(whole, whole, frame=0xC0) == 1  # the decoder reads no more than the first
    assert scans(SCAN, SCAN, SCAN, frame=0xC0) == 3


PEAK = """
import sys
import cv2
import numpy as np
from ksrv._native.images import image_header

data = sys.stdin.buffer.read()
header = image_header.probe(data)
told = header.width * header.height * header.pixel_bytes
cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)[:1].copy()

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
used = memory("VmHWM") - before
assert used < told + (8 << 20), (used, told)
"""


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer holds more")
@pytest.mark.parametrize(
    "made",
    [
        lambda: files.jpeg(1500, 2000),
        lambda: files.jpeg(1500, 2000, progressive=True),
        lambda: files.jpeg(1500, 2000, "CMYK", progressive=True),
        lambda: files.png(1500, 2000),
        lambda: files.png16(1500, 2000, 4),
        lambda: files.encode(files.picture(1500, 2000), "WEBP"),
        lambda: files.encode(files.picture(1500, 2000, "P"), "GIF"),
        lambda: files.encode(files.picture(1500, 2000), "BMP"),
        lambda: files.encode(files.picture(1500, 2000), "TIFF"),
    ],
    ids=["jpeg", "progressive", "cmyk", "png", "png16", "webp", "gif", "bmp", "tiff"],
)
def test_decoder_stays_below_the_estimate(made):
    subprocess.run([sys.executable, "-c", PEAK], input=made(), check=True, timeout=60)


# ---- the decode threads ------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (7, 3), (8, 8), (9, 100), (100, 4), (5, 0)])
def test_ranges_cover_every_item_once(threads, count, chunks):
    pool = DecodePool(threads)
    assert pool.threads == threads
    seen = []
    pool.run(lambda start, stop: seen.extend(range(start, stop)), count, chunks)
    assert sorted(seen) == list(range(count))


def test_caller_and_helpers_share_the_work():
    pool = DecodePool(3)
    barrier = threading.Barrier(3, timeout=30)
    names = set()

    def work(start, stop):
        names.add(threading.get_ident())
        barrier.wait()  # only passes when three threads are in it at once

    pool.run(work, 3, 3)
    assert len(names) == 3 and threading.get_ident() in names


def test_exception_is_raised_after_all_chunks_ran():
    done = []

    def work(start, stop):
        if start == 2:
            raise KeyError("third")
        done.append(start)

    with pytest.raises(KeyError, match="third"):
        DecodePool(2).run(work, 6, 6)
    assert sorted(done) == [0, 1, 3, 4, 5]


def test_several_callers_run_at_once():
    pool = DecodePool(3)
    results = [[] for _ in range(6)]

    def call(mine):
        for _ in range(40):
            before = len(mine)
            pool.run(lambda start, stop: mine.extend(range(start, stop)), 20, 5)
            assert len(mine) == before + 20

    with ThreadPoolExecutor(6) as callers:
        list(callers.map(call, results))
    assert all(sorted(mine) == sorted([*range(20)] * 40) for mine in results)


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's allocator may be locked by another thread when the process forks",
)
def test_a_pool_works_again_in_a_forked_child():
    script = """
import os
from ksrv._native.images.decode_pool import DecodePool
pool = DecodePool(3)
def total():
    seen = []
    pool.run(lambda start, stop: seen.extend(range(start, stop)), 50, 10)
    return sorted(seen) == list(range(50))
assert total()
child = os.fork()
if child == 0:
    raise SystemExit(0 if total() else 1)
assert os.waitpid(child, 0)[1] == 0
assert total()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

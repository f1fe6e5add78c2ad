"""With a libjpeg of another structure layout, the library decodes the codes itself, and pixels are equal.

The test simulates such a library: it preloads a library that intercepts some calls.
"""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ksrv._native.images import jpeg_decoder

pytestmark = [
    pytest.mark.skipif(not jpeg_decoder.READS_CODES, reason="the library reads its codes here"),
]

HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <jpeglib.h>
#include <jpegint.h>

static boolean (*librarys)(j_decompress_ptr, JBLOCKROW *);
"""
START = """
boolean jpeg_start_decompress(j_decompress_ptr state) {
    boolean (*real)(j_decompress_ptr) = dlsym(RTLD_NEXT, "jpeg_start_decompress");
    boolean result = real(state);
    librarys = state->entropy->decode_mcu;
    AT_START;
    return result;
}
"""
ANOTHER_FUNCTION = """
static boolean forwarded(j_decompress_ptr state, JBLOCKROW *blocks) { return librarys(state, blocks); }
#define AT_START state->entropy->decode_mcu = forwarded
"""
READ = """
JDIMENSION jpeg_read_scanlines(j_decompress_ptr state, JSAMPARRAY lines, JDIMENSION count) {
    JDIMENSION (*real)(j_decompress_ptr, JSAMPARRAY, JDIMENSION) = dlsym(RTLD_NEXT, "jpeg_read_scanlines");
    AT_READ;
    return real(state, lines, count);
}
"""
NEVER_CALLED = "#define AT_READ state->entropy->decode_mcu = librarys\n"
CALLED_TWICE = """
static boolean (*told)(j_decompress_ptr, JBLOCKROW *);
static boolean twice(j_decompress_ptr state, JBLOCKROW *blocks) {
    if (told != librarys) told(state, blocks);
    return librarys(state, blocks);
}
#define AT_READ if (state->entropy->decode_mcu != twice) \\
    { told = state->entropy->decode_mcu; state->entropy->decode_mcu = twice; }
"""
BLOCKS_NOT_ZEROED = """
static boolean (*told)(j_decompress_ptr, JBLOCKROW *);
static boolean dirty(j_decompress_ptr state, JBLOCKROW *blocks) {
    if (told == librarys) return librarys(state, blocks);
    (*blocks[0])[9] = 5;
    boolean result = told(state, blocks);
    (*blocks[0])[9] = 0;
    return result;
}
#define AT_READ if (state->entropy->decode_mcu != dirty) \\
    { told = state->entropy->decode_mcu; state->entropy->decode_mcu = dirty; }
"""
NOTHING = "#define AT_START\n"
LIBRARIES = {
    "the same": NOTHING + START,
    "another function at the place": ANOTHER_FUNCTION + START,
    "a decoder that is never called": NOTHING + START + NEVER_CALLED + READ,
    "calls that are not for an MCU": NOTHING + START + CALLED_TWICE + READ,
    "blocks that are not zeroed": NOTHING + START + BLOCKS_NOT_ZEROED + READ,
}

# Without cv2, because the calls would be intercepted for cv2's copy of the library, too.
SHOWN = """
import numpy as np
from ksrv._native.images import jpeg_decoder
wanted, got = np.load("wanted.npy"), np.zeros((150, 200, 3), np.uint8)
whole = jpeg_decoder.decode_jpeg_into(open("picture.jpg", "rb").read(), got, "BGR")
print(jpeg_decoder.READS_CODES, whole, bool((got == wanted).all()))
"""


@pytest.mark.parametrize("name", LIBRARIES)
def test_unknown_library_layout_disables_the_mcu_decoder(tmp_path, name):
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(HEAD + LIBRARIES[name])
    command = ["cc", "-shared", "-fPIC", "-o", shim, source, "-Wl,--no-as-needed", "-ljpeg", "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    noise = np.random.default_rng(0).integers(0, 255, (9, 12, 3), np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(noise, (200, 150)))[1]
    (tmp_path / "picture.jpg").write_bytes(data.tobytes())
    np.save(tmp_path / "wanted.npy", cv2.imdecode(data, cv2.IMREAD_COLOR))
    preloaded = f"{os.environ.get('LD_PRELOAD', '')} {shim}".strip()
    run = subprocess.run(
        [sys.executable, "-c", SHOWN], env={**os.environ, "LD_PRELOAD": preloaded},
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert run.stdout.split() == [str(name == "the same"), "True", "True"], run.stderr

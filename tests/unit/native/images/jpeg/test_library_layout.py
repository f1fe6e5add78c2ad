"""If the function that decodes MCUs is not the library's, the library decodes the codes itself, and pixels are equal.

The test simulates such a library: it preloads a library that wraps the function.
"""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ksrv._native.images import jpeg_decoder

pytestmark = pytest.mark.skipif(
    not jpeg_decoder.VERSION, reason="ksrv was built without libjpeg-turbo"
)

WRAPPED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <jpeglib.h>
#include <jpegint.h>

static boolean (*librarys)(j_decompress_ptr, JBLOCKROW *);
static int calls;
static boolean forwarded(j_decompress_ptr state, JBLOCKROW *blocks) {
    if (!calls++) puts("called");
    return librarys(state, blocks);
}
boolean jpeg_start_decompress(j_decompress_ptr state) {
    boolean (*real)(j_decompress_ptr) = dlsym(RTLD_NEXT, "jpeg_start_decompress");
    boolean result = real(state);
    librarys = state->entropy->decode_mcu;
    state->entropy->decode_mcu = forwarded;
    return result;
}
"""

# Without cv2, because the calls would be intercepted for cv2's copy of the library, too.
SHOWN = """
import numpy as np
from ksrv._native.images import jpeg_decoder
wanted, got = np.load("wanted.npy"), np.zeros((150, 200, 3), np.uint8)
whole = jpeg_decoder.decode_jpeg_into(open("picture.jpg", "rb").read(), got, "BGR")
print(whole, bool((got == wanted).all()))
"""


def test_wrapped_library_function_disables_the_mcu_decoder(tmp_path):
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(WRAPPED)
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
    assert sorted(run.stdout.split()) == ["True", "True", "called"], run.stderr

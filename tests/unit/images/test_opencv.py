"""Properties of cv2 that ksrv depends on, so that an upgrade cannot change them unnoticed."""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ksrv.images import opencv
from tests.support.images import files

UNCHANGED = cv2.IMREAD_UNCHANGED


def run(script, **environment):
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_settings_are_set_before_the_first_import():
    script = """
import os, sys
import ksrv.images.preparer
assert "cv2" not in sys.modules
from ksrv.images import opencv
cv2 = opencv.load()
assert opencv.load() is cv2 is sys.modules["cv2"]
print(os.environ["OPENCV_LOG_LEVEL"], os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"])
"""
    environment = {"OPENCV_LOG_LEVEL": "ERROR", "OPENCV_IO_MAX_IMAGE_PIXELS": "1000"}
    assert run(script, **environment).stdout.split() == ["ERROR", "1000"]
    bare = "import os; [os.environ.pop(k, 0) for k in ('OPENCV_LOG_LEVEL', "
    bare += "'OPENCV_IO_MAX_IMAGE_PIXELS')]\n" + script
    assert run(bare).stdout.split() == ["OFF", str(opencv.PIXEL_WALL)]


def test_cv2_pixel_limit_is_enforced():
    script = f"""
from ksrv.images import opencv
assert opencv.decode({files.png(40, 40)!r}, -1) is None
assert opencv.decode({files.png(20, 20)!r}, -1) is not None
"""
    run(script, OPENCV_IO_MAX_IMAGE_PIXELS="1000")


def test_threads_are_limited_only_on_demand():
    script = """
from ksrv.images import opencv
cv2 = opencv.load()
cv2.setNumThreads(2)
import ksrv.images.preparer
assert cv2.getNumThreads() == 2
opencv.own_process()
assert cv2.getNumThreads() == 1
"""
    run(script)
    early = """
import sys
from ksrv.images import opencv
opencv.own_process()
assert "cv2" not in sys.modules
import cv2
assert cv2.getNumThreads() == 1
assert opencv.load().getNumThreads() == 1
"""
    run(early)


def test_cv2_exception_refuses_the_picture(monkeypatch):
    def fail(*_):
        raise cv2.error("bad")

    monkeypatch.setattr(cv2, "imdecode", fail)
    assert opencv.decode(files.png(4, 4), UNCHANGED) is None


def test_out_of_memory_in_cv2_is_not_reported_as_damage(monkeypatch):
    error = cv2.error("Insufficient memory")
    error.code = cv2.Error.StsNoMem

    def fail(*_):
        raise error

    monkeypatch.setattr(cv2, "imdecode", fail)
    with pytest.raises(cv2.error, match="Insufficient"):
        opencv.decode(files.png(4, 4), UNCHANGED)
    assert opencv.is_out_of_memory(error) and opencv.is_out_of_memory(MemoryError())
    assert not opencv.is_out_of_memory(cv2.error("bad"))


def test_resize_into_new_memory_is_copied_to_the_target(monkeypatch):
    source, target = files.pixels(40, 50), np.zeros((20, 25, 3), np.uint8)
    real = cv2.resize
    monkeypatch.setattr(cv2, "resize", lambda image, size, dst, interpolation: real(image, size))
    opencv.resize_into(source, target, cv2.INTER_LINEAR)
    np.testing.assert_array_equal(target, real(source, (25, 20)))

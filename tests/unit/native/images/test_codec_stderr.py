"""Messages of codecs about damaged files do not reach standard error, but all other output does."""

import logging
import subprocess
import sys

import pytest

from ksrv.images import opencv
from tests.support.images import files


def broken_png():
    data = bytearray(files.png(40, 40))
    data[data.index(b"IDAT") + 6] ^= 0xFF
    return bytes(data)


def run(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    ).stderr


PRELUDE = f"""
import ctypes, os, sys
from ksrv.images import opencv
libc = ctypes.CDLL(None)
def say(text):
    libc.fputs(text, ctypes.c_void_p.in_dll(libc, "stderr"))
data = {broken_png()!r}
"""


def test_codec_prints_without_capturing():
    assert "libpng error" in run(PRELUDE + "assert opencv.decode(data, -1) is None")


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's stderr")
def test_damaged_files_log_one_warning_and_other_output_passes():
    script = """
opencv.own_process()
say(b"before;")
for _ in range(50):
    assert opencv.decode(data, -1) is None
say(b"after;")
os.write(2, b"descriptor;")
print("python;", file=sys.stderr)
"""
    shown = run(PRELUDE + script)
    assert "libpng error" not in shown.replace("the last: libpng error", "")
    assert (
        shown.count("codecs complained about 1 image(s)") == 1
    )  # the log shows the others after a minute
    at = [shown.index(word) for word in ("before;", "after;", "descriptor;", "python;")]
    assert at == sorted(at)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's stderr")
def test_other_threads_write_while_one_decodes():
    script = """
import threading
from ksrv._native.images import codec_stderr
codec_stderr.begin()
say(b"kept")
other = threading.Thread(target=say, args=(b"through;",))
other.start()
other.join()
assert codec_stderr.end() == b"kept"
say(b"free;")
"""
    assert run(PRELUDE + script) == "through;free;"


def test_only_the_first_bytes_are_captured():
    script = """
from ksrv._native.images import codec_stderr
codec_stderr.begin()
for _ in range(30):
    say(b"0123456789")
said = codec_stderr.end()
assert said == b"0123456789" * 20, said
codec_stderr.begin()
assert codec_stderr.end() == b""
"""
    assert run(PRELUDE + script) == ""


def test_warnings_are_counted_between_two_lines(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(opencv.time, "monotonic", lambda: clock[0])
    noise = opencv._Noise()
    with caplog.at_level(logging.WARNING, "ksrv.engine"):
        noise.note(b"first\nand more")
        noise.note(b"second")
        clock[0] += opencv.NOISE_INTERVAL
        noise.note(b"third \x1b[31m\xff")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("; ")[0].split()[3] for line in lines] == ["1", "2"]
    assert lines[0].endswith("the last: first")
    assert "\x1b" not in lines[1] and "third" in lines[1]

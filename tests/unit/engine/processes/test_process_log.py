"""The lines of a process's output are logged whole, in whatever pieces a pipe delivers them."""

import logging

import pytest

from ksrv.engine.processes import process_log
from ksrv.engine.processes.process_log import LINE_BYTES, LineSplitter, ProcessLog

PIECE = 8


def logged(caplog, data, size):
    """Return the texts that are logged for an output if each read returns `size` bytes."""
    caplog.clear()
    splitter = LineSplitter(ProcessLog("m", "1", 0), logging.INFO)
    for start in range(0, len(data), size):
        splitter.feed(data[start : start + size])
    splitter.finish()
    return [record.args[2] for record in caplog.records]


def expected(data, piece):
    """Return the texts by splitting the whole output at once."""
    return [
        line[start : start + piece].decode()
        for line in data.split(b"\n")
        for start in range(0, len(line), piece)
    ]


@pytest.fixture(autouse=True)
def all_levels(caplog):
    with caplog.at_level(logging.INFO, "ksrv.handler"):
        yield


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_log_does_not_depend_on_sizes_of_reads(caplog, monkeypatch, end):
    monkeypatch.setattr(process_log, "LINE_BYTES", PIECE)
    lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 0, 2 * PIECE, 5 * PIECE + 3, 2 * PIECE - 1, 2]
    data = b"\n".join(bytes(97 + i % 26 for i in range(length)) for length in lengths) + end
    for size in range(1, len(data) + 1):
        assert logged(caplog, data, size) == expected(data, PIECE), size


@pytest.mark.parametrize("length", [LINE_BYTES, LINE_BYTES + 1, 2 * LINE_BYTES, 60_000])
@pytest.mark.parametrize("size", [1000, LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 64 * 1024])
def test_long_line_is_logged_in_pieces(caplog, length, size):
    data = b"first\n" + b"x" * length + b"\nlast"
    texts = logged(caplog, data, size)
    assert texts == expected(data, LINE_BYTES)
    assert sum(map(len, texts)) == length + len("firstlast")

"""The stream of the log: lines are in order, nothing blocks, and lost lines are counted."""

import fcntl
import os
import threading

import pytest

from ksrv.server import log_stream
from ksrv.server.log_stream import LogStream
from tests.support.wait_until import wait_until


@pytest.fixture(params=[True, False], ids=["at once", "by the thread alone"])
def pipe(request, monkeypatch):
    if not request.param:  # as before Linux 6.4

        def refused(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "pwritev", refused)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for descriptor in (reader, writer):
        os.close(descriptor)


def read(reader, size):
    found = b""
    while len(found) < size:
        piece = os.read(reader, size - len(found))
        assert piece, "the pipe ended"
        found += piece
    return found


def test_lines_come_in_order_behind_a_pipe_that_was_full(pipe):
    reader, writer = pipe
    stream = LogStream(writer)
    lines = [f"line {number:06}\n" for number in range(2000)]
    for line in lines:
        assert stream.write(line) == len(line)
    wanted = "".join(lines).encode()
    assert read(reader, len(wanted)) == wanted
    wait_until(lambda: stream.drain(0) is None and stream._writer is None)
    stream.write("the last\n")
    assert read(reader, 9) == b"the last\n"


def test_lines_wait_for_the_next_line_when_no_thread_can_be_started(pipe, monkeypatch):
    reader, writer = pipe
    stream = LogStream(writer)
    stream.write("x" * 4096)  # the pipe is full now, or the thread writes it

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        if stream._writer is not None:
            stream.drain(5)
        stream.write("y" * 4096)
        stream.drain(0)
    stream.write("z\n")
    assert read(reader, 8194) == b"x" * 4096 + b"y" * 4096 + b"z\n"


def test_a_disk_without_room_raises_nothing():
    with open("/dev/full", "wb", buffering=0) as full:
        stream = LogStream(full.fileno())
        for _ in range(3):
            stream.write("a line\n")
    assert stream.lost_lines == 3


def test_a_child_starts_with_nothing_of_its_parents(pipe):
    reader, writer = pipe
    stream = log_stream._streams.setdefault(-1, LogStream(writer))
    try:
        for _ in range(1000):
            stream.write("of the parent\n")
        assert stream._waiting
        child = os.fork()
        if child == 0:
            os._exit(0 if not stream._waiting and stream._writer is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert read(reader, 14000).count(b"of the parent\n") == 1000
    finally:
        del log_stream._streams[-1]

"""The thread for slow images, on a system that cannot start it."""

import threading
from queue import Queue
from typing import Any

from ksrv.engine.instances.decode_thread import DecodeThread


def test_requests_are_refused_if_the_thread_cannot_start(monkeypatch, caplog):
    decoded: Queue[Any] = Queue()
    thread = DecodeThread("m", 4, decoded.put)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        assert not thread.take([])
        assert not thread.wait()
    assert "can't start new thread" in caplog.text
    handles: list[Any] = []
    assert thread.take(handles)
    assert decoded.get(timeout=60) is handles
    thread.wait()
    assert decoded.empty()

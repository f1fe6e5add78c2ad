"""The threads for messages of the Falcon app, and the thread of each stream."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

from gunicorn.config import Config

from ksrv.limits import Limits
from ksrv.server.rest.app_messages import STREAMS, AppMessages, start_threads


def test_message_that_fails_is_skipped(caplog):
    messages: Queue[Any] = Queue()
    served: Queue[str] = Queue()

    def next_message() -> Any:
        message = messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    [thread] = start_threads("test-app", 1, next_message, served.put)
    for message in (MemoryError("no memory for a message"), "a", None):
        messages.put(message)
    assert served.get(timeout=60) == "a"
    assert "could not be given to the app" in caplog.text
    thread.join(60)
    assert not thread.is_alive()


class Streamed:
    """A message whose answer is a stream."""

    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    head_fault, state = None, "none"
    peer, listener = ("127.0.0.1", 1), 0
    asked = http_1_0 = closes = False

    def __init__(self) -> None:
        self.statuses: Queue[int] = Queue()

    def set_close(self, closes: bool) -> None:
        """As `AppMessage` has it."""

    def answer(self, status: int, *_: Any) -> None:
        self.statuses.put(status)

    def begin_stream(self, status: int, *_: Any, chunked: bool) -> bool:
        self.statuses.put(status)
        return False


def test_streams_without_a_thread_are_refused_and_take_no_place(monkeypatch):
    class App:
        def __call__(self, environ: Any, start: Any) -> Iterator[bytes]:
            start("200 OK", [])
            return iter([b"piece"])

    messages = AppMessages(App(), Config(), [("127.0.0.1", 80)], limits=Limits())  # type: ignore[arg-type]
    message: Any = Streamed()
    with monkeypatch.context() as patched:

        def refuses(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refuses)
        for _ in range(STREAMS + 1):
            messages.serve(message)
            assert message.statuses.get(timeout=60) == 503
    messages.serve(message)
    assert message.statuses.get(timeout=60) == 200

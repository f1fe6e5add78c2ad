"""Threads for messages of the Falcon app: one always waits, and more start while others are busy."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from gunicorn.config import Config

from ksrv.limits import Limits
from ksrv.server.rest.app_messages import STREAMS, AppMessages, AppThreads

MOST = 3


class Work:
    """Messages for threads. Each blocks its thread until it is released."""

    def __init__(self) -> None:
        self.messages: Queue[Any] = Queue()
        self.begun: Queue[str] = Queue()
        self.go_on = threading.Semaphore(0)
        self.threads = AppThreads("test-app", MOST, self.next_message, self.serve)
        self.threads.start()

    def next_message(self) -> Any:
        message = self.messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    def serve(self, message: str) -> None:
        self.begun.put(message)
        self.go_on.acquire()

    def end(self) -> None:
        self.go_on.release(100)
        for _ in range(MOST + 1):
            self.messages.put(None)
        self.threads.join(60)


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.end()
    assert not running()


def running() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("test-app")}


def test_messages_in_turn_need_one_thread_that_is_busy_and_one_that_waits(work):
    work.go_on.release(50)
    for number in range(50):
        work.messages.put(str(number))
        assert work.begun.get(timeout=60) == str(number)
    assert running() <= {"test-app-0", "test-app-1", "test-app-2"}


def test_there_is_a_thread_for_each_message_up_to_the_most(work):
    for name in "abcd":
        work.messages.put(name)
    assert {work.begun.get(timeout=60) for _ in range(MOST)} == {"a", "b", "c"}
    assert len(running()) == MOST and work.begun.empty()
    work.go_on.release()
    assert work.begun.get(timeout=60) == "d"


def test_message_that_fails_is_skipped(work, caplog):
    work.messages.put(MemoryError("no memory for a message"))
    work.messages.put("a")
    assert work.begun.get(timeout=60) == "a"
    assert "could not be given to the app" in caplog.text


def test_existing_threads_serve_if_no_thread_can_start(work, caplog, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for name in "ab":
        work.messages.put(name)
    assert work.begun.get(timeout=60) == "a"
    work.go_on.release()
    assert work.begun.get(timeout=60) == "b"
    assert "no thread for messages beside 1: can't start new thread" in caplog.text


class Streamed:
    """A message whose answer is a stream."""

    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    head_fault, state = "none", "none"
    peer, listener = ("127.0.0.1", 1), 0
    asked = http_1_0 = closes = False

    def __init__(self) -> None:
        self.statuses: Queue[int] = Queue()

    def set_close(self, closes: bool) -> None:
        """As `AppMessage` has it."""

    def answer(self, status: int, *_: Any) -> None:
        self.statuses.put(status)

    def begin_stream(self, status: int, *_: Any) -> bool:
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

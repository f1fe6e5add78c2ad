"""Threads that answer the messages of the Falcon app: one waits, and there are more while more are busy."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from ksrv.server.rest.app_messages import AppThreads

MOST = 3


class Work:
    """Messages for threads, each of which keeps its thread until it is let go."""

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


def test_one_thread_waits_for_the_first_message(work):
    assert running() == {"test-app-0"}


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


def test_a_message_that_cannot_be_made_is_none(work, caplog):
    work.messages.put(MemoryError("no memory for a message"))
    work.messages.put("a")
    assert work.begun.get(timeout=60) == "a"
    assert "could not be given to the app" in caplog.text


def test_a_system_without_threads_leaves_the_messages_to_those_that_there_are(
    work, caplog, monkeypatch
):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for name in "ab":
        work.messages.put(name)
    assert work.begun.get(timeout=60) == "a"
    work.go_on.release()
    assert work.begun.get(timeout=60) == "b"
    assert "no thread for messages beside 1: can't start new thread" in caplog.text

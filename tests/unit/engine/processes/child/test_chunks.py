"""Chunks of a handler process: how many it sends ahead of the worker, and how it learns that clients left."""

import numpy as np
import pytest

from ksrv.engine.processes.child.runs import Chunks
from ksrv.engine.processes.messages import CHUNK_BYTES_UNDER_WAY, LEAST_CHUNK_BYTES
from ksrv.request import ExecutorOutputs, Tensor


class Answers:
    """Records the messages of a process."""

    def __init__(self) -> None:
        self.sent = 0
        self.fails = False

    def send(self, kind, batch_number, outputs):
        if self.fails:
            raise MemoryError
        self.sent += 1


class Worker:
    """Delivers the next scripted message whenever the process receives."""

    def __init__(self) -> None:
        self.said = []

    def receive_waiting(self):
        while self.said:
            self.said.pop(0)()

    def wait_for(self, ended, timeout_s):
        while not ended() and self.said:
            self.said.pop(0)()
        return ended()

    def wake(self):
        pass


@pytest.fixture
def worker():
    return Worker()


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def chunks(answers, worker):
    made = Chunks(1, answers, worker)
    made.begin(1)
    return made


def chunk(nbytes):
    return ExecutorOutputs([Tensor("y", "UINT8", (nbytes,), np.zeros(nbytes, np.uint8))])


def offer_until_full(chunks, nbytes):
    count = 0
    while not chunks.without_room():
        chunks.offer(chunk(nbytes))
        count += 1
    return count


@pytest.mark.parametrize(
    ("nbytes", "count"),
    [
        (1, 32),
        (CHUNK_BYTES_UNDER_WAY // 4, 4),
        (CHUNK_BYTES_UNDER_WAY // 4 + 1, 4),
        (CHUNK_BYTES_UNDER_WAY * 9, 1),
    ],
)
def test_chunks_in_flight_are_limited_by_count_and_bytes(chunks, nbytes, count):
    assert offer_until_full(chunks, nbytes) == count
    called = []
    chunks.call_with_room(0, lambda: called.append(1))
    chunks.add_room(0)
    assert not called
    chunks.add_room(max(LEAST_CHUNK_BYTES, nbytes) * count)
    assert called == [1]
    assert offer_until_full(chunks, nbytes) == count


def test_unsent_chunk_uses_no_credit(chunks, answers):
    answers.fails = True
    for _ in range(64):
        with pytest.raises(MemoryError):
            chunks.offer(chunk(1))
    assert not chunks.without_room()
    answers.fails = False
    assert offer_until_full(chunks, 1) == answers.sent == 32


def test_handler_blocks_at_the_byte_limit(chunks, answers, worker):
    half = CHUNK_BYTES_UNDER_WAY // 2
    worker.said = [lambda: chunks.add_room(0), lambda: chunks.add_room(half), lambda: 1 / 0]
    for _ in range(2):
        chunks(chunk(half))
    assert answers.sent == 2
    assert len(worker.said) == 1  # it continued as soon as the worker gave credit


def test_handler_learns_that_clients_left_when_it_asks_or_waits(chunks, worker):
    assert chunks.listening() == {0}
    worker.said = [lambda: chunks.hear(frozenset())]
    chunks(chunk(CHUNK_BYTES_UNDER_WAY))
    assert not worker.said
    assert chunks.listening() == frozenset()


def test_nothing_is_sent_after_the_answer(chunks, answers):
    chunks.end()
    chunks(chunk(CHUNK_BYTES_UNDER_WAY))
    assert answers.sent == 0
    assert chunks.listening() == frozenset()

"""The bounded queue between a handler and the client of its stream."""

import time

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.engine.requests import response_stream
from ksrv.engine.requests.response_stream import (
    MOST_BEHIND,
    MOST_BEHIND_BYTES,
    MOST_WAITING,
    MOST_WAITING_BYTES,
    SMALL_ANSWER,
    ResponseStream,
)
from ksrv.request import InferResponse, Tensor


def response(nbytes=1):
    return InferResponse("m", "", "", [Tensor("y", "BYTES", (1,), [b"x" * nbytes])])


def test_stream_is_limited_by_answers_and_bytes():
    stream = ResponseStream()
    for _ in range(MOST_WAITING):
        assert stream.has_room()
        stream.put(response())
    assert not stream.has_room()
    assert not stream.wait_room(time.monotonic_ns())
    stream.take()
    assert stream.has_room()
    large = ResponseStream()
    large.put(response(MOST_WAITING_BYTES))  # a single answer may exceed the limit
    assert not large.has_room()
    assert len(large.take_all(0)) == 1
    assert large.has_room()


def test_answers_after_the_end_are_dropped_and_earlier_answers_delivered():
    stream = ResponseStream()
    stream.put(response())
    stream.end()
    stream.put(response())
    assert not stream.finished
    assert stream.take() is not None
    assert stream.finished
    assert stream.take() is None
    assert stream.has_room()


def test_a_client_is_far_behind_by_answers_or_by_bytes_of_several():
    many = ResponseStream()
    for _ in range(MOST_BEHIND):
        assert not many.is_far_behind()
        many.put(response())
    assert many.is_far_behind()
    many.take()
    assert not many.is_far_behind()
    large = ResponseStream()
    for _ in range(4):
        assert not large.is_far_behind()  # few answers may be larger
        large.put(response(MOST_BEHIND_BYTES))
    assert large.is_far_behind()
    large.end()
    assert not large.is_far_behind()


def test_waiting_answers_count_in_the_memory_budget(monkeypatch):
    budget = MemoryBudget(1 << 20)
    monkeypatch.setattr(response_stream, "PROCESS", budget)
    stream = ResponseStream()
    assert stream.put(response(SMALL_ANSWER))
    assert budget.held == 0
    for _ in range(2):
        assert stream.put(response(1 << 19))
    assert budget.held == 1 << 20
    assert stream.put(response(1 << 22))  # the only answer outside of the limit
    assert not stream.put(response(1 << 19))
    assert len([stream.take(0) for _ in range(2)]) == 2
    assert budget.held == (1 << 19) + (1 << 22)
    assert len(stream.take_all(0)) == 2
    assert budget.held == 0
    left = ResponseStream()
    left.put(response(1 << 19))
    left.end()
    del left  # of a client that has gone
    assert budget.held == 0


def test_leaving_reader_frees_waiting_answers_and_writers(monkeypatch):
    budget = MemoryBudget(1 << 22)
    monkeypatch.setattr(response_stream, "PROCESS", budget)
    stream = ResponseStream()
    stream.put(response(MOST_WAITING_BYTES))
    called = []
    stream.call_with_room(lambda: called.append(1))
    stream.give_up()
    assert budget.held == 0
    assert called == [1]
    assert stream.put(response(MOST_WAITING_BYTES))
    assert budget.held == 0
    assert stream.has_room()
    assert stream.finished

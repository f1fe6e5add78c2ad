"""Intermediate answers and the time limit of a batch."""

import contextlib
import time

import numpy as np
import pytest

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv._native.server import response_stream
from ksrv._native.server.response_stream import MOST_WAITING, ResponseStream
from ksrv.engine.batches import streaming as streaming_module
from ksrv.engine.executor import ExecutorDied
from ksrv.errors import HandlerFailed, Overloaded
from ksrv.request import ExecutorOutputs
from tests.support.engine.engine_models import engine, request, source, tensor


def chunk(batch, value):
    data = np.full((batch.rows, 1), value, np.float32)
    return ExecutorOutputs([tensor("y", data)])


def streaming(batch):
    if batch.emit is not None:
        for value in (1, 2):
            batch.emit(chunk(batch, value))
    return chunk(batch, 3)


@contextlib.contextmanager
def streamed(run):
    """An engine whose handler is a function, and a request for intermediate answers."""
    made = engine(source(), run=run)
    asked = request()
    asked.stream = ResponseStream()
    try:
        yield made, asked
    finally:
        made.close()


def taken(stream):
    stream.end()
    return [*iter(stream.take, None)]


def test_batch_with_sent_chunks_is_not_retried():
    runs = []

    def run(batch):
        runs.append(batch.rows)
        batch.emit(chunk(batch, 1))
        raise ExecutorDied("the process ended")

    died = pytest.raises(HandlerFailed, match="the process ended")
    with streamed(run) as (made, asked), died:
        made.submit(asked, caller_blocks=True).wait()
    assert len(runs) == 1


@pytest.mark.parametrize(("seconds", "stalled"), [(3600.0, []), (0.0, [0])])
def test_client_is_stalled_only_if_it_read_nothing_for_the_whole_time(
    monkeypatch, seconds, stalled
):
    """A stream can stay full although its client reads, because more answers wait than fit."""
    monkeypatch.setattr(streaming_module, "STALL_SECONDS", seconds)
    found = []

    def run(batch):
        for value in range(MOST_WAITING + 1):
            batch.emit.offer(chunk(batch, value))
        asked.stream.take()
        found.append(batch.emit.without_room())
        time.sleep(0.001)
        found.append(batch.emit.stalled())
        return chunk(batch, 3)

    with streamed(run) as (made, asked):
        made.submit(asked, caller_blocks=True).wait()
    assert found == [[0], stalled]


def test_answers_beyond_the_memory_budget_end_the_request(monkeypatch):
    monkeypatch.setattr(response_stream, "PROCESS", MemoryBudget(1 << 20))
    listened = []

    def run(batch):
        for _ in range(3):  # the second is counted outside of the limit
            data = np.zeros((batch.rows, 1 << 18), np.float32)
            batch.emit.offer(ExecutorOutputs([tensor("y", data)]))
            listened.append(len(batch.emit.listening()))
        return chunk(batch, 3)

    with (
        streamed(run) as (made, asked),
        pytest.raises(Overloaded, match="limit --limits-in-flight"),
    ):
        made.submit(asked, caller_blocks=True).wait()
    assert (listened, len(taken(asked.stream))) == ([1, 1, 0], 2)

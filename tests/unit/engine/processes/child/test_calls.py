"""Calls to other models that are unfinished when their batch ends."""

import threading
from types import SimpleNamespace

import pytest

from ksrv.engine.processes import messages
from ksrv.engine.processes.child.calls import PendingCall, WorkerCalls
from ksrv.engine.processes.link import EMPTY
from ksrv.engine.processes.messages import MessageType
from ksrv.errors import HandlerFailed
from ksrv.request import ExecutorOutputs
from tests.support.engine import engine_models


class Worker:
    """A worker that answers a call as soon as the call is cancelled. Replaces the link."""

    def __init__(self) -> None:
        self.takers = {}
        self.answered = threading.Event()

    def on(self, kind, take):
        self.takers[kind] = take

    def send(self, kind, packed, *, batch_number):
        if kind == MessageType.CANCEL_CALL:
            threading.Thread(target=self.answer).start()

    def answer(self):
        self.takers[MessageType.RESULT](SimpleNamespace())
        self.answered.set()

    def wait_for(self, ended):
        assert self.answered.wait(60)
        assert ended()

    def wake(self):
        pass


def test_a_call_is_settled_before_its_result_can_be_counted(monkeypatch):
    """Otherwise a thread that waits for the call would receive again, and take a message of the next batch."""
    monkeypatch.setattr(messages, "pack_call", lambda *_: EMPTY)
    monkeypatch.setattr(messages, "unpack_answer", lambda *_: (1, HandlerFailed("too late")))
    worker, settle, counted_first = Worker(), PendingCall.settle, []

    def settle_slowly(call, outcome):
        counted_first.append(worker.answered.wait(0.2))
        settle(call, outcome)

    monkeypatch.setattr(PendingCall, "settle", settle_slowly)
    calls, batch = WorkerCalls(worker, worker), object()
    calls.begin(batch, 7)
    call = calls(engine_models.request(), batch)
    calls.end_alone(batch)
    assert counted_first == [False]
    with pytest.raises(HandlerFailed, match="is over"):
        call.wait()


def test_answer_during_the_send_is_not_lost(monkeypatch):
    monkeypatch.setattr(messages, "pack_call", lambda *_: EMPTY)
    outputs = ExecutorOutputs([])
    monkeypatch.setattr(messages, "unpack_answer", lambda *_: (1, outputs))
    worker = Worker()

    def send(kind, packed, *, batch_number):
        received = threading.Thread(target=worker.takers[MessageType.CALL_CHUNK], args=(None,))
        receivers.append(received)
        received.start()
        received.join(0.2)

    receivers, taken = [], []
    worker.send = send
    calls, batch = WorkerCalls(worker, worker), object()
    monkeypatch.setattr(PendingCall, "take_chunk", lambda call, chunk: taken.append(chunk))
    calls.begin(batch, 7)
    calls(engine_models.request(), batch)
    receivers[0].join(60)
    assert taken == [outputs]

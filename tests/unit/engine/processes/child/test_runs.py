"""A handler process ignores batches that the worker cancels before they begin."""

from types import SimpleNamespace

import pytest

from ksrv.engine.processes import messages
from ksrv.engine.processes.child.runs import RunLoop
from ksrv.engine.processes.link import EMPTY, Frame
from ksrv.engine.processes.messages import ListeningMessage, MessageType


class Inbox:
    """Delivers each message as soon as the process looks for its next batch."""

    def __init__(self, frames) -> None:
        self.frames = frames
        self.takers = {}
        self.kept = []

    def on(self, kind, take):
        self.takers[kind] = take

    def keep(self, frame):
        self.kept.append(frame)

    def take(self):
        for frame in self.frames:
            self.takers.get(frame.kind, self.keep)(frame)
        self.frames = []
        return self.kept.pop(0)

    def wake(self):
        pass

    def receive_waiting(self):
        pass


def message(kind, number=0, note=None):
    return Frame(kind, number, EMPTY.payload if note is None else messages.dump(note).payload)


@pytest.mark.parametrize(
    ("left", "cancelled"), [([[]], [7]), ([[0], []], [7]), ([[0, 1], [1]], [])]
)
def test_cancelled_batch_is_skipped_before_it_begins(monkeypatch, left, cancelled):
    emitters, cancels = [], []

    def unpack_batch(frame, emitter):
        emitters.append(emitter)
        return SimpleNamespace(requests=[0, 1], number=frame.batch_number), ""

    monkeypatch.setattr(messages, "unpack_batch", unpack_batch)
    runner = SimpleNamespace(begin=lambda batch, done: lambda: cancels.append(batch.number))
    heard = [message(MessageType.LISTENING, 7, ListeningMessage(indices)) for indices in left]
    inbox = Inbox(
        [
            message(MessageType.RUN, 7),
            message(MessageType.RUN, 8),
            *heard,
            message(MessageType.CLOSE),
        ]
    )
    calls = SimpleNamespace(begin=lambda batch, number: None, ring=None)
    answers = SimpleNamespace()
    RunLoop(runner, answers, inbox, calls, is_concurrent=True).serve()
    assert cancels == cancelled
    assert [emitter.listening() for emitter in emitters] == [frozenset(left[-1]), {0, 1}]

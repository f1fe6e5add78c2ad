"""The chunks of a handler process with generators: what it sends before the worker has taken them."""

from types import SimpleNamespace

import numpy as np

from ksrv.engine.processes import messages
from ksrv.engine.processes.child.concurrent import CHUNK_BYTES_UNDER_WAY
from ksrv.engine.processes.child.program import Chunks
from ksrv.engine.processes.messages import ListeningMessage, MessageType
from ksrv.request import BatchOutputs, Tensor


class Worker:
    """The other end of the link, instead of a link: it answers each question that was asked."""

    def __init__(self) -> None:
        self.messages = []
        self.outbox = self

    def send(self, kind, *_, **__):
        self.messages.append(kind)

    def take(self, wanted):
        assert self.messages[-1] == MessageType.ASK
        payload, lenient = messages.dump(ListeningMessage([0]))
        frame = SimpleNamespace(kind=MessageType.LISTENING, payload=payload, lenient=lenient)
        assert wanted(frame)
        return frame


def test_the_worker_is_asked_once_so_many_bytes_were_sent_ahead():
    worker = Worker()
    chunks = Chunks(1, worker, worker)
    half = np.zeros((1, CHUNK_BYTES_UNDER_WAY // 2), np.uint8)
    for _ in range(4):
        chunks(BatchOutputs([Tensor("y", "UINT8", half.shape, half)]))
    chunk, ask = MessageType.CHUNK, MessageType.ASK
    assert worker.messages == [chunk, chunk, ask] * 2
    chunks(BatchOutputs([Tensor("y", "UINT8", half.shape, half)]))
    assert chunks.listening() == {0}
    chunks(BatchOutputs([Tensor("y", "UINT8", half.shape, half)]))
    assert worker.messages[6:] == [chunk, ask, chunk]  # the question counts, whoever asks it
    chunks.end()
    chunks(BatchOutputs([Tensor("y", "UINT8", half.shape, half)]))
    assert chunks.listening() == frozenset()
    assert worker.messages[6:] == [chunk, ask, chunk]

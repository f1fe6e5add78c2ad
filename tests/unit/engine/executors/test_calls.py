"""The worker's end of a handler process's calls: messages that do not add up."""

from types import SimpleNamespace

import numpy as np
import pytest

from ksrv._native.ipc import tensor_descriptors
from ksrv._native.ipc.channel import ChannelError
from ksrv._native.ipc.shared_blocks import ExportedBlocks, ImportedBlocks
from ksrv.engine.executors import messages
from ksrv.engine.executors.calls import BatchCalls
from ksrv.engine.executors.messages import MessageType, NumbersMessage
from ksrv.errors import Cancelled
from ksrv.request import InferRequest
from tests.support.engine.process_models import batch_of


class Pending:
    """A call that does not end by itself."""

    cancelled = 0

    def cancel(self):
        self.cancelled += 1
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(self)
        return callback is not None

    def done(self):
        return False

    def wait(self):
        raise Cancelled("it was cancelled")

    def add_done_callback(self, callback):
        self.callback = callback


class Outbox:
    """Keeps the numbers of the calls whose results are sent."""

    def __init__(self):
        self.answered = []

    def send(self, kind, payload, **rest):
        frame = SimpleNamespace(payload=payload, lenient=rest["lenient"], batch_number=1)
        assert kind == MessageType.RESULT
        self.answered.append(messages.unpack_result(frame, ImportedBlocks())[0])


@pytest.fixture
def pending():
    return Pending()


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def calls(pending, outbox):
    batch = batch_of(np.zeros((1, 1), "f4"))
    link = SimpleNamespace(imported=ImportedBlocks(), exported=ExportedBlocks())
    return BatchCalls(lambda request, caller: pending, lambda: batch, 1, link, outbox)


def call(number):
    written, _ = tensor_descriptors.write([], ExportedBlocks())
    payload, lenient = messages.pack_call(InferRequest("other"), number, written)
    return SimpleNamespace(kind=MessageType.CALL, payload=payload, lenient=lenient, batch_number=1)


def cancel(*numbers):
    payload, lenient = messages.dump(NumbersMessage(list(numbers)))
    return SimpleNamespace(
        kind=MessageType.CANCEL_CALL, payload=payload, lenient=lenient, batch_number=1
    )


def test_a_call_has_a_number_of_its_own(calls):
    calls.take(call(1))
    with pytest.raises(ChannelError, match="twice"):
        calls.take(call(1))


def test_a_process_cannot_cancel_calls_that_it_did_not_make(calls, pending, outbox):
    calls.take(call(1))
    calls.take(cancel(2, -1, 2**70))
    assert pending.cancelled == 0
    assert outbox.answered == []
    calls.take(cancel(1, 1))
    assert pending.cancelled == 1
    assert outbox.answered == [1]  # each call has one result, also where it is given up
    assert not calls


def test_calls_are_given_up_with_their_batch(calls, pending, outbox):
    calls.take(call(1))
    calls.close()
    assert pending.cancelled == 1
    assert outbox.answered == []  # the batch has its answer already


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"numbers": "x"}', b"\xff"])
def test_a_message_that_is_none_is_refused(calls, payload):
    for kind in (MessageType.CALL, MessageType.CANCEL_CALL):
        frame = SimpleNamespace(kind=kind, payload=payload, lenient=False, batch_number=1)
        with pytest.raises(ChannelError):
            calls.take(frame)

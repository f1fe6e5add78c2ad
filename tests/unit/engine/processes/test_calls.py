"""The worker's end of a handler process's calls: messages that do not add up."""

from types import SimpleNamespace

import numpy as np
import pytest

from ksrv._native.process import tensor_descriptors
from ksrv._native.process.channel import Channel, ChannelError, Link
from ksrv._native.process.shared_blocks import ExportedBlocks, ImportedBlocks
from ksrv.engine.processes import messages
from ksrv.engine.processes.calls import MOST_CALLS, BatchCalls, ProcessCalls
from ksrv.engine.processes.messages import MessageType, NumbersMessage
from ksrv.engine.processes.outbox import Outbox
from ksrv.errors import Cancelled
from ksrv.request import InferRequest, Tensor
from tests.support.engine.process_models import batch_of


def frame(kind, payload, lenient=False, plain=False):
    return SimpleNamespace(kind=kind, payload=payload, lenient=lenient, plain=plain, batch_number=1)


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


class Results:
    """An outbox that keeps the numbers of the calls whose results are sent."""

    waiting = kept_bytes = 0

    def __init__(self):
        self.answered = []

    def count(self, kind):
        return self.waiting

    def send(self, kind, payload, **rest):
        assert kind == MessageType.RESULT
        found = frame(kind, payload, rest.get("lenient", False), rest.get("plain", False))
        self.answered.append(messages.unpack_result(found, ImportedBlocks())[0])


@pytest.fixture
def pending():
    return Pending()


@pytest.fixture
def outbox():
    return Results()


@pytest.fixture
def calls(pending, outbox):
    batch = batch_of(np.zeros((1, 1), "f4"))
    link = SimpleNamespace(imported=ImportedBlocks(), exported=ExportedBlocks())
    process = ProcessCalls(lambda request, caller: pending, link, outbox)
    return BatchCalls(process, lambda: batch, 1)


def call(number):
    written, _ = tensor_descriptors.write([], ExportedBlocks())
    payload, lenient = messages.pack_call(InferRequest("other"), number, written)
    return frame(MessageType.CALL, payload, lenient)


def cancel(*numbers):
    payload, lenient = messages.dump(NumbersMessage(list(numbers)))
    return frame(MessageType.CANCEL_CALL, payload, lenient)


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
    assert not calls.pending


def test_calls_are_given_up_with_their_batch(calls, pending, outbox):
    calls.take(call(1))
    calls.close()
    assert pending.cancelled == 1
    assert outbox.answered == [1]  # the process counts its calls by their results
    assert not calls.pending


def test_a_process_that_takes_no_results_may_not_go_on_calling(calls):
    for number in range(MOST_CALLS):
        calls.take(call(number))
    with pytest.raises(ChannelError, match=f"more than {MOST_CALLS} calls"):
        calls.take(call(MOST_CALLS))


def test_results_that_the_process_has_not_taken_count_as_its_calls(calls, outbox):
    outbox.waiting = MOST_CALLS
    with pytest.raises(ChannelError, match="without taking their results"):
        calls.take(call(1))


def test_other_messages_that_the_process_has_not_taken_are_no_calls_of_it(ends):
    near, _ = ends
    outbox = Outbox(near, waits=False)
    process = ProcessCalls(lambda request, caller: None, near, outbox)
    payload, lenient = messages.dump(NumbersMessage([1]))
    while outbox.waiting < MOST_CALLS:
        outbox.send(MessageType.END_SEQUENCES, payload, lenient=lenient)
    process.check(1)


@pytest.fixture
def ends():
    near, far = Channel.pair()
    links = Link(near), Link(Channel(far))
    yield links
    for one in links:
        one.close()


def test_results_that_are_not_taken_are_bounded_in_bytes(ends):
    near, far = ends
    near.imported.most_bytes = 1_000_000
    outbox = Outbox(near, waits=False)
    process = ProcessCalls(lambda request, caller: None, near, outbox)
    result = [Tensor("y", "FP32", (100_000,), np.ones(100_000, "f4"))]
    sent = 0
    while outbox.kept_bytes < 800_000:
        process.send_result(1, sent, result)
        sent += 1
    process.send_result(1, sent, result)
    assert outbox.kept_bytes < 1_000_000

    def taken():
        return messages.unpack_result(far.receive(), far.imported)

    for number in range(sent):
        found, (tensor,) = taken()
        assert (found, tensor.nbytes) == (number, 400_000)
        outbox.flush()
    found, error = taken()
    assert found == sent
    assert "has not taken" in error.message
    assert "at most 1000000" in error.message
    assert outbox.kept_bytes == outbox.waiting == 0
    process.send_result(1, sent + 1, result)
    assert taken()[1][0].nbytes == 400_000


def test_a_result_of_too_many_tensors_is_told_as_an_error(ends):
    near, far = ends
    process = ProcessCalls(lambda request, caller: None, near, Outbox(near, waits=False))
    process.send_result(1, 5, [Tensor("y", "FP32", (0,), np.ones(0, "f4"))] * 65_537)
    number, error = messages.unpack_result(far.receive(), far.imported)
    assert number == 5
    assert "65537 tensors are too many" in error.message


def test_a_result_that_cannot_be_sent_is_told_as_lost(ends, caplog):
    near, far = ends
    process = ProcessCalls(lambda request, caller: None, near, Outbox(near, waits=False))
    process.send_result(1, 5, [Tensor("y", "FP32", (1,), np.ones(1, "f8"))])
    number, error = messages.unpack_result(far.receive(), far.imported)
    assert (number, error.message) == (5, "the result of the call is lost")
    assert "an array of float64" in caplog.text


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"numbers": "x"}', b"\xff"])
def test_a_message_that_is_none_is_refused(calls, payload):
    for kind in (MessageType.CALL, MessageType.CANCEL_CALL):
        with pytest.raises(ChannelError):
            calls.take(frame(kind, payload))

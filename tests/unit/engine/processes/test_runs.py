"""The worker's record of a handler process: its calls to other models, and inconsistent messages."""

import threading
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.executor import ExecutorDied
from ksrv.engine.processes import messages
from ksrv.engine.processes.calls import ProcessCalls
from ksrv.engine.processes.link import EMPTY, Link
from ksrv.engine.processes.messages import MOST_CALLS, CancelCalls, MessageType
from ksrv.engine.processes.runs import ProcessRuns
from ksrv.errors import Cancelled
from ksrv.request import ExecutorInputs, ExecutorOutputs, InferRequest, InferResponse, Tensor
from tests.support.engine.process_models import batch_of
from tests.support.native.links import linked


class Pending:
    """A call that does not finish by itself."""

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


class Process:
    """The process's end of a link. Its worker runs batch 1 of the ring."""

    def __init__(self, near, far, pending):
        self.far = far
        self.batches = ProcessRuns(
            near,
            SimpleNamespace(died=lambda: ExecutorDied("it died"), violated=self._note, ending=None),
            ProcessCalls(near, lambda request, caller: pending),
            threading.Lock(),
            has_coroutines=False,
            may_stream=False,
        )
        self.violation = None
        self.batch = batch_of(np.zeros((1, 1), "f4"))

    def _note(self, error):
        self.violation = error
        return ExecutorDied(str(error))

    def sends(self, kind, packed=EMPTY, number=1):
        """Send a message, and make the worker receive it. Return whether the batch continues."""
        self.far.send(kind, packed, batch_number=number)
        return self.batches.take_message(1, lambda: self.batch)

    def call(self, number):
        packed = messages.pack_call(InferRequest("other"), number, Link.pair()[0])
        return self.sends(MessageType.CALL, packed)

    def cancel(self, *numbers):
        return self.sends(MessageType.CANCEL_CALL, messages.dump(CancelCalls(list(numbers))))

    def take_all(self):
        """Receive what the worker has sent, which also returns blocks."""
        with suppress(TimeoutError):
            while True:
                self.far.receive(0)

    def results(self):
        """Return the numbers of the calls whose results arrived."""
        found = []
        with suppress(TimeoutError):
            while True:
                found.append(messages.unpack_answer(self.far.receive(0))[0])
        return found


@pytest.fixture
def pending():
    return Pending()


@pytest.fixture
def ends():
    with linked("keep") as both:
        yield both


@pytest.fixture
def process(ends, pending):
    return Process(*ends, pending)


def test_a_process_cannot_cancel_calls_that_it_did_not_make(process, pending):
    process.call(1)
    assert process.cancel(2, -1, 2**63)
    assert pending.cancelled == 0
    assert process.results() == []
    assert process.cancel(1, 1)
    assert pending.cancelled == 1
    assert process.results() == [1]  # each call has one result, even if it is cancelled
    assert not process.batches.wants_looks


def test_the_answer_to_a_batch_that_called_belongs_to_that_batch(process):
    """It may arrive after the dispatcher has handed the batch over and runs another batch, or none."""
    process.call(1)
    process.cancel(1)
    handed_over, process.batch = batch_of(np.zeros((1, 1), "f4")), ExecutorInputs({}, 0, [])
    answer = ExecutorOutputs([], headers={0: {"a": "b"}})
    packed = messages.pack_answer(answer, Link.pair()[0])
    process.far.send(MessageType.ANSWER, packed, batch_number=1)
    dispatched = SimpleNamespace(batch_number=1, deadline_ns=None, fault="", outputs=None)
    found = process.batches.collect(dispatched, handed_over)
    assert found.headers == {0: {"a": "b"}}


def test_message_is_sent_once_the_socket_has_room(ends):
    near, far = ends
    batches = Process(near, far, None).batches
    done = []
    batch = batch_of(np.zeros((1, 1), "f4"))
    runs = threading.Thread(target=lambda: done.append(batches.run(batch, None)))
    runs.start()
    number = far.receive().batch_number
    sent = 0
    while not batches.link.waiting:
        batches.end_sequences([1])
        sent += 1
    for _ in range(sent):
        assert far.receive().kind == MessageType.END_SEQUENCES
    packed = messages.pack_answer(ExecutorOutputs([]), Link.pair()[0])
    far.send(MessageType.ANSWER, packed, batch_number=number)
    runs.join()
    assert len(done) == 1


def test_batch_begun_during_replacement_ends_once(ends):
    near, _ = ends
    batches = ProcessRuns(
        near,
        SimpleNamespace(died=lambda: ExecutorDied("it died")),
        ProcessCalls(near, lambda request, caller: None),
        threading.Lock(),
        has_coroutines=True,
        may_stream=False,
    )
    send, ended = batches.link.send, []

    def send_late(*arguments, **options):
        near.shutdown()
        batches.join()
        near.close()
        send(*arguments, **options)

    batches.link.send = send_late
    block = near.lease(200_000)
    batch = batch_of(buffer_pool.array(block, "<f4", (1, 50_000)))
    batches.begin(batch, ended.append, None)
    assert [str(one) for one in ended] == ["it died"]


def test_process_that_reads_no_results_may_not_call(process):
    for number in range(MOST_CALLS):
        assert process.call(number)
    assert not process.call(MOST_CALLS)
    assert f"more than {MOST_CALLS} calls" in str(process.violation)


def test_unread_results_count_as_calls(process):
    link = process.batches.link
    while link.count(MessageType.RESULT) < MOST_CALLS:
        process.batches.calls.send_result(1, 1, InferResponse("m", "", "", []))
    assert not process.call(1)
    assert "without taking their results" in str(process.violation)


def test_unread_results_are_limited_in_bytes(ends, process):
    near, far = ends
    near.most_received = 1_000_000
    batches, link = process.batches, process.batches.link
    tensor = Tensor("y", "FP32", (100_000,), np.ones(100_000, "f4"))
    result = InferResponse("m", "", "", [tensor])
    sent = 0
    while link.kept_bytes < 800_000:
        batches.calls.send_result(1, sent, result)
        sent += 1
    batches.calls.send_result(1, sent, result)
    assert link.kept_bytes < 1_000_000

    def taken():
        return messages.unpack_answer(far.receive())

    for number in range(sent):
        found, outputs = taken()
        [tensor] = outputs.tensors
        assert (found, tensor.nbytes) == (number, 400_000)
        link.flush()
    found, outputs = taken()
    error = outputs.failures[0]
    assert found == sent
    assert "has not taken" in error.message
    assert "at most 1000000" in error.message
    assert link.kept_bytes == link.waiting == 0
    batches.calls.send_result(1, sent + 1, result)
    assert taken()[1].tensors[0].nbytes == 400_000


def test_result_with_too_many_tensors_becomes_an_error(ends, process):
    _, far = ends
    many = [Tensor("y", "FP32", (0,), np.ones(0, "f4"))] * 65_537
    process.batches.calls.send_result(1, 5, InferResponse("m", "", "", many))
    number, outputs = messages.unpack_answer(far.receive())
    error = outputs.failures[0]
    assert number == 5
    assert "65537 tensors are too many" in error.message


def test_unsendable_result_is_reported_as_lost(ends, process, caplog):
    _, far = ends
    wrong = [Tensor("y", "FP32", (1,), np.ones(1, "f8"))]
    process.batches.calls.send_result(1, 5, InferResponse("m", "", "", wrong))
    number, outputs = messages.unpack_answer(far.receive())
    error = outputs.failures[0]
    assert (number, error.message) == (5, "the result of the call is lost")
    assert "an array of float64" in caplog.text

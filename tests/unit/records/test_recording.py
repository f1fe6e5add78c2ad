"""Recording copies, limits and drops records before they are written."""

import math
import threading
from collections import Counter

import numpy as np
import pytest

from ksrv.model.config import Recording
from ksrv.model.spec import ModelSpec
from ksrv.records import read_records, recording
from ksrv.records.recording import ModelRecording
from ksrv.request import InferRequest, InferResponse, Tensor
from tests.support.wait_until import wait_until


class Answered:
    def __init__(self, *outputs):
        self._response = InferResponse("m", "", "", list(outputs))

    def wait(self):
        return self._response


@pytest.fixture
def counts():
    return Counter()


@pytest.fixture
def made(tmp_path, counts):
    def make(**rules):
        def count(outcome, number):
            counts[outcome] += number

        spec = ModelSpec(name="m", version="", platform="", inputs=(), outputs=())
        return ModelRecording(Recording(to=str(tmp_path), **({"sample": 1.0} | rules)), spec, count)

    return make


def tensor(size=4, name="x"):
    return Tensor(name, "FP32", (size,), np.arange(size, dtype=np.float32))


def ended(made, request, *outputs):
    callback = made.follow(request, None)
    assert callback is not None
    callback(Answered(*outputs))


def test_a_slow_disk_drops_records_and_stops_no_request(made, counts, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(recording.RotatedFiles, "write", lambda self, line: goes_on.wait(60))
    one = made()
    for _ in range(recording.MOST_WAITING + 51):
        ended(one, InferRequest("m", inputs=[tensor()]), tensor())
    wait_until(lambda: counts["queue_full"] >= 50)
    goes_on.set()
    wait_until(lambda: counts["written"] + counts["queue_full"] == recording.MOST_WAITING + 51)
    one.close()


def test_the_bytes_that_wait_are_bounded(made, counts, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(recording.RotatedFiles, "write", lambda self, line: goes_on.wait(60))
    monkeypatch.setattr(recording, "MOST_WAITING_BYTES", 10_000)
    one = made()
    for _ in range(10):
        ended(one, InferRequest("m", inputs=[tensor(500)]), tensor(500))
    assert counts["queue_full"] >= 5
    goes_on.set()
    one.close()


def test_chunks_that_grow_too_large_drop_their_record(made, counts, monkeypatch):
    monkeypatch.setattr(recording, "LARGEST_RECORD", 10_000)
    one = made()
    request = InferRequest("m", inputs=[tensor()])
    request.stream = object()
    callback = one.follow(request, None)
    for _ in range(4):
        request.on_chunk(InferResponse("m", "", "", [tensor(1000)]))
    callback(Answered())
    assert counts["too_large"] == 1
    one.close()


def test_close_writes_waiting_records_and_accepts_no_more(made, counts, tmp_path):
    one = made()
    for number in range(50):
        ended(one, InferRequest("m", id=str(number), inputs=[tensor()]), tensor())
    one.close()
    assert [record.id for record in read_records(tmp_path)] == [str(one) for one in range(50)]
    ended(one, InferRequest("m", inputs=[tensor()]), tensor())
    assert counts["queue_full"] == 1


def test_a_failure_to_record_leaves_the_answer_alone(made, monkeypatch):
    one = made()
    told = []
    callback = one.follow(InferRequest("m", inputs=[tensor()]), told.append)
    monkeypatch.setattr(one, "copied", lambda *_: 1 / 0)
    answered = Answered(tensor())
    callback(answered)
    assert told == [answered]
    one.close()


@pytest.mark.parametrize(
    "request_of",
    [
        lambda text: InferRequest("m", id=text),
        lambda text: InferRequest("m", parameters={"a": text}),
        lambda text: InferRequest("m", parameters={text: 1}),
        lambda text: InferRequest("m", headers={"x-note": text}),
        lambda text: InferRequest("m", inputs=[tensor(name=text)]),
        lambda text: InferRequest("m", inputs=[Tensor("x", "BYTES", (len(text),), [b""] * len(text))]),
    ],
    ids=["id", "value", "name", "header", "input", "empty elements"],
)  # fmt: skip
def test_all_client_data_counts_against_the_limits(made, counts, monkeypatch, tmp_path, request_of):
    monkeypatch.setattr(recording, "LARGEST_RECORD", 10_000)
    one = made()
    callback = one.follow(request_of("a" * 10_000), None)
    if callback is not None:
        callback(Answered())
    ended(one, InferRequest("m", id="small"))
    one.close()
    assert (counts["too_large"], counts["written"]) == (1, 1)
    assert [record.id for record in read_records(tmp_path)] == ["small"]


def test_a_line_that_could_not_be_read_is_not_written(made, counts, monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "LONGEST_LINE", 2_000)
    one = made()
    ended(one, InferRequest("m", parameters={"a": "\x01" * 1_000}))
    ended(one, InferRequest("m", id="short"))
    one.close()
    assert (counts["too_large"], counts["written"]) == (1, 1)
    assert [record.id for record in read_records(tmp_path)] == ["short"]


def test_parameters_that_json_has_no_number_for_leave_their_record_readable(made, tmp_path):
    one = made()
    for value in (math.nan, math.inf, -math.inf, 1.5):
        ended(one, InferRequest("m", parameters={"a": value}))
    one.close()
    found = [record.request_parameters()["a"] for record in read_records(tmp_path)]
    np.testing.assert_equal(found, [math.nan, math.nan, math.nan, 1.5])

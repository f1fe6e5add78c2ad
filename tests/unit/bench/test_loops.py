"""The closed and the open loop, with functions as connections."""

import contextlib
import multiprocessing
import time

import numpy as np
import pytest

from ksrv.bench import load as loads
from ksrv.bench.load import Load, Samples, closed_loop, due_times, open_loop
from ksrv.bench.report import remarks, result_of, table
from ksrv.client import ConnectionFailed, InvalidRequest


class Slow:
    """A connection whose answer takes some seconds, depending on the number of the request."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.numbers = []

    def send(self, index):
        self.numbers.append(index)
        time.sleep(self.seconds(index))

    def close(self):
        pass


def begin():
    return time.monotonic() + 0.05


def test_open_loop_measures_from_the_due_time():
    """A stall of half a second delays one request of a closed loop, but all waiting requests of an open loop."""
    stall = Slow(lambda index: 0.5 if index == 5 else 0.0)
    load = Load(1, rate=100, poisson=False, warm_up=0, seconds=1.0)
    samples = open_loop([stall], due_times(load, 100, 0), load, begin())
    latencies = np.concatenate([samples.latencies, samples.waits])
    assert len(latencies) == 100
    assert latencies.max() >= 0.49
    assert (latencies > 0.1).sum() >= 30  # of the requests due during the stall
    closed = closed_loop(
        [Slow(lambda index: 0.5 if index == 5 else 0.01)], Load(1, warm_up=0, seconds=1.0), begin()
    )
    assert (closed.latencies > 0.1).sum() <= 1 + (closed.latencies > 0.02).sum() // 2


@pytest.mark.parametrize("rate", [None, 50.0])
def test_sender_that_raises_anything_fails_its_requests_and_continues(rate):
    def fail(number):
        raise RuntimeError(f"no answer {number}")

    load = Load(1, rate=rate, poisson=False, warm_up=0, seconds=0.3)
    start = begin()
    if rate is None:
        samples = closed_loop([Slow(fail)], load, start)
    else:
        samples = open_loop([Slow(fail)], due_times(load, rate, 0), load, start)
    assert samples.errors["RuntimeError"] > 5
    assert samples.example == "no answer 0"


def test_a_closed_loop_shows_a_stall_at_its_end():
    """Twenty requests are answered at once, the next two after the measured time."""
    load = Load(2, warm_up=0, seconds=1.0)
    start = begin()
    end = start + load.seconds
    hang = Slow(lambda index: 0 if index < 20 else max(0.0, end - time.monotonic()) + 0.3)
    samples = closed_loop([hang, hang], load, start)
    result = result_of("http://x", load, samples, 1)
    assert (result.requests, result.under_way) == (20, 2)
    assert result.latency_ms["max"] >= 300 > result.latency_ms["p50"]
    assert result.throughput == 20 / load.seconds
    assert "2 requests were still under way" in "".join(remarks([result], 1))


def test_closed_loop_without_a_final_stall_has_no_note():
    load = Load(1, seconds=1.0)
    samples = Samples(np.array([0.1, 0.3]), waits=np.array([0.2]), seconds=1.0)
    result = result_of("http://x", load, samples, 1)
    assert result.under_way == 1 and not remarks([result], 1)


def test_the_warm_up_does_not_count():
    slow = Slow(lambda index: 0.05)
    samples = closed_loop([slow], Load(1, warm_up=0.5, seconds=0.5), begin())
    assert 0 < len(samples.latencies) <= 11 < len(slow.numbers) + 2


def test_failures_are_counted_by_status_and_kind():
    class Failing(Slow):
        def send(self, index):
            time.sleep(0.01)
            raise InvalidRequest(400, "wrong") if index % 2 == 0 else ConnectionFailed("gone")

    samples = closed_loop([Failing(None)], Load(1, warm_up=0, seconds=0.3), begin())
    assert set(samples.errors) == {"400", "ConnectionFailed"}
    assert samples.example == "400: wrong" and len(samples.latencies) == 0
    result = result_of("http://x", Load(1, warm_up=0, seconds=0.3), samples, 1)
    assert result.failed == sum(samples.errors.values())
    assert "the first: 400: wrong" in "".join(remarks([result], 1))


def test_processes_take_turns_at_equal_intervals():
    load = Load(4, rate=400, poisson=False, warm_up=0, seconds=1.0, processes=4)
    times = np.sort(np.concatenate([due_times(load, 100, process) for process in range(4)]))
    assert len(times) == 400 and np.allclose(np.diff(times), 1 / 400)


@pytest.mark.parametrize("poisson", [True, False])
def test_due_times_have_the_rate(poisson):
    load = Load(1, rate=500, poisson=poisson, warm_up=1, seconds=9)
    times = due_times(load, 500, 1)
    assert len(times) == pytest.approx(5000, rel=0.06)
    assert (np.diff(times) >= 0).all() and times[-1] < 10
    assert (np.diff(times).std() > 1e-3) == poisson


def test_results_have_percentiles_and_a_table():
    load = Load(4, rate=None, seconds=2.0)
    samples = Samples(latencies=np.arange(1, 1001) / 1e3, seconds=2.0, client_cpu=1.9)
    result = result_of("grpc://h:1", load, samples, 3)
    assert (result.throughput, result.rows_per_second) == (500, 1500)
    assert result.latency_ms["p50"] == pytest.approx(501, abs=1)
    assert result.latency_ms["p99.9"] == pytest.approx(1000, abs=1)
    head, line = table([result]).splitlines()
    assert "p99.9" in head and line.split()[:5] == ["grpc", "4", "conn", "500", "1500"]
    assert "--processes 2" in "".join(remarks([result], 1))
    assert result.document()["latency_ms"]["max"] == 1000


def test_samples_of_processes_are_added():
    one = Samples(np.array([1.0]), np.array([3.0]), client_cpu=1, seconds=2)
    one.errors["400"] += 1
    other = Samples(np.array([2.0]), np.array([4.0]), client_cpu=2, seconds=3, example="x")
    other.errors["400"] += 2
    one.add(other)
    assert (one.latencies.tolist(), one.waits.tolist(), one.client_cpu) == ([1, 2], [3, 4], 3)
    assert one.errors == {"400": 3} and one.example == "x" and one.seconds == 3


def test_the_error_of_the_failing_process_is_raised(monkeypatch):
    """The other processes wait for it, and find only that the common begin is off."""

    def make_senders(endpoint, operations, connections):
        if connections == 2:  # one of the processes
            time.sleep(0.02)
            raise FileNotFoundError("no certificate")
        return contextlib.nullcontext([])

    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(loads.multiprocessing, "get_context", lambda _: fork)
    monkeypatch.setattr(loads, "make_senders", make_senders)
    for _ in range(6):
        with pytest.raises(FileNotFoundError, match="no certificate"):
            loads.run(loads.Endpoint("http://127.0.0.1:1"), [], Load(5, processes=4, seconds=0.1))

"""Threads that end when idle: how many run, and the effect of a shutdown."""

import threading

import pytest

from ksrv.server.grpc.idle_threads import IdleThreads
from tests.support.wait_until import wait_until


def test_work_runs_side_by_side_up_to_the_bound_and_all_of_it():
    pool = IdleThreads(3, "x")
    together, open_gate = threading.Semaphore(0), threading.Event()

    def work(number: int) -> int:
        together.release()
        open_gate.wait()
        return number

    futures = [pool.submit(work, number) for number in range(10)]
    for _ in range(3):
        together.acquire()
    assert pool.threads == 3 and not together.acquire(blocking=False)
    open_gate.set()
    assert [one.result() for one in futures] == list(range(10))
    pool.shutdown()
    wait_until(lambda: pool.threads == 0)


def test_many_submitters_beside_threads_that_end():
    pool = IdleThreads(4, "x", idle_seconds=0.0001)
    done: list[int] = []

    def submit() -> None:
        for number in range(500):
            pool.submit(done.append, number).result()

    submitters = [threading.Thread(target=submit) for _ in range(6)]
    for one in submitters:
        one.start()
    for one in submitters:
        one.join(60)
    assert len(done) == 3000
    pool.shutdown()


def test_shutdown_cancels_waiting_work_and_refuses_more():
    pool = IdleThreads(1, "x")
    began, gate = threading.Event(), threading.Event()
    running = pool.submit(lambda: (began.set(), gate.wait()))
    waiting = pool.submit(int)
    began.wait()
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and not running.done()
    with pytest.raises(RuntimeError, match="ended"):
        pool.submit(int)
    gate.set()
    wait_until(lambda: pool.threads == 0)


def test_submit_raises_if_no_thread_can_start(monkeypatch):
    pool = IdleThreads(1, "x")

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.submit(int)
    monkeypatch.undo()
    assert pool.submit(int).result() == 0
    pool.shutdown()

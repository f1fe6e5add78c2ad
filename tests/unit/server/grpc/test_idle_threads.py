"""Threads that end when idle: how many run, and the effect of a shutdown."""

import threading

import pytest

from ksrv.server.shared.idle_threads import IdleThreads


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

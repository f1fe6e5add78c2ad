"""How gunicorn's master process treats workers that could not start."""

from types import SimpleNamespace

import pytest

from ksrv.server.shared.worker_table import State, shared_table
from ksrv.server.workers import arbiter


@pytest.fixture
def server():
    """An arbiter in its state after `adopt`, without processes."""
    made = object.__new__(arbiter.Arbiter)
    made.ksrv_workers = shared_table()
    made.log = SimpleNamespace(error=lambda *_: None)
    return made


def test_a_worker_that_could_not_start_later_is_tried_again_after_a_while(server, monkeypatch):
    now = [100.0]
    spawned = []
    monkeypatch.setattr(arbiter.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(arbiter.arbiter.Arbiter, "spawn_workers", lambda self: spawned.append(self))
    server.ksrv_workers.served = True
    slot = server.ksrv_workers.allocate()
    server.ksrv_workers.workers[slot].state = State.NEVER_SERVED
    server.release_slot(slot)
    assert server.ksrv_workers.workers[slot].state == State.EMPTY
    server.spawn_workers()
    assert spawned == []
    now[0] += arbiter.RETRY_SECONDS
    server.spawn_workers()
    assert spawned == [server]

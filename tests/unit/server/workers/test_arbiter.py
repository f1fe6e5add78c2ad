"""How gunicorn's master process treats workers that could not start."""

from types import SimpleNamespace

import pytest
from gunicorn.errors import HaltServer

from ksrv.server.shared.worker_table import State, Stop, shared_table
from ksrv.server.workers import arbiter


@pytest.fixture
def server():
    """An arbiter in its state after `adopt`, without processes."""
    made = object.__new__(arbiter.Arbiter)
    made.ksrv_workers = shared_table()
    made.log = SimpleNamespace(error=lambda *_: None)
    return made


def test_a_worker_that_could_not_start_ends_a_server_that_never_served(server):
    slot = server.ksrv_workers.allocate()
    server.ksrv_workers.workers[slot].state = State.NEVER_SERVED
    with pytest.raises(HaltServer) as told:
        server.release_slot(slot)
    assert told.value.exit_status == 3


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


def test_a_worker_that_died_later_is_replaced_at_once(server, monkeypatch):
    spawned = []
    monkeypatch.setattr(arbiter.arbiter.Arbiter, "spawn_workers", lambda self: spawned.append(self))
    slot = server.ksrv_workers.allocate()
    server.ksrv_workers.workers[slot].state = State.READY
    server.release_slot(slot)
    server.spawn_workers()
    assert spawned == [server]


@pytest.mark.parametrize(
    ("new", "old", "graceful", "told"),
    [
        (0, 0, True, Stop.ORDERLY),
        (17, 0, True, Stop.TAKEN_OVER),
        (0, 17, True, Stop.TAKEN_OVER),
        (17, 0, False, Stop.QUICK),
    ],
)
def test_of_two_masters_one_leaves_the_addresses_to_the_other(
    server, monkeypatch, new, old, graceful, told
):
    monkeypatch.setattr(arbiter.arbiter.Arbiter, "stop", lambda self, graceful: None)
    server.reexec_pid, server.master_pid = new, old
    server.stop(graceful)
    assert server.ksrv_workers.stopping == told

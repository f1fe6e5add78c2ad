"""Threads apply the changes of a worker's models: one thread per model with changes."""

import threading
from typing import Any

import pytest

from ksrv.engine.changes import RepositoryChange
from ksrv.engine.engine import Engine
from ksrv.repository.layout import Repository
from ksrv.server.shared.worker_table import State, shared_table
from ksrv.server.workers.change_log import ChangeLog, entries_for_new_worker
from ksrv.server.workers.repository_changes import ChangeReplicator
from tests.support.models import write_broken, write_double
from tests.support.wait_until import wait_until


class Followed:
    """An engine that records its calls."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def follow(self, change: RepositoryChange, order: int) -> None:
        self.made.append((change.kind, change.name))


@pytest.fixture
def replicator() -> ChangeReplicator:
    table = shared_table()
    slot = table.allocate()
    made = ChangeReplicator(ChangeLog(table.read_by_all), table, slot)
    table.workers[slot].state = State.READY
    return made


def test_a_change_for_which_the_system_has_no_thread_is_made_once_it_has(replicator, monkeypatch):
    start, refused = threading.Thread.start, []

    def scarce(self: threading.Thread) -> None:
        if self.name == "ksrv-change" and len(refused) < 2:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    engine: Any = Followed()
    threading.Thread(target=replicator.run, args=(engine,), daemon=True).start()
    changes = [RepositoryChange(kind="unload", name=name) for name in ("m", "m", "other")]

    def ask() -> None:
        for change in changes:
            replicator.carry_out(lambda change=change: [change])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive()
    assert len(refused) == 2
    assert engine.made == [(one.kind, one.name) for one in changes]


def test_update_that_two_workers_ask_for_and_none_can_make_leaves_nothing(tmp_path):
    write_double(tmp_path)
    engine = Engine(Repository([tmp_path]))
    engine.start()
    table = shared_table()
    log = ChangeLog(table.read_by_all)
    slot = table.allocate()
    replicator = ChangeReplicator(log, table, slot)
    table.workers[slot].state = State.READY
    threading.Thread(target=replicator.run, args=(engine,), daemon=True).start()
    write_broken(tmp_path)
    for _ in range(2):
        entry = engine.with_files(engine.repository.scan())["broken"]
        update = RepositoryChange(kind="update", name="broken", entry=entry)
        replicator.carry_out(lambda update=update: [update])
    wait_until(lambda: entries_for_new_worker(log.read()) == [])
    engine.close()
